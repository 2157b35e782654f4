"""Learn the merges of byte-pair encoding (Sennrich et al. 2016), those of subword-nmt's `learn_bpe`, but faster.

subword-nmt looks through all pairs before each merge; here a heap returns the most frequent one.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

_Pair = tuple[str, str]
_MIN_COUNT = 2  # of a pair that is merged
_END_OF_WORD = "</w>"


def learn_merges(counts: Mapping[str, int], size: int) -> list[_Pair]:
    """Return up to `size` merges, in order, learned from the counts of words.

    Each merge joins the most frequent pair of neighboring pieces; of equally frequent pairs the last in the order of
    code points.
    """
    words = [[*word[:-1], word[-1] + _END_OF_WORD] for word in counts]
    word_counts = list(counts.values())
    pair_counts, words_of = Counter[_Pair](), defaultdict[_Pair, set[int]](set)
    for number, word in enumerate(words):
        for pair in pairwise(word):
            pair_counts[pair] += word_counts[number]
            words_of[pair].add(number)
    heap = [_entry(pair, count) for pair, count in pair_counts.items()]
    heapq.heapify(heap)
    merges: list[_Pair] = []
    while heap and len(merges) < size:
        negative_count, _, pair = heapq.heappop(heap)
        if -negative_count != pair_counts[pair]:  # the pair has a later entry
            continue
        if -negative_count < _MIN_COUNT:
            break
        merges.append(pair)
        changes = defaultdict[_Pair, int](int)
        for number in words_of.pop(pair):
            for new in _merge(words[number], pair, word_counts[number], changes):
                words_of[new].add(number)
        pair_counts[pair] = changes[pair] = 0
        for changed, change in changes.items():
            if change:
                pair_counts[changed] += change
                heapq.heappush(heap, _entry(changed, pair_counts[changed]))
    return merges


def _entry(pair: _Pair, count: int) -> tuple[int, tuple[tuple[int, ...], tuple[int, ...]], _Pair]:
    return -count, (_reversed_order(pair[0]), _reversed_order(pair[1])), pair


@cache
def _reversed_order(piece: str) -> tuple[int, ...]:
    """Return a key by which pieces sort in the reverse of their own order; its end sorts after any character."""
    return *(-ord(character) for character in piece), 1


def _merge(word: list[str], pair: _Pair, count: int, changes: dict[_Pair, int]) -> Iterator[_Pair]:
    """Merge a pair in a word in place; add what that changes of the counts of pairs, and yield the new pairs."""
    left, right = pair
    position = 0
    while position + 1 < len(word):
        if word[position] == left and word[position + 1] == right:
            word[position : position + 2] = [left + right]
            for old, new in _neighbors(word, position, pair):
                changes[old] -= count
                changes[new] += count
                yield new
        position += 1


def _neighbors(word: list[str], position: int, pair: _Pair) -> Iterator[tuple[_Pair, _Pair]]:
    """Yield the pairs of a merged piece and its neighbors, each as it was before the merge and as it is after it."""
    piece = word[position]
    if position:
        before = word[position - 1]
        yield (before, pair[0]), (before, piece)
    if position + 1 < len(word):
        after = word[position + 1]
        yield (pair[1], after), (piece, after)
