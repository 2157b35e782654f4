"""Guess which name was meant by one that does not exist."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_MAX_GUESSES = 3
_MIN_SIMILARITY = 0.75  # difflib's ratio: one wrong letter in a word of four
_MIN_PART = 4  # characters of a word that stands for a longer name


def closest(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that resemble `name`, the most similar first, regardless of case."""
    by_lower = {choice.lower(): choice for choice in known}
    matches = get_close_matches(name.lower(), by_lower, _MAX_GUESSES, _MIN_SIMILARITY)
    return [by_lower[match] for match in matches]


def choose_one_of(name: str, known: Sequence[str], prefix: str = "") -> str:
    """Return the remedy for a `name` that is not known: the closest of the known names, if any, and all of them.

    `prefix` stands before the guess, such as "scale=".
    """
    guesses = closest(name, known)
    guess = f"did you mean {prefix}{guesses[0]}? Choose" if guesses else "choose"
    return f"{guess} one of {', '.join(known)}"


def closest_keys(key: str, known: Sequence[str]) -> list[str]:
    """Return the known dotted keys that may be meant by `key`: at most three, of the first rule that finds any.

    The rules compare the last parts: they are the same, that of `key` is several words of the other (`batch_size` for
    global_batch_size), they are similar, it is the other's initials (`lr` for learning_rate), or one of its words.
    """
    last = key.rpartition(".")[2].lower()
    last_parts = {name: name.rpartition(".")[2].lower() for name in known}
    similar = set(closest(last, set(last_parts.values())))
    has_words = {name: len(last) >= _MIN_PART and f"_{last}_" in f"_{part}_" for name, part in last_parts.items()}
    rules = (
        lambda name: last_parts[name] == last,
        lambda name: "_" in last and has_words[name],
        lambda name: last_parts[name] in similar,
        lambda name: "".join(word[0] for word in last_parts[name].split("_") if word) == last,
        lambda name: has_words[name],
    )
    for rule in rules:
        if matches := [name for name in known if rule(name)]:
            return matches[:_MAX_GUESSES]
    return []
