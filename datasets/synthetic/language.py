"""A toy language pair with a real grammar as plain text files: a model must learn order, gender, case and number.

The source says article adjectives noun, subject verb object adverb place. The target puts adjectives after the noun,
the verb second in a main clause (after an early adverb, if there is one, else after the subject), first in a question
(after a particle) and last in a subordinate clause; its articles, adjectives and relative pronouns agree with the
noun in number, case and gender, which the noun does not show. One preposition has a translation for each gender, every
sixth transitive verb two by the gender of its object. Parts of speech show in the endings:

    source   noun -, plural -s; adjective -r; adverb -l; verb -t, plural -n
    target   noun -, plural -et; adverb -e; verb -u, plural -un;
             article, adjective, relative pronoun: -a, -o or -i by gender, then -m as an object, then -s in the plural

Stems end in a vowel in the source and in a consonant in the target. Function words have one syllable, others more.
"""

import hashlib
import random
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple

from ...runner.core.atomic_files import atomic_directory

_LONGEST = 25  # words of a source sentence
_MOST = 9000  # words of the lexicon: a third has two of the source's 60 syllables
_COMMA = (",", ",")
_GENDERS = "aoi"
_SUBJECT, _OBJECT = "", "m"
_MAIN, _QUESTION, _SUBORDINATE = range(3)
_SOURCE = (tuple("bdfgklmnpstv"), "aeiou", ("",))
_TARGET = (("h", "j", "kv", "r", "st", "tr", "w", "z", "þ", "ð", "fl", "gr"), "aeiouy", tuple("fgklr"))

_Token = tuple[str, str]  # a word form of the source and of the target
_Order = tuple[list[_Token], list[_Token]]  # the same words in the order of the source and of the target


@dataclass
class Grammar:
    """How much text, `sentences` for training and `test` others, and of how many words (frequencies as rank^-`skew`).

    Every noun and verb has two source forms; 15 function words come on top.
    """

    sentences: int
    test: int
    nouns: int = 150
    verbs: int = 60
    adjectives: int = 60
    adverbs: int = 20
    skew: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuses what cannot be written."""
        if min(self.sentences, self.test) < 1 or not 0 <= self.skew <= 2:
            raise ValueError("sentences and test must be 1 or more, skew 0 to 2.")
        if self.nouns < 9 or min(self.verbs, self.adjectives, self.adverbs) < 6:
            raise ValueError("nouns must be 9 or more, verbs, adjectives and adverbs 6 or more.")
        words = self.nouns + self.verbs + self.adjectives + self.adverbs
        if words > _MOST:
            raise ValueError(f"{words} nouns, verbs, adjectives and adverbs are more than {_MOST}.")


def path_of(folder: Path, grammar: Grammar) -> Path:
    """`folder` with a digest of the settings in its name: another text is another folder."""
    digest = hashlib.sha256(repr(sorted(asdict(grammar).items())).encode()).hexdigest()[:8]
    return folder.with_name(f"{folder.name}-{digest}")


def write_pairs(folder: Path, grammar: Grammar) -> None:
    """Writes `folder`/{train,test}.{source,target}, a sentence a line, whole or not at all; equal settings, bytes."""
    with atomic_directory(folder) as temporary:
        pairs = draw_pairs(grammar)
        for split, count in (("test", grammar.test), ("train", grammar.sentences)):
            with (
                (temporary / f"{split}.source").open("w", encoding="utf-8", newline="\n") as sources,
                (temporary / f"{split}.target").open("w", encoding="utf-8", newline="\n") as targets,
            ):
                for source, target in islice(pairs, count):
                    sources.write(source + "\n")
                    targets.write(target + "\n")


def draw_pairs(grammar: Grammar) -> Iterator[tuple[str, str]]:
    """(source, target): first `grammar.test` different ones, then `grammar.sentences` others, which may repeat."""
    for source, target, mark in _sentences(grammar):
        yield _text([token[0] for token in source], mark), _text([token[1] for token in target], mark)


def dictionary(grammar: Grammar) -> dict[str, str]:
    """The most usual translation in this text of each of its source word forms, in small letters."""
    counts = Counter(token for source, _, _ in _sentences(grammar) for token in source if token != _COMMA)
    return dict(token for token, _ in reversed(counts.most_common()))


def _sentences(grammar: Grammar) -> Iterator[tuple[list[_Token], list[_Token], str]]:
    """Both orders and the mark at the end: first the test's sentences, then the training's."""
    speaker = _Speaker(grammar)
    test: set[tuple[str, ...]] = set()
    written = 0
    while written < grammar.test + grammar.sentences:
        (source, target), mark = speaker.sentence()
        key = (*(token[0] for token in source), mark)
        if key in test or sum(token is not _COMMA for token in source) > _LONGEST:
            continue
        if written < grammar.test:
            test.add(key)
        written += 1
        yield source, target, mark


def _text(words: list[str], mark: str) -> str:
    """The words as people write them."""
    text = " ".join(words).replace(" ,", ",").replace(",,", ",").rstrip(",")
    return f"{text[0].upper()}{text[1:]}{mark}"


class _Word(NamedTuple):
    """A dictionary entry; `targets` are by the gender of the noun that decides, if they differ."""

    source: str
    targets: tuple[str, ...]
    gender: int = 0
    early: bool = False  # an adverb that begins the target's main clause


class _Phrase(NamedTuple):
    """A noun phrase in both orders, and what must agree with it."""

    source: list[_Token]
    target: list[_Token]
    gender: int
    plural: bool


_NO_PHRASE = _Phrase([], [], 1, False)


class _Words:
    """Words by falling frequency, the frequent ones shorter."""

    def __init__(self, words: list[_Word], skew: float, generator: random.Random) -> None:
        self._words, self._random = words, generator.random
        total = sum(rank**-skew for rank in range(1, len(words) + 1))
        self._bounds = list(accumulate(rank**-skew / total for rank in range(1, len(words))))

    def draw(self) -> _Word:
        return self._words[bisect(self._bounds, self._random())]


class _Lexicon:
    """All words, and how they are drawn."""

    def __init__(self, grammar: Grammar, generator: random.Random) -> None:
        self._skew, self._generator = grammar.skew, generator
        self._coiner = random.Random(f"words {grammar.seed}")
        self._taken: set[str] = set()
        self.determiners = self._words(3, 1)
        self.prepositions = self._words(6, 1, several=(0, 3))
        self.coordinators = self._words(2, 1)
        self.subordinators = self._words(3, 1)
        self.pronoun = self._entry(1, 0, 1)
        self.particle = self._coin(_TARGET, 1)
        self.nouns = self._words(grammar.nouns)
        self.transitive = self._words(grammar.verbs - grammar.verbs // 3, several=(2, 2))
        self.intransitive = self._words(grammar.verbs // 3)
        self.adjectives = self._words(grammar.adjectives)
        self.adverbs = self._words(grammar.adverbs)

    def _words(self, count: int, syllables: int = 0, several: tuple[int, int] = (-1, 1)) -> _Words:
        """`count` words of so many syllables (0: two or three); `several`: ranks (modulo 6), how many translations."""
        words = []
        for rank in range(count):
            length = syllables or (2 if rank < count // 3 else 3)
            words.append(self._entry(length, rank, several[1] if rank % 6 == several[0] else 1))
        return _Words(words, self._skew, self._generator)

    def _entry(self, syllables: int, rank: int, translations: int) -> _Word:
        """A new word; one with two translations takes the first for gender 0 and the second for the others."""
        targets = [self._coin(_TARGET, syllables) for _ in range(translations)]
        by_gender = tuple(targets[min(gender, translations - 1)] for gender in range(len(_GENDERS)))
        gender = self._coiner.randrange(len(_GENDERS))
        return _Word(self._coin(_SOURCE, syllables), by_gender, gender, early=rank % 2 == 0)

    def _coin(self, inventory: tuple[tuple[str, ...], str, tuple[str, ...]], syllables: int) -> str:
        """A stem that no other word has."""
        onsets, vowels, codas = inventory
        choice = self._coiner.choice
        while True:
            stem = "".join(choice(onsets) + choice(vowels) for _ in range(syllables)) + choice(codas)
            if stem not in self._taken:
                self._taken.add(stem)
                return stem


class _Speaker:
    """Draws sentences."""

    def __init__(self, grammar: Grammar) -> None:
        generator = random.Random(f"sentences {grammar.seed}")
        self._lexicon, self._random = _Lexicon(grammar, generator), generator.random

    def sentence(self) -> tuple[_Order, str]:
        """Both orders and the mark: a main clause or question, sometimes with a second clause."""
        question, more = self._random() < 0.15, self._random()
        source, target = self._clause(_QUESTION if question else _MAIN)
        mark = "?" if question else "."
        if more > 0.3 or (question and more > 0.2):
            return (source, target), mark
        subordinate = more < 0.2
        entry = (self._lexicon.subordinators if subordinate else self._lexicon.coordinators).draw()
        link = [_COMMA] * subordinate + [(entry.source, entry.targets[0])]
        second = self._clause(_SUBORDINATE if subordinate else _MAIN)
        return (source + link + second[0], target + link + second[1]), mark

    def _clause(self, kind: int) -> _Order:
        """Subject, verb and what may follow; relative clauses hang on main clauses only."""
        relative = 0.0 if kind == _SUBORDINATE else 0.12
        subject = self._phrase(_SUBJECT, relative)
        acted = self._phrase(_OBJECT, relative) if self._random() < 0.65 else _NO_PHRASE
        verb = self._verb(subject.plural, acted)
        drawn = self._lexicon.adverbs.draw() if self._random() < 0.35 else None
        adverb = [(f"{drawn.source}l", f"{drawn.targets[0]}e")] if drawn else []
        place, target_place = self._place() if self._random() < 0.35 else ([], [])
        source = [*subject.source, verb, *acted.source, *adverb, *place]
        rest = acted.target + target_place
        if kind == _SUBORDINATE:
            return source, [*subject.target, *adverb, *rest, verb]
        if kind == _QUESTION:
            return source, [("", self._lexicon.particle), verb, *subject.target, *adverb, *rest]
        if drawn and drawn.early:
            return source, [*adverb, verb, *subject.target, *rest]
        return source, [*subject.target, verb, *adverb, *rest]

    def _phrase(self, case: str, relative: float = 0.0) -> _Phrase:
        """A noun with article and up to two adjectives, with a relative clause as likely as `relative`."""
        noun, plural, draw = self._lexicon.nouns.draw(), self._random() < 0.35, self._random()
        ending = f"{_GENDERS[noun.gender]}{case}{'s' if plural else ''}"
        article = self._lexicon.determiners.draw()
        first = (article.source, article.targets[0] + ending)
        drawn = [self._lexicon.adjectives.draw() for _ in range((draw < 0.45) + (draw < 0.12))]
        adjectives = list(dict.fromkeys((f"{word.source}r", word.targets[0] + ending) for word in drawn))
        named = (f"{noun.source}s", f"{noun.targets[0]}et") if plural else (noun.source, noun.targets[0])
        phrase = _Phrase([first, *adjectives, named], [first, named, *adjectives[::-1]], noun.gender, plural)
        if self._random() >= relative:
            return phrase
        source, target = self._relative(phrase)
        return _Phrase(phrase.source + source, phrase.target + target, noun.gender, plural)

    def _relative(self, head: _Phrase) -> _Order:
        """A clause between commas in which `head` is the subject or the object."""
        if self._random() < 0.6:
            case, other = _SUBJECT, self._phrase(_OBJECT) if self._random() < 0.6 else _NO_PHRASE
            verb = self._verb(head.plural, other)
            source = [verb, *other.source]
        else:
            case, other = _OBJECT, self._phrase(_SUBJECT)
            verb = self._verb(other.plural, head)
            source = [*other.source, verb]
        ending = f"{_GENDERS[head.gender]}{case}{'s' if head.plural else ''}"
        pronoun = (self._lexicon.pronoun.source, self._lexicon.pronoun.targets[0] + ending)
        return [_COMMA, pronoun, *source, _COMMA], [_COMMA, pronoun, *other.target, verb, _COMMA]

    def _verb(self, plural: bool, acted: _Phrase) -> _Token:
        """A form for a subject in that number; the gender of what is acted on may decide the translation."""
        entry = (self._lexicon.transitive if acted.source else self._lexicon.intransitive).draw()
        stem = entry.targets[acted.gender]
        return (f"{entry.source}n", f"{stem}un") if plural else (f"{entry.source}t", f"{stem}u")

    def _place(self) -> _Order:
        """A preposition, one of which is translated by gender, and its noun phrase."""
        phrase, entry = self._phrase(_OBJECT), self._lexicon.prepositions.draw()
        preposition = (entry.source, entry.targets[phrase.gender])
        return [preposition, *phrase.source], [preposition, *phrase.target]
