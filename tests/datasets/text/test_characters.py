"""Characters as tokens, against a loop with a dictionary."""

import bz2
import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest

from timetrial.datasets.text import characters
from timetrial.runner.core.errors import DataError, Exit

HERE = Path("here.txt")
TEXT = "Zoë sah 😀\r\n漢字 \U0010ffff\t\ufeff\u2028ß\x0c\n"


def random_text(length, seed=1):
    """Return characters of all planes but surrogates, frequent and rare."""
    generator = np.random.default_rng(seed)
    code_points = np.where(
        generator.random(length) < 0.7, generator.integers(32, 300, length), generator.integers(1, 0x110000, length)
    )
    surrogates = (code_points >= 0xD800) & (code_points < 0xE000)
    return "".join(map(chr, np.where(surrogates, 0x1F600, code_points)))


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".bz2"])
def test_reads_text_unchanged(tmp_path, suffix):
    """With all its line endings, and also if it is compressed."""
    compress = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[suffix]
    path = tmp_path / f"text.txt{suffix}"
    path.write_bytes(compress(TEXT.encode()))
    assert characters.read(path) == TEXT


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", r"empty\.txt is empty: name a file with text"),
        ("empty.txt.gz", gzip.compress(b"", mtime=0), r"empty\.txt\.gz is empty: name a file with text"),
        ("zero.txt", b"a\0b", r"zero\.txt is binary, not text: name a file with text"),
        ("latin.txt", "Zoë".encode("latin-1"), r"latin\.txt is not UTF-8 text \(byte 2\): convert the file with iconv"),
        ("wide.txt", "Zoë".encode("utf-16"), r"wide\.txt is not UTF-8 text \(byte 0\): convert the file with iconv"),
        ("half.txt", "😀".encode()[:3], r"half\.txt is not UTF-8 text \(byte 0\)"),
        ("surrogate.txt", b"ab\xed\xa0\x80", r"surrogate\.txt is not UTF-8 text \(byte 2\)"),
        ("plain.txt.gz", b"plain", r"plain\.txt\.gz cannot be read \(.*\): fetch it again"),
        ("cut.txt.gz", gzip.compress(b"a" * 99, mtime=0)[:-9], r"cut\.txt\.gz cannot be read \(.*\): fetch it again"),
        ("cut.txt.xz", lzma.compress(b"a" * 99)[:-9], r"cut\.txt\.xz cannot be read \(.*\): fetch it again"),
    ],
)
def test_rejects_what_is_no_text(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        characters.read(tmp_path / name)
    assert caught.value.exit_code == Exit.DATA
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_names_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.txt is missing: name your text in recipe\.data\.") as caught:
        characters.read(tmp_path / "nowhere.txt")
    assert caught.value.exit_code == Exit.DATA


def test_vocabulary_has_each_character_once_in_ascending_order():
    assert characters.learn_vocabulary("b😀aß\nab漢") == "\nabß漢😀"
    vocabulary = characters.learn_vocabulary(random_text(100_000))
    assert list(vocabulary) == sorted(set(random_text(100_000)))


def test_vocabulary_has_as_many_characters_as_fit_16_bits():
    most = "".join(map(chr, range(0xE000, 0xE000 + 65_536)))
    vocabulary = characters.learn_vocabulary(most)
    assert characters.encode(most, vocabulary, HERE).tolist() == list(range(65_536))
    with pytest.raises(DataError, match="65537 different characters, more than 65536") as caught:
        characters.learn_vocabulary(most + "a")
    assert caught.value.exit_code == Exit.DATA


def test_encoding_equals_a_dictionary():
    """Of 100,000 characters in the text that the vocabulary was learned from, and of others that have them."""
    text = random_text(100_000)
    vocabulary = characters.learn_vocabulary(text)
    number_of = {character: number for number, character in enumerate(vocabulary)}
    assert any(ord(character) > 0xFFFF for character in text)
    for encoded in (text, text[::-1], vocabulary, "😀😀"):
        ids = characters.encode(encoded, vocabulary, HERE)
        assert ids.dtype == np.uint16
        assert ids.tolist() == [number_of[character] for character in encoded]
        assert "".join(vocabulary[number] for number in ids) == encoded


def test_encodes_no_text_to_no_tokens():
    assert characters.encode("", "abc", HERE).tolist() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abcd\nab", "line 1 has the character 'd'"),
        ("ab\nca\nb\U0001f600\n", "line 3 has the character '\U0001f600'"),
        ("ab\n\n\x07", r"line 3 has the character '\\x07'"),  # below all known
        ("a!d", "line 1 has the character '!'"),  # the first of several
        ("a\u0062\u0308", "line 1 has the character '\u0308'"),  # a combining character by itself
    ],
)
def test_names_the_first_unknown_character(text, message):
    with pytest.raises(DataError, match=message) as caught:
        characters.encode(text, "\nabc", HERE)
    assert caught.value.exit_code == Exit.DATA
    assert str(caught.value).startswith("here.txt line ")
    assert str(caught.value).endswith("which the training text lacks: add it to the training text.")
    assert "\n" not in str(caught.value)
