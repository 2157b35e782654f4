"""The synthetic language pair is reproducible and grammatical, and cannot be translated word by word."""

import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
import sacrebleu

from timetrial.datasets.synthetic import language
from timetrial.datasets.synthetic.language import (
    TranslationSpec,
    generate_pairs,
    word_translations,
    write_parallel_text,
)
from timetrial.datasets.synthetic.spec_digest import path_with_digest
from timetrial.runner.core.errors import DataError

SMALL = TranslationSpec(num_train=300, num_test=60)
FILES = ["test.source", "test.target", "train.source", "train.target"]
# The target's parts of speech, as documented in the module; function words have one syllable.
VOWEL, STEM = "[aeiouy]", "[^aeiouy ]+"
ARTICLE = f"{STEM}{VOWEL}{STEM}([aoi])(m?)(s?)"
NOUN = f"((?:{STEM}{VOWEL}){{2,3}}[fgklr])(et)?"
ADJECTIVE = f"(?:{STEM}{VOWEL}){{2,3}}[fgklr][aoi]m?s?"
PHRASE = re.compile(f"{ARTICLE} {NOUN}((?: {ADJECTIVE})*)(?= |$)")


@pytest.fixture(scope="module")
def spec():
    return TranslationSpec(num_train=3000, num_test=500)


@pytest.fixture(scope="module")
def pairs(spec):
    return list(generate_pairs(spec))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def words(sentence):
    return re.sub(r"[,.?]", "", sentence.lower())


def simple(pairs):
    """Return pairs of one clause without a comma: one verb in the source (the only words in -t and -n)."""
    return [(s, t) for s, t in pairs if "," not in s and len(re.findall(r"[tn]\b", s)) == 1]


def phrases(target):
    """Return (gender, case, number, noun, plural ending, adjectives) and position of the target's noun phrases."""
    return [(match.groups(), match.span()) for match in PHRASE.finditer(words(target))]


def test_equal_specs_give_equal_bytes_and_others_another_path(tmp_path):
    changed = [
        SMALL,
        TranslationSpec(300, 60, seed=2),
        TranslationSpec(300, 60, num_nouns=151),
        TranslationSpec(301, 60),
    ]
    assert len({path_with_digest(tmp_path / "language", spec) for spec in changed}) == 4
    for name, spec in (("one", SMALL), ("two", SMALL), ("three", changed[1])):
        write_parallel_text(tmp_path / name, spec)
    one = contents(tmp_path / "one")
    assert sorted(one) == FILES
    assert one == contents(tmp_path / "two")
    assert not set(one.values()) & set(contents(tmp_path / "three").values())
    assert len(list(tmp_path.iterdir())) == 3


def test_seed_changes_all_words():
    first, second = (word_translations(TranslationSpec(300, 60, seed=seed)) for seed in (1, 2))
    assert len(first.items() & second.items()) == 0


def test_files_are_parallel_and_splits_disjoint(tmp_path):
    write_parallel_text(tmp_path / "language", SMALL)
    text = {name: (tmp_path / "language" / name).read_text("utf-8").splitlines() for name in FILES}
    assert [len(text[name]) for name in FILES] == [60, 60, 300, 300]
    drawn = list(generate_pairs(SMALL))
    assert drawn[:60] == list(zip(text["test.source"], text["test.target"], strict=True))
    assert drawn[60:] == list(zip(text["train.source"], text["train.target"], strict=True))
    assert len(set(text["test.source"])) == 60
    assert not set(text["test.source"]) & set(text["train.source"])


def test_tiny_lexicon_keeps_splits_disjoint():
    tiny = TranslationSpec(
        num_train=2000, num_test=500, num_nouns=9, num_verbs=6, num_adjectives=6, num_adverbs=6, zipf_exponent=2.0
    )
    sources = [source for source, _ in generate_pairs(tiny)]
    assert len(set(sources[:500])) == 500
    assert not set(sources[:500]) & set(sources[500:])


def test_sentence_format_and_length(pairs):
    lengths = [len(source.split()) for source, _ in pairs]
    assert (min(lengths), max(lengths)) >= (3, 20)
    assert max(lengths) <= 25
    assert sum(6 <= length <= 14 for length in lengths) > 0.55 * len(lengths)
    letters = "a-zþð"
    form = re.compile(f"[{letters.upper()}][{letters}]*(?:,? [{letters}]+)+[.?]")
    assert all(form.fullmatch(sentence) for pair in pairs for sentence in pair)
    assert all(source[-1] == target[-1] for source, target in pairs)


def test_lexicon_size_and_long_tail():
    spec = TranslationSpec(20000, 1000)
    assert 300 <= len(word_translations(spec)) <= 2 * 150 + 2 * 60 + 60 + 20 + 15
    counts = defaultdict(int)
    for source, _ in generate_pairs(spec):
        for word in words(source).split():
            counts[word] += 1
    ordered = sorted(counts.values(), reverse=True)
    assert ordered[0] > 20 * ordered[len(ordered) // 5] > 20 * ordered[len(ordered) // 2]
    many = TranslationSpec(10, 10, num_nouns=4000, num_verbs=2000, num_adjectives=2000, num_adverbs=1000)
    assert len(list(generate_pairs(many))) == 20


def test_the_source_verb_agrees_with_its_subject(pairs):
    for source, _ in simple(pairs):
        before = re.match(r"(\w+ )+?(?=\w+[tn]\b)", source)[0].split()
        assert re.findall(r"\w+([tn])\b", source) == ["n" if before[-1].endswith("s") else "t"]


def test_target_noun_phrases_agree_in_gender(pairs):
    genders, found = defaultdict(set), 0
    for _, target in pairs:
        for (gender, case, plural, noun, ending, adjectives), _ in phrases(target):
            found += 1
            genders[noun].add(gender)
            assert (plural == "s") == (ending == "et")
            assert all(re.search(f"[fgklr]{gender}{case}{plural}$", word) for word in adjectives.split())
    assert found > 1.5 * len(pairs)
    assert len(genders) == 150
    assert {len(of_noun) for of_noun in genders.values()} == {1}
    assert set().union(*genders.values()) == set("aoi")


def test_target_verb_is_second_in_main_clauses_and_first_in_questions(pairs):
    seen = defaultdict(int)
    for source, target in simple(pairs):
        text, spans = words(target), phrases(target)
        verb = re.search(r"\w{5,}?(u|un)(?= |$)", text)
        subject, place = next((parts, span) for parts, span in spans if parts[1] == "")
        assert verb[1] == ("un" if subject[2] else "u")
        before = text[: verb.start()].split()
        if source.endswith("?"):
            seen["question"] += len(before) == 1 and len(re.findall("[aeiouy]", before[0])) == 1
        elif before[0].endswith("e"):
            seen["adverb"] += len(before) == 1 and place[0] == verb.end() + 1
        else:
            seen["subject"] += place == (0, verb.start() - 1)
    assert sum(seen.values()) == len(simple(pairs))
    assert min(seen.values()) > 100


def test_target_verb_is_last_in_subordinate_clauses(pairs):
    """Of two clauses with one comma the second is subordinate: a relative clause has two commas."""
    found = 0
    for source, target in pairs:
        first, *second = source.split(",")
        if len(second) == 1 and len(re.findall(r"[tn]\b", second[0])) == len(re.findall(r"[tn]\b", first)) == 1:
            found += 1
            assert re.search(r"un?$", words(target))
    assert found > 100


def test_one_preposition_is_translated_by_gender(pairs):
    """Looks at prepositions right after the verb: two words of one syllable (two letters in the source)."""
    found = defaultdict(lambda: defaultdict(set))
    for source, target in simple(pairs):
        if preposition := re.search(r"[tn] (\w\w) \w\w .*[^l][.?]$", source):
            ((gender, begin),) = [(parts[0], span[0]) for parts, span in phrases(target) if parts[1] == "m"]
            found[preposition[1]][gender].add(words(target)[:begin].split()[-1])
    assert len(found) == 6
    assert all(len(translations) == 1 for by in found.values() for translations in by.values())
    assert sorted(len(set().union(*by.values())) for by in found.values()) == [1, 1, 1, 1, 1, 3]


def test_copying_and_word_by_word_translation_have_low_bleu(spec, pairs):
    known = word_translations(spec)
    sources, targets = zip(*pairs[: spec.num_test], strict=True)
    substituted = [re.sub(r"\w+", lambda word: known[word[0]], source.lower()).capitalize() for source in sources]
    assert 5 < sacrebleu.corpus_bleu(substituted, [targets]).score < 25
    assert sacrebleu.corpus_bleu(sources, [targets]).score < 2


def test_concurrent_writers_of_one_folder(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: write_parallel_text(tmp_path / "language", SMALL), range(8)))
    assert [path.name for path in tmp_path.iterdir()] == ["language"]
    assert sorted(contents(tmp_path / "language")) == FILES


def test_interruption_leaves_no_files(tmp_path, monkeypatch):
    def interrupt(words, punctuation):
        raise KeyboardInterrupt

    monkeypatch.setattr(language, "_join_words", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_parallel_text(tmp_path / "language", SMALL)
    assert not list(tmp_path.iterdir())


def test_reports_unwritable_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="set data_dir"):
        write_parallel_text(tmp_path / "file" / "language", SMALL)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_train": 0}, "num_train and num_test must be 1 or more"),
        ({"num_test": 0}, "num_train and num_test must be 1 or more"),
        ({"zipf_exponent": -0.1}, "zipf_exponent 0 to 2"),
        ({"zipf_exponent": 2.1}, "zipf_exponent 0 to 2"),
        ({"num_nouns": 8}, "num_nouns must be 9 or more"),
        ({"num_verbs": 5}, "num_verbs, num_adjectives and num_adverbs 6 or more"),
        ({"num_adjectives": 5}, "num_verbs, num_adjectives and num_adverbs 6 or more"),
        ({"num_adverbs": 5}, "num_verbs, num_adjectives and num_adverbs 6 or more"),
        ({"num_nouns": 8900}, "9040 nouns, verbs, adjectives and adverbs are more than 9000"),
    ],
    ids=str,
)
def test_rejects_invalid_spec(changed, message):
    with pytest.raises(ValueError, match=message):
        TranslationSpec(**{"num_train": 10, "num_test": 10, **changed})
