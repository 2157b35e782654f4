"""The subword vocabulary against examples by hand and slow implementations of its definition."""

import pickle
import re
import sys
import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from timetrial.datasets.text import subwords
from timetrial.datasets.text.subwords import EOS, PAD, Subwords
from timetrial.runner.core.errors import DataError, Exit

ESCAPES = list("\\_;u0123456789")
PIECES = ["the_", "th", "cat_", "ca", "s_", ", _", "._", *"thecas,. '"]
SMALL = Subwords(["<pad>", "<EOS>", *PIECES, *ESCAPES])
FILE = "".join(f"'{token}'\n" for token in SMALL.tokens)
# Characters that matter: separators, what escaping writes, numbers that are no digits, letters without case.
tricky = st.text(st.sampled_from(" _\\;u0a9zé,.'\"\n\r\t\u2028²½٣漢ß\u0301\U0001f600"))


def sentences(count):
    """Return sentences of synthetic words, frequent and rare, that share syllables."""
    generator = np.random.default_rng(5)
    syllables = [a + b + c for a in "bdgklmnprst" for b in "aeiouäö" for c in ("", "n", "r", "st")]
    words = ["".join(generator.choice(syllables, 1 + number % 4)) for number in range(2000)]
    chance = 1 / np.arange(1, 2001)
    drawn = generator.choice(2000, (count, 9), p=chance / chance.sum())
    return [f"{' '.join(words[word] for word in line[:6])}, {words[line[7]]} {line[8]}." for line in drawn]


TEXTS = sentences(200)


def learn(texts, *arguments, **named):
    """Learn from the tokens of texts."""
    return Subwords.learn(Counter(token for text in texts for token in subwords.split(text)), *arguments, **named)


LEARNED = learn(TEXTS, min_count=3)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("the", ["the_"]),
        ("the cat", ["the_", "cat_"]),  # the lone space is left out
        ("the cats", ["the_", "ca", "t", "s_"]),  # "cat_" does not fit before an s, and "ca" is longer than "c"
        ("thes", ["th", "e", "s_"]),
        ("the, cat.", ["the_", ", _", "cat_", "._"]),
        ("the  cat", ["the_", " ", " ", "_", "cat_"]),  # two spaces are a token
        (" cat", [" ", "_", "cat_"]),  # a space at either end is one, too
        ("cat ", ["cat_", " ", "_"]),
        (" ", [" ", "_"]),
        ("_", ["\\", "u", "_"]),
        ("\\", ["\\", "\\", "_"]),
        ("é", [*"\\233;", "_"]),  # not in the alphabet: its code point
        ("aéa", ["a", *"\\233;", "a", "_"]),  # é is a letter: one token
        ("the\ncat", ["the_", *"\\10;", "_", "cat_"]),
        ("\\233;", ["\\", "\\", "_", *"233", "_", ";", "_"]),  # written out, it is no escape
        ("<pad>", [*"\\60;", "_", *"\\112;", "a", *"\\100;", "_", *"\\62;", "_"]),  # never the reserved id
    ],
)
def test_encoding_by_hand(text, pieces):
    assert [SMALL.tokens[number] for number in SMALL.encode(text)] == pieces
    assert SMALL.decode(SMALL.encode(text)) == text


def slow_split(text):
    tokens = []
    for place, character in enumerate(text):
        kinds = [unicodedata.category(c)[0] in "LN" for c in text[max(0, place - 1) : place + 1]]
        if place and kinds[0] == kinds[1]:
            tokens[-1] += character
        else:
            tokens.append(character)
    return [token for place, token in enumerate(tokens) if token != " " or place in (0, len(tokens) - 1)]


def slow_escape(token, alphabet):
    escapes = {"\\": "\\\\", "_": "\\u"}
    return "".join(escapes.get(c, c if c in alphabet and c != "\n" else f"\\{ord(c)};") for c in token) + "_"


def slow_segment(escaped, pieces):
    if not escaped:
        return []
    longest = max((piece for piece in pieces if escaped.startswith(piece)), key=len)
    return [longest, *slow_segment(escaped[len(longest) :], pieces)]


@given(tricky | st.text())
@settings(deadline=None)
@pytest.mark.parametrize("vocabulary", [SMALL, LEARNED])
def test_encoding_equals_slow_reference(vocabulary, text):
    pieces = vocabulary.tokens[2:]
    alphabet = {piece for piece in pieces if len(piece) == 1}
    expected = [p for token in slow_split(text) for p in slow_segment(slow_escape(token, alphabet), pieces)]
    assert [vocabulary.tokens[number] for number in vocabulary.encode(text)] == expected


@given(tricky | st.text())  # which draws no lone surrogates: those are no characters, and decode to nothing
@example("a ")
@example(" ")
@example("a  b _ c\\u \\95; \n")
@settings(deadline=None)
@pytest.mark.parametrize("vocabulary", [SMALL, LEARNED])
def test_any_text_round_trips(vocabulary, text):
    ids = vocabulary.encode(text)
    assert all(EOS < number < len(vocabulary) for number in ids)
    assert vocabulary.decode(ids) == text
    assert vocabulary.decode([PAD, *ids, PAD, EOS, *ids]) == text


@given(st.lists(st.integers(0, len(SMALL) + 9) | st.sampled_from(range(len(SMALL) - 14, len(SMALL)))))
@settings(deadline=None)
def test_any_ids_decode_to_valid_text(ids):
    SMALL.decode(ids).encode()


def test_decoding_by_hand():
    def decode(*pieces):
        return SMALL.decode(SMALL.tokens.index(piece) for piece in pieces)

    assert decode("the_", "<pad>", "cat_", "<EOS>", "the_") == "the cat"
    assert decode("ca", "t") == "cat"  # a token without its end
    assert decode("the_", "_", "_", "cat_") == "the cat"  # a token of nothing is none
    assert decode("the_", *"\\9999999;", "_", "cat_") == "the cat"  # no code point
    assert decode("ca", *"\\55296;", "t", "_") == "cat"  # a surrogate
    assert decode("ca", "\\", *"9" * 5000, ";", "_") == "ca"  # more digits than Python reads
    assert decode("ca", "\\", "t", "_") == "ca\\t"  # no escape at all
    assert SMALL.decode([2, len(SMALL), -1, 2]) == "the the"
    assert SMALL.encode("\ud800") == SMALL.encode("é")[:1] + [SMALL.tokens.index(c) for c in "55296;_"]


def test_letters_and_digits_are_unicode_categories_l_and_n():
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    expected = [c for c in everything if unicodedata.category(c)[0] in "LN"]
    assert re.findall(r"[^\W_]", everything) == expected == [c for c in everything if c.isalnum()]


def test_full_cache_changes_nothing(monkeypatch):
    fresh = Subwords(LEARNED.tokens)
    monkeypatch.setattr(subwords, "_MAX_CACHED_TOKENS", 3)
    assert [fresh.encode(text) for text in TEXTS] == [LEARNED.encode(text) for text in TEXTS]
    assert len(fresh._cache) == 3
    assert pickle.loads(pickle.dumps(fresh)).encode(TEXTS[0]) == LEARNED.encode(TEXTS[0])


def test_learning_by_hand():
    # "ab_" comes 3 times. Round 1 cuts it into a, b, _ and counts a 3, ab 3, ab_ 3, b 3, b_ 3, _ 3; ab_ is kept and
    # leaves a and ab 0, b_ is kept and leaves b 0. Round 2 has "ab_" whole: b_ is no longer counted.
    once = learn(["ab ab ab"], min_count=2, rounds=1)
    assert once.tokens == ["<pad>", "<EOS>", "_", "ab_", "b_", *sorted({*ESCAPES, "a", "b"} - {"_"})]
    assert learn(["ab", "ab ab"], min_count=2).tokens[:3] == ["<pad>", "<EOS>", "ab_"]
    assert len(learn(["ab", "ab ab"], min_count=2)) == 3 + len({*ESCAPES, "a", "b"})
    # A beginning stays only if it is frequent elsewhere: abc_ 3, and of ab's 5 then 2.
    counts = {2: True, 3: False}
    for minimum, kept in counts.items():
        learned = learn(["abc abc abc abd abe"], min_count=minimum, rounds=1)
        assert ("abc_" in learned.tokens, "ab" in learned.tokens) == (True, kept)


def slow_learn(texts, min_count, rounds=4):
    counts = Counter(token for text in texts for token in slow_split(text))
    alphabet = {c for token in counts for c in token} - {"\n"} | set(ESCAPES)
    pieces = sorted(alphabet)
    for _ in range(rounds):
        strings = Counter()
        for token, count in counts.items():
            escaped, start = slow_escape(token, alphabet), 0
            for piece in slow_segment(escaped, pieces):
                for end in range(start + 1, len(escaped) + 1):
                    strings[escaped[start:end]] += count
                start += len(piece)
        kept = {}
        for string in sorted(strings, key=len, reverse=True):
            if len(string) > 1 and strings[string] >= min_count:
                kept[string] = strings[string]
                strings.subtract(dict.fromkeys((string[:end] for end in range(1, len(string))), strings[string]))
        kept.update({c: strings[c] for c in alphabet})
        pieces = sorted(kept, key=lambda string: (-kept[string], string))
    return ["<pad>", "<EOS>", *pieces]


@pytest.mark.parametrize("min_count", [1, 2, 5, 30, 10**6])
def test_learning_equals_slow_reference(min_count):
    texts = [*TEXTS[:40], "a_b \\ _\\_ naïve\u2028text", " 'quoted' \"so\"", "two\nlines"]
    assert learn(texts, min_count=min_count).tokens == slow_learn(texts, min_count)


@given(st.lists(tricky, min_size=1).filter(any), st.integers(1, 4))
@settings(deadline=None, max_examples=50)
def test_learning_from_any_text(texts, min_count):
    learned = learn(texts, min_count=min_count)
    assert learned.tokens == slow_learn(texts, min_count)
    assert [learned.decode(learned.encode(text)) for text in texts] == texts


@pytest.fixture(scope="module")
def sizes():
    """Return the sizes that minimum counts give."""
    return [len(learn(TEXTS, min_count=minimum)) for minimum in range(1, 100)]


@pytest.mark.parametrize("size", [10, 60, 300, 500, 800, 5000])
def test_size_is_as_close_as_minimum_counts_allow(sizes, size):
    away = abs(len(learn(TEXTS, size)) - size)
    assert away <= max(size / 100, min(abs(possible - size) for possible in sizes))


def test_learning_is_independent_of_order():
    counts = Counter(token for text in reversed(TEXTS) for token in subwords.split(text))
    assert Subwords.learn(counts, 500).tokens == learn(TEXTS, 500).tokens
    assert learn(TEXTS[::-1], 500).tokens == learn(iter(TEXTS), 500).tokens


def test_long_run_of_one_character():
    run = "=" * 2000
    learned = learn([*TEXTS, run], min_count=3)
    assert max(map(len, learned.tokens)) == 100  # not the 1998 that come 3 times
    assert learned.decode(learned.encode(run)) == run


def test_rejects_empty_text_and_invalid_count():
    with pytest.raises(DataError, match="no text"):
        learn(["", ""])
    with pytest.raises(ValueError, match="min_count is 0"):
        learn(TEXTS, min_count=0)


def test_file_round_trip(tmp_path):
    path = tmp_path / "made" / "vocabulary.subwords"
    odd = Subwords([*SMALL.tokens, "''", '"', "\r", "\x85", "\u2028", "<EOS>_", "漢", " '"])
    odd.write(path)
    assert Subwords.read(path).tokens == odd.tokens
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    LEARNED.write(path)
    assert Subwords.read(path).encode(TEXTS[0]) == LEARNED.encode(TEXTS[0])


@pytest.mark.parametrize(
    "text",
    [
        FILE.removesuffix("\n"),
        FILE.replace("\n", "\r\n"),
        FILE.replace("'the_'", '"the_"'),
        FILE.replace("'<pad>'\n'<EOS>'", "'<pad>_'\n'<EOS>_'"),
    ],
)
def test_accepts_variants_of_the_file_format(tmp_path, text):
    (tmp_path / "file").write_bytes(text.encode())
    assert Subwords.read(tmp_path / "file").tokens == SMALL.tokens


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends before line 2.*must begin with"),
        ("'<pad>'\n", "ends before line 2.*must begin with"),
        (FILE.removeprefix("'<pad>'\n"), "line 1 is not '<pad>'"),
        (FILE.replace("'<EOS>'\n", ""), "line 2 is not '<EOS>'"),
        ("\ufeff" + FILE, "line 1 is not a quoted subtoken"),
        (FILE.replace("'th'\n", "\n"), "line 4 is empty"),
        (FILE.replace("'th'\n", "  \r\n"), "line 4 is empty"),
        (FILE + "\n", f"line {len(SMALL) + 1} is empty"),
        (FILE.replace("'th'", "th"), "line 4 is not a quoted subtoken .*'th'"),
        (FILE.replace("'th'", "'th\""), "line 4 is not a quoted subtoken"),
        (FILE.replace("'th'", "''"), "line 4 is not a quoted subtoken"),
        (FILE.replace("'th'", "'"), "line 4 is not a quoted subtoken"),
        (FILE.replace("'th'", "'the_'"), "line 4 repeats line 3 .'the_'.: keep one"),
        (FILE + "'<EOS>'\n", f"line {len(SMALL) + 1} repeats line 2"),
        (FILE.replace("'7'\n", ""), "lacks the subtokens 7, "),
        (FILE[: FILE.index("'_'")], r"lacks the subtokens _ ; u 0 1 .* 9, .*learn it again"),
        (FILE.replace("'th'", "'t\udcff'"), "line 4 is not UTF-8"),
    ],
)
def test_rejects_invalid_files(tmp_path, text, message):
    path = tmp_path / "vocabulary.subwords"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=message) as caught:
        Subwords.read(path)
    assert caught.value.exit_code == Exit.DATA
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_missing_file_and_unwritable_folder(tmp_path):
    with pytest.raises(DataError, match="nowhere is missing: put"):
        Subwords.read(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"Cannot write .*name another place"):
        SMALL.write(tmp_path / "file" / "vocabulary")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
