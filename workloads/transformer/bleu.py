"""Uncased BLEU as MLPerf's Transformer reference scores its translations (the target is stated in this figure)."""

import math
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache

_ORDERS = 4  # of n-grams


def uncased_bleu(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Corpus BLEU, 0 to 1, of one hypothesis a reference: text that is neither lower-cased nor tokenised yet.

    Papineni et al. 2002, with n-grams up to 4 and, for each order without a match, the smoothing of NIST's mteval
    (method 3 of Chen and Cherry 2014). It is 0 if no hypothesis has 4 tokens. Raises `ValueError` for unequal counts.
    """
    if len(references) != len(hypotheses):
        raise ValueError(f"{len(references)} references and {len(hypotheses)} hypotheses: give one reference each.")
    matched, possible = [0] * _ORDERS, [0] * _ORDERS
    reference_length = hypothesis_length = 0
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        expected, given = tokenise(reference.lower()), tokenise(hypothesis.lower())
        reference_length += len(expected)
        hypothesis_length += len(given)
        for order in range(1, _ORDERS + 1):
            found = _ngrams(given, order)
            possible[order - 1] += found.total()
            matched[order - 1] += (found & _ngrams(expected, order)).total()  # "&" clips at the smaller count
    if not all(possible):
        return 0.0
    logarithm = _log_precision(matched, possible) + min(0.0, 1 - reference_length / hypothesis_length)
    return math.exp(logarithm)


def tokenise(text: str) -> list[str]:
    """One sentence cut as NIST's mteval-v14 does: punctuation stands alone unless digits surround it, symbols always.

    Its quirks are kept, or figures would not compare: the stop of a text that ends in a number stays with the number,
    and a mark that follows another mark and precedes a digit may stay with the digit. A backslash is punctuation, as
    Unicode and mteval have it; the reference's pattern misses it, for want of an escape.
    """
    after_no_digit, before_no_digit, symbol = _patterns()
    # Each match takes both characters, so of two marks in a row the first pattern sees only one: see the quirks.
    text = after_no_digit.sub(r"\1 \2 ", text)
    text = before_no_digit.sub(r" \1 \2", text)
    return symbol.sub(r" \1 ", text).split()


def _ngrams(tokens: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[start:] for start in range(order)), strict=False))


def _log_precision(matched: list[int], possible: list[int]) -> float:
    """Logarithm of the geometric mean of the orders' precisions; the k-th without a match has 1/(2^k possible)."""
    total, halvings = 0.0, 0
    for hits, places in zip(matched, possible, strict=True):
        if hits == 0:
            halvings += 1
        total += math.log(hits / places if hits else 0.5**halvings / places)
    return total / len(matched)


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Punctuation after a non-digit, punctuation before a non-digit, symbol.

    `re` knows no Unicode categories, so they are spelt out; on first use, because that goes through all of Unicode.
    """
    members: dict[str, list[str]] = {"P": [], "S": []}
    for character in map(chr, range(sys.maxunicode + 1)):
        members.get(unicodedata.category(character)[0], []).append(re.escape(character))
    punctuation, symbols = (f"([{''.join(members[kind])}])" for kind in "PS")
    return re.compile(rf"(\D){punctuation}"), re.compile(rf"{punctuation}(\D)"), re.compile(symbols)
