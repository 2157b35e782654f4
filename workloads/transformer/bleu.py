"""Uncased BLEU as computed by MLPerf's Transformer reference, whose target refers to this score."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

_MAX_ORDER = 4  # of n-grams


class UncasedBleu:
    """Corpus BLEU of raw text with one reference for each hypothesis, whose n-grams it counts once.

    Papineni et al. 2002 with n-grams up to 4. An order without a match is smoothed as in NIST's mteval (method 3 of
    Chen and Cherry 2014).
    """

    def __init__(self, references: Sequence[str]) -> None:
        tokenized = [tokenize(reference.lower()) for reference in references]
        self._length = sum(map(len, tokenized))
        self._counts = [[Counter(_ngrams(tokens, 1 + index)) for index in range(_MAX_ORDER)] for tokens in tokenized]

    def score(self, hypotheses: Sequence[str]) -> float:
        """Return the BLEU, from 0 to 1, which is 0 if no hypothesis has 4 tokens.

        Raises `ValueError` for more or fewer hypotheses than references.
        """
        if len(self._counts) != len(hypotheses):
            raise ValueError(
                f"{len(self._counts)} references and {len(hypotheses)} hypotheses: give one reference each."
            )
        matches, possible = [0] * _MAX_ORDER, [0] * _MAX_ORDER
        hypothesis_length = 0
        for counts_by_order, hypothesis in zip(self._counts, hypotheses, strict=True):
            tokens = tokenize(hypothesis.lower())
            hypothesis_length += len(tokens)
            for index, known in enumerate(counts_by_order):
                possible[index] += max(len(tokens) - index, 0)
                found = Counter(ngram for ngram in _ngrams(tokens, index + 1) if ngram in known)
                matches[index] += sum(min(count, known[ngram]) for ngram, count in found.items())
        if not all(possible):
            return 0.0
        brevity = min(0.0, 1 - self._length / hypothesis_length)
        return math.exp(_mean_log_precision(matches, possible) + brevity)


def tokenize(text: str) -> list[str]:
    """Split one sentence as NIST's mteval-v14: symbols stand alone, and so does punctuation unless between digits.

    Quirks are kept so that scores are comparable: the period of a text that ends in a number stays with the number, and
    a punctuation mark that follows another one and precedes a digit may stay with the digit. A backslash is punctuation
    as in Unicode and mteval; the reference's pattern misses it because it is not escaped.
    """
    after_non_digit, before_non_digit = _patterns("".join(sorted(filter(_is_punctuation, set(text)))))
    # A match consumes both characters, so of two marks in a row the first pattern sees only one: the second quirk.
    text = after_non_digit.sub(r"\1 \2 ", text)
    text = before_non_digit.sub(r" \1 \2", text)
    return text.translate(_SPACED_SYMBOLS).split()


def _ngrams(tokens: list[str], order: int) -> Iterator[tuple[str, ...]]:
    return zip(*(tokens[start:] for start in range(order)), strict=False)


def _mean_log_precision(matches: list[int], possible: list[int]) -> float:
    """Return the mean log precision of all orders; the k-th order without a match has precision 1 / (2^k possible)."""
    total, unmatched_orders = 0.0, 0
    for num_matches, num_possible in zip(matches, possible, strict=True):
        if num_matches == 0:
            unmatched_orders += 1
        total += math.log(num_matches / num_possible if num_matches else 0.5**unmatched_orders / num_possible)
    return total / len(matches)


@cache
def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P")


@lru_cache(4096)
def _patterns(punctuation: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns of these marks after and before a character that is not a digit.

    `re` has no Unicode categories, and listing all members would take half a second.
    """
    marks = f"([{re.escape(punctuation)}])" if punctuation else "((?!))"
    return re.compile(rf"(\D){marks}"), re.compile(rf"{marks}(\D)")


class _SpacedSymbols(dict[int, str]):
    """A table of `str.translate` that puts spaces around symbols."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        is_symbol = unicodedata.category(character).startswith("S")
        self[code] = f" {character} " if is_symbol else character
        return self[code]


_SPACED_SYMBOLS = _SpacedSymbols()
