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
        parallel_text.read_test(*paths, ("de", "en"))


def test_names_missing_and_truncated_files(tmp_path):
    with pytest.raises(DataError, match=r"a.gz is missing: name your text in recipe.data"):
        list(parallel_text.read_lines(tmp_path / "a.gz"))
    complete = gzip.compress(b"line\n" * 20000)
    (tmp_path / "a.gz").write_bytes(complete[: len(complete) // 2])
    with pytest.raises(DataError, match=r"a.gz cannot be read after line \d+ .*fetch it again"):
        list(parallel_text.read_lines(tmp_path / "a.gz"))


PAIRS = [("Ein Hund", "A dog", 1), ("Zwei Katzen", "Two cats", 2)]


@pytest.mark.parametrize(
    ("name", "lines", "first_line"),
    [
        ("a.tsv", ["Ein Hund\tA dog", "Zwei Katzen\tTwo cats\textra"], 1),
        ("a.txt", ["en\tde", "A dog\tEin Hund", "Two cats\tZwei Katzen"], 2),
        ("a.jsonl", ['{"de": "Ein Hund", "en": "A dog"}', '{"en": "Two cats", "de": "Zwei Katzen", "id": 7}'], 1),
        (
            "a.jsonl.gz",
            [
                '{"translation": {"de": "Ein Hund", "en": "A dog"}}',
                '{"id": "1", "translation": {"en": "Two cats", "de": "Zwei Katzen"}}',
            ],
            1,
        ),
    ],
)
def test_one_file_holds_both_languages(tmp_path, name, lines, first_line):
    text = "".join(f"{line}\n" for line in lines).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    expected = [(source, target, number + first_line - 1) for source, target, number in PAIRS]
    assert list(parallel_text.read_pairs(path, path, ("de", "en"))) == expected


@pytest.mark.parametrize(
    ("name", "line", "sentence"),
    [
        ("a.tsv", "only German", "line 1 has 1 columns: separate source and target by a tab, or name two files"),
        ("a.jsonl", '{"deu": "x", "eng": "y"}', "line 1 has no sentence 'de', only deu, eng: name its languages in"),
        ("a.jsonl", '{"de": 3, "en": "y"}', "line 1 has no sentence 'de'"),
        ("a.jsonl", "Ein Hund", "line 1 is not a JSON object: write one a line"),
        ("a.jsonl", "[1]", "line 1 is not a JSON object"),
        ("a.sgm", '<srcset setid="newstest2014" srclang="any">', "is markup: write the text of each sentence"),
        ("a.xml", "<?xml version='1.0'?>", "is markup"),
    ],
)
def test_says_why_one_file_is_not_parallel_text(tmp_path, name, line, sentence):
    path = write(tmp_path / name, line)
    with pytest.raises(DataError, match=sentence):
        list(parallel_text.read_pairs(path, path, ("de", "en")))


def test_finds_the_languages_that_a_file_names(tmp_path):
    assert parallel_text.read_languages(write(tmp_path / "a.tsv", "de\ten")) == ["de", "en"]
    assert parallel_text.read_languages(write(tmp_path / "b.tsv", "Ein Hund\tA dog")) == []
    assert parallel_text.read_languages(write(tmp_path / "c.jsonl", '{"translation": {"de": "x", "en": "y"}}')) == [
        "de",
        "en",
    ]
