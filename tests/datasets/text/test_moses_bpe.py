"""Moses tokenization and byte-pair encoding: known results and round trips."""

from collections import Counter

import pytest

from timetrial.datasets.text.moses_bpe import END, UNKNOWN, MosesBPE
from timetrial.runner.core.errors import DataError

# The dictionary of Sennrich, Haddow and Birch (2016), algorithm 1.
PAPER = {"low": 5, "lower": 2, "newest": 6, "widest": 3}


def test_merges_follow_from_the_counts():
    """By hand, with the last letter of a word as a symbol of its own: s+t occurs 9 times, e+st 9, l+o 7, then 6 times.

    Of equally frequent pairs (e+s also occurs 9 times) the last in the alphabet comes first, as in subword-nmt.
    """
    merges = MosesBPE.learn(PAPER, 5).merges.splitlines()[1:]
    assert merges == ["s t</w>", "e st</w>", "l o", "w est</w>", "n e"]


def test_merges_determine_pieces():
    """Merges by hand; they determine the pieces of an unseen word."""
    vocabulary = MosesBPE("#version: 0.2\nl o\nlo w</w>\ne r</w>\n", ["low", "er", "n@@", "e@@", "w@@", "lo@@"])
    pieces = [vocabulary.pieces[number] for number in vocabulary.encode("low newer x")]
    assert pieces == ["low", "n@@", "e@@", "w@@", "er", "<unk>"]
    assert vocabulary.encode("x") == [UNKNOWN]


@pytest.mark.parametrize(
    ("line", "normal"),
    [
        ("It's a dog's life, isn't it?", "It &apos;s a dog &apos;s life , isn &apos;t it ?"),
        ('He said "no" & left [fast].', "He said &quot; no &quot; &amp; left &#91; fast &#93; ."),
        ("Mr. Smith paid 1,000.50 dollars.", "Mr. Smith paid 1,000.50 dollars ."),
    ],
)
def test_english_is_tokenized_as_moses_does(line, normal):
    assert MosesBPE.normalize(line, "en") == normal


@pytest.mark.parametrize(
    ("line", "normal"),
    [
        ("one\x00two\x1cthree", "onetwothree"),  # tokenizer.perl deletes U+0000 to U+001F
        ("one\x85two \u2028three\u2029four\tfive", "one two three four five"),  # spaces of Unicode
        ("one\x80two", "one \x80 two"),
    ],
)
def test_control_characters_are_treated_as_in_tokenizer_perl(line, normal):
    assert MosesBPE.normalize(line, "en") == normal
    assert MosesBPE.rejection_reason(normal, "eins zwei") is None


def test_detokenizes_german_by_english_rules_as_the_reference():
    """By German rules the apostrophe would stand alone."""
    tokens = "Peter &apos;s Haus"
    vocabulary = MosesBPE.learn(Counter(3 * tokens.split()), 10)
    assert vocabulary.decode(vocabulary.encode(tokens)) == "Peter's Haus"


def test_german_round_trip():
    lines = ["Zwei junge Männer sind im Freien.", "„Nein“, sagte er, & ging 3,5 km weit!"]
    normal = [MosesBPE.normalize(line, "de") for line in lines]
    vocabulary = MosesBPE.learn(Counter(word for line in normal for word in line.split()), 20)
    for line, tokens in zip(lines, normal, strict=True):
        ids = vocabulary.encode(tokens)
        assert UNKNOWN not in ids
        assert vocabulary.decode([2, *ids, END, 7, 7]) == line


def test_vocabulary_files_round_trip(tmp_path):
    vocabulary = MosesBPE.learn(PAPER, 5)
    vocabulary.write(tmp_path)
    again = MosesBPE.read(tmp_path)
    assert (again.merges, again.pieces) == (vocabulary.merges, vocabulary.pieces)
    assert again.encode("lowest newer") == vocabulary.encode("lowest newer")
    (tmp_path / "bpe.codes").unlink()
    with pytest.raises(DataError, match=r"lacks bpe.codes or vocabulary.txt"):
        MosesBPE.read(tmp_path)


@pytest.mark.parametrize(
    ("codes", "pieces", "sentence"),
    [
        ("#version: 0.2\na b c\n", "a\n", "bpe.codes line 2 is not a pair of pieces .'a b c'"),
        ("#version: 0.2\na b\n\nc d\n", "a\n", "bpe.codes line 3 is not a pair of pieces"),
        ("a b\n", "", "vocabulary.txt line 1 is not a piece .''.: write one per line"),
        ("a b\n", "ab\nthe 37\n", "vocabulary.txt line 2 is not a piece .'the 37'.: write one per line"),
        ("a b\n", "ab\nc\nab\n", "vocabulary.txt line 3 repeats a piece .'ab'"),
    ],
)
def test_names_line_of_invalid_vocabulary(tmp_path, codes, pieces, sentence):
    (tmp_path / "bpe.codes").write_text(codes)
    (tmp_path / "vocabulary.txt").write_text(pieces)
    with pytest.raises(DataError, match=sentence):
        MosesBPE.read(tmp_path)


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a b", "c", None),
        ("a " * 80, "c " * 80, None),
        ("a " * 81, "c " * 80, "does not have 1 to 80 tokens"),
        ("a", "", "does not have 1 to 80 tokens"),
        ("a", "日本", "contains characters outside Latin-1"),
        ("a " * 9, "c", None),
        ("a " * 19, "c d", "has one side more than 9 times as long as the other"),
        ("a", "c " * 10, "has one side more than 9 times as long as the other"),
        ("a " * 1000, "c " * 1000, "does not have 1 to 80 tokens"),
        ("a" * 1000, "c", None),
        ("b a", "c" * 1001, "contains a word of more than 1,000 characters"),
    ],
)
def test_rejection_reasons(source, target, reason):
    assert MosesBPE.rejection_reason(source, target) == reason
