"""Problems of text files are reported with file and line."""

import gzip
import lzma

import pytest

from timetrial.datasets.formats import parallel_text
from timetrial.runner.core.errors import DataError


def write(path, *lines, ends="\n"):
    path.write_bytes(b"".join(line if isinstance(line, bytes) else f"{line}{ends}".encode() for line in lines))
    return path


def test_only_a_newline_ends_a_line(tmp_path):
    """str.splitlines would find more lines and misalign the two sides."""
    source = write(tmp_path / "a", "one\x0btwo\x85three", "four\u2028five", ends="\r\n")
    assert list(parallel_text.read_lines(source)) == ["one\x0btwo\x85three", "four\u2028five"]


def test_reads_compressed_files_and_byte_order_mark(tmp_path):
    text = "\ufeffeins\tzwei\ndrei\n".encode()
    for name, opened in (("a.gz", gzip.open), ("a.xz", lzma.open), ("a", open)):
        with opened(tmp_path / name, "wb") as file:
            file.write(text)
        assert list(parallel_text.read_lines(tmp_path / name)) == ["eins\tzwei", "drei"]


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        (["a", "b", "c"], ["x", "y"], "a has 3 lines but .*b 2: line 3 has no translation"),
        (["a"], ["x", "y", "z"], "b has 3 lines but .*a 1: line 2 has no translation"),
        (["a", b"caf\xe9\n"], ["x", "y"], "a line 2 is not UTF-8 .byte 0xe9.: convert"),
        (["a", ""], ["x", "y"], "a line 2 is empty"),
        (["a", "b"], ["x", "  "], "b line 2 is empty"),
        (["a", "b\x00c"], ["x", "y"], r"a line 2 contains the control character U\+0000"),
        (["a", "b"], ["x", "y\u2028z"], r"b line 2 contains the control character U\+2028"),
        (["a", "word " * 5000], ["x", "y"], "a line 2 has 5,000 words: a test sentence has at most 1,000"),
        ([], [], "a contains no sentence"),
    ],
)
def test_names_the_first_unusable_line_of_a_test_set(tmp_path, source, target, sentence):
    paths = write(tmp_path / "a", *source), write(tmp_path / "b", *target)
    with pytest.raises(DataError, match=sentence):
        parallel_text.read_test(*paths)


def test_names_missing_and_truncated_files(tmp_path):
    with pytest.raises(DataError, match=r"a.gz is missing: name your text in recipe.data"):
        list(parallel_text.read_lines(tmp_path / "a.gz"))
    complete = gzip.compress(b"line\n" * 20000)
    (tmp_path / "a.gz").write_bytes(complete[: len(complete) // 2])
    with pytest.raises(DataError, match=r"a.gz cannot be read after line \d+ .*fetch it again"):
        list(parallel_text.read_lines(tmp_path / "a.gz"))
