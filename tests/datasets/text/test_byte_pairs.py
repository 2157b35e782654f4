"""Merges against subword-nmt, which learned those of MLPerf's vocabulary."""

import io
import random

from subword_nmt.learn_bpe import learn_bpe

from timetrial.datasets.text.byte_pairs import learn_merges


def merges_of_subword_nmt(counts, size, capsys):
    codes = io.StringIO()
    learn_bpe(io.StringIO("\n".join(f"{word} {count}" for word, count in counts.items())), codes, size, is_dict=True)
    capsys.readouterr()
    return [tuple(line.split(" ")) for line in codes.getvalue().splitlines()[1:]]


def test_merges_equal_those_of_subword_nmt(capsys):
    generator = random.Random(0)
    for alphabet in ("ab", "abcde", "aéñbc漢", "a😀é"):
        for _ in range(25):
            words = ["".join(generator.choices(alphabet, k=generator.randint(1, 12))) for _ in range(40)]
            counts = {word: generator.randint(1, 9) for word in words}
            for size in (1, 20, 500):
                assert learn_merges(counts, size) == merges_of_subword_nmt(counts, size, capsys)


def test_words_without_pairs_have_no_merges():
    assert learn_merges({"a": 5}, 3) == learn_merges({}, 3) == []
