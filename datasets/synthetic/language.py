"""A synthetic language pair with a grammar, as plain text: a model must learn word order, gender, case and number.

The source has the order article, adjectives, noun within a phrase and subject, verb, object, adverb, place within a
clause. The target puts adjectives after the noun, the verb second in a main clause (after an early adverb, if there is
one, else after the subject), first in a question (after a particle) and last in a subordinate clause. Its articles,
adjectives and relative pronouns agree with the noun in number, case and gender, which the noun itself does not show.
One preposition has a translation for each gender, and every sixth transitive verb has two by the gender of its object.
Endings mark the parts of speech:

    source   noun -, plural -s; adjective -r; adverb -l; verb -t, plural -n
    target   noun -, plural -et; adverb -e; verb -u, plural -un;
             article, adjective, relative pronoun: -a, -o or -i by gender, then -m as an object, then -s in the plural

Stems end in a vowel in the source and in a consonant in the target. Function words have one syllable, others more.
"""

import random
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple

from ...runner.core.atomic_files import atomic_directory

_MAX_WORDS = 25  # of a source sentence
_MAX_LEXICON = 9000  # a third of the words has two of the source's 60 syllables
_COMMA = (",", ",")
_GENDERS = "aoi"
_SUBJECT, _OBJECT = "", "m"
_MAIN, _QUESTION, _SUBORDINATE = range(3)
_SOURCE_SYLLABLES = (tuple("bdfgklmnpstv"), "aeiou", ("",))
_TARGET_SYLLABLES = (("h", "j", "kv", "r", "st", "tr", "w", "z", "þ", "ð", "fl", "gr"), "aeiouy", tuple("fgklr"))

_Token = tuple[str, str]  # a source word form and its translation
_Clause = tuple[list[_Token], list[_Token]]  # the same tokens in source order and in target order


@dataclass
class TranslationSpec:
    """Size of a parallel text and of its vocabulary.

    Every noun and verb has two source forms. There are 15 function words in addition.
    """

    num_train: int
    """Sentence pairs for training."""
    num_test: int
    """Sentence pairs of the test set."""
    num_nouns: int = 150
    """Number of nouns."""
    num_verbs: int = 60
    """Number of verbs."""
    num_adjectives: int = 60
    """Number of adjectives."""
    num_adverbs: int = 20
    """Number of adverbs."""
    zipf_exponent: float = 1.0
    """Exponent of the word frequencies, which fall as rank^-zipf_exponent."""
    seed: int = 1
    """Seed of the generator."""

    def __post_init__(self) -> None:
        """Reject values that cannot be generated."""
        if min(self.num_train, self.num_test) < 1 or not 0 <= self.zipf_exponent <= 2:
            raise ValueError("num_train and num_test must be 1 or more, zipf_exponent 0 to 2.")
        if self.num_nouns < 9 or min(self.num_verbs, self.num_adjectives, self.num_adverbs) < 6:
            raise ValueError("num_nouns must be 9 or more, num_verbs, num_adjectives and num_adverbs 6 or more.")
        num_words = self.num_nouns + self.num_verbs + self.num_adjectives + self.num_adverbs
        if num_words > _MAX_LEXICON:
            raise ValueError(f"{num_words} nouns, verbs, adjectives and adverbs are more than {_MAX_LEXICON}.")


def write_parallel_text(folder: Path, spec: TranslationSpec) -> None:
    """Write `folder`/{train,test}.{source,target}, a sentence a line, atomically. Equal specs give equal bytes."""
    with atomic_directory(folder) as temporary:
        pairs = generate_pairs(spec)
        for split, num_pairs in (("test", spec.num_test), ("train", spec.num_train)):
            with (
                (temporary / f"{split}.source").open("w", encoding="utf-8", newline="\n") as sources,
                (temporary / f"{split}.target").open("w", encoding="utf-8", newline="\n") as targets,
            ):
                for source, target in islice(pairs, num_pairs):
                    sources.write(source + "\n")
                    targets.write(target + "\n")


def generate_pairs(spec: TranslationSpec) -> Iterator[tuple[str, str]]:
    """Yield (source, target): first `num_test` distinct pairs, then `num_train` others, which may repeat."""
    for source, target, punctuation in _generate_sentences(spec):
        yield (
            _join_words([token[0] for token in source], punctuation),
            _join_words([token[1] for token in target], punctuation),
        )


def word_translations(spec: TranslationSpec) -> dict[str, str]:
    """Return the most frequent translation in this text of each source word form, in lower case."""
    counts = Counter(token for source, _, _ in _generate_sentences(spec) for token in source if token != _COMMA)
    return dict(token for token, _ in reversed(counts.most_common()))


def _generate_sentences(spec: TranslationSpec) -> Iterator[tuple[list[_Token], list[_Token], str]]:
    """Yield tokens in both orders and the final punctuation: first the test sentences, then the training sentences."""
    generator = _SentenceGenerator(spec)
    test: set[tuple[str, ...]] = set()
    written = 0
    while written < spec.num_test + spec.num_train:
        (source, target), punctuation = generator.generate_sentence()
        key = (*(token[0] for token in source), punctuation)
        if key in test or sum(token is not _COMMA for token in source) > _MAX_WORDS:
            continue
        if written < spec.num_test:
            test.add(key)
        written += 1
        yield source, target, punctuation


def _join_words(words: list[str], punctuation: str) -> str:
    """Return the words as a sentence with a capital letter and punctuation."""
    text = " ".join(words).replace(" ,", ",").replace(",,", ",").rstrip(",")
    return f"{text[0].upper()}{text[1:]}{punctuation}"


class _Word(NamedTuple):
    """An entry of the lexicon; `targets` are its translations by the gender of the noun that determines them."""

    source: str
    targets: tuple[str, ...]
    gender: int = 0
    is_early: bool = False  # for an adverb: it begins the target's main clause


class _Phrase(NamedTuple):
    """A noun phrase in both orders, with the gender and number that other words must agree with."""

    source: list[_Token]
    target: list[_Token]
    gender: int
    is_plural: bool


_NO_PHRASE = _Phrase([], [], 1, False)


class _WordList:
    """Words in order of falling frequency; the frequent ones are shorter."""

    def __init__(self, words: list[_Word], zipf_exponent: float, generator: random.Random) -> None:
        self._words, self._random = words, generator.random
        total = sum(rank**-zipf_exponent for rank in range(1, len(words) + 1))
        self._bounds = list(accumulate(rank**-zipf_exponent / total for rank in range(1, len(words))))

    def draw(self) -> _Word:
        return self._words[bisect(self._bounds, self._random())]


class _Lexicon:
    """All words of the language pair, by part of speech."""

    def __init__(self, spec: TranslationSpec, generator: random.Random) -> None:
        self._zipf_exponent, self._generator = spec.zipf_exponent, generator
        self._stem_generator = random.Random(f"words {spec.seed}")
        self._stems: set[str] = set()
        self.determiners = self._words(3, 1)
        self.prepositions = self._words(6, 1, ambiguous=(0, 3))
        self.coordinators = self._words(2, 1)
        self.subordinators = self._words(3, 1)
        self.pronoun = self._entry(1, 0, 1)
        self.particle = self._coin(_TARGET_SYLLABLES, 1)
        self.nouns = self._words(spec.num_nouns)
        self.transitive = self._words(spec.num_verbs - spec.num_verbs // 3, ambiguous=(2, 2))
        self.intransitive = self._words(spec.num_verbs // 3)
        self.adjectives = self._words(spec.num_adjectives)
        self.adverbs = self._words(spec.num_adverbs)

    def _words(self, count: int, syllables: int = 0, ambiguous: tuple[int, int] = (-1, 1)) -> _WordList:
        """Return `count` words of so many syllables (0: two or three).

        `ambiguous` is (rank modulo 6, number of translations) of the words with several translations.
        """
        words = []
        for rank in range(count):
            length = syllables or (2 if rank < count // 3 else 3)
            words.append(self._entry(length, rank, ambiguous[1] if rank % 6 == ambiguous[0] else 1))
        return _WordList(words, self._zipf_exponent, self._generator)

    def _entry(self, syllables: int, rank: int, translations: int) -> _Word:
        """Return a new word; with two translations, the first is for gender 0 and the second for the others."""
        targets = [self._coin(_TARGET_SYLLABLES, syllables) for _ in range(translations)]
        by_gender = tuple(targets[min(gender, translations - 1)] for gender in range(len(_GENDERS)))
        gender = self._stem_generator.randrange(len(_GENDERS))
        return _Word(self._coin(_SOURCE_SYLLABLES, syllables), by_gender, gender, is_early=rank % 2 == 0)

    def _coin(self, inventory: tuple[tuple[str, ...], str, tuple[str, ...]], syllables: int) -> str:
        """Return a new stem that no other word has."""
        onsets, vowels, codas = inventory
        choice = self._stem_generator.choice
        while True:
            stem = "".join(choice(onsets) + choice(vowels) for _ in range(syllables)) + choice(codas)
            if stem not in self._stems:
                self._stems.add(stem)
                return stem


class _SentenceGenerator:
    """Draws sentences at random."""

    def __init__(self, spec: TranslationSpec) -> None:
        generator = random.Random(f"sentences {spec.seed}")
        self._lexicon, self._random = _Lexicon(spec, generator), generator.random

    def generate_sentence(self) -> tuple[_Clause, str]:
        """Return a main clause or question, sometimes with a second clause, and the final punctuation."""
        question, more = self._random() < 0.15, self._random()
        source, target = self._clause(_QUESTION if question else _MAIN)
        punctuation = "?" if question else "."
        if more > 0.3 or (question and more > 0.2):
            return (source, target), punctuation
        subordinate = more < 0.2
        entry = (self._lexicon.subordinators if subordinate else self._lexicon.coordinators).draw()
        link = [_COMMA] * subordinate + [(entry.source, entry.targets[0])]
        second = self._clause(_SUBORDINATE if subordinate else _MAIN)
        return (source + link + second[0], target + link + second[1]), punctuation

    def _clause(self, kind: int) -> _Clause:
        """Return subject, verb and optional parts; only main clauses and questions have relative clauses."""
        relative_probability = 0.0 if kind == _SUBORDINATE else 0.12
        subject = self._phrase(_SUBJECT, relative_probability)
        direct_object = self._phrase(_OBJECT, relative_probability) if self._random() < 0.65 else _NO_PHRASE
        verb = self._verb(subject.is_plural, direct_object)
        drawn = self._lexicon.adverbs.draw() if self._random() < 0.35 else None
        adverb = [(f"{drawn.source}l", f"{drawn.targets[0]}e")] if drawn else []
        place, target_place = self._place() if self._random() < 0.35 else ([], [])
        source = [*subject.source, verb, *direct_object.source, *adverb, *place]
        rest = direct_object.target + target_place
        if kind == _SUBORDINATE:
            return source, [*subject.target, *adverb, *rest, verb]
        if kind == _QUESTION:
            return source, [("", self._lexicon.particle), verb, *subject.target, *adverb, *rest]
        if drawn and drawn.is_early:
            return source, [*adverb, verb, *subject.target, *rest]
        return source, [*subject.target, verb, *adverb, *rest]

    def _phrase(self, case: str, relative_probability: float = 0.0) -> _Phrase:
        """Return a noun with article, up to two adjectives and, with this probability, a relative clause."""
        noun, plural, draw = self._lexicon.nouns.draw(), self._random() < 0.35, self._random()
        ending = f"{_GENDERS[noun.gender]}{case}{'s' if plural else ''}"
        article = self._lexicon.determiners.draw()
        first = (article.source, article.targets[0] + ending)
        drawn = [self._lexicon.adjectives.draw() for _ in range((draw < 0.45) + (draw < 0.12))]
        adjectives = list(dict.fromkeys((f"{word.source}r", word.targets[0] + ending) for word in drawn))
        named = (f"{noun.source}s", f"{noun.targets[0]}et") if plural else (noun.source, noun.targets[0])
        phrase = _Phrase([first, *adjectives, named], [first, named, *adjectives[::-1]], noun.gender, plural)
        if self._random() >= relative_probability:
            return phrase
        source, target = self._relative(phrase)
        return _Phrase(phrase.source + source, phrase.target + target, noun.gender, plural)

    def _relative(self, head: _Phrase) -> _Clause:
        """Return a relative clause, between commas, in which `head` is the subject or the object."""
        if self._random() < 0.6:
            case, other = _SUBJECT, self._phrase(_OBJECT) if self._random() < 0.6 else _NO_PHRASE
            verb = self._verb(head.is_plural, other)
            source = [verb, *other.source]
        else:
            case, other = _OBJECT, self._phrase(_SUBJECT)
            verb = self._verb(other.is_plural, head)
            source = [*other.source, verb]
        ending = f"{_GENDERS[head.gender]}{case}{'s' if head.is_plural else ''}"
        pronoun = (self._lexicon.pronoun.source, self._lexicon.pronoun.targets[0] + ending)
        return [_COMMA, pronoun, *source, _COMMA], [_COMMA, pronoun, *other.target, verb, _COMMA]

    def _verb(self, is_plural: bool, direct_object: _Phrase) -> _Token:
        """Return a verb form for the subject's number; the gender of the object may determine the translation."""
        entry = (self._lexicon.transitive if direct_object.source else self._lexicon.intransitive).draw()
        stem = entry.targets[direct_object.gender]
        return (f"{entry.source}n", f"{stem}un") if is_plural else (f"{entry.source}t", f"{stem}u")

    def _place(self) -> _Clause:
        """Return a preposition, one of which is translated by gender, and its noun phrase."""
        phrase, entry = self._phrase(_OBJECT), self._lexicon.prepositions.draw()
        preposition = (entry.source, entry.targets[phrase.gender])
        return [preposition, *phrase.source], [preposition, *phrase.target]
