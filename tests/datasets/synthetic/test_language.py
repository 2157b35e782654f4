"""The generated language pair: whole, repeatable, grammatical by its own text, and not translated word by word."""

import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
import sacrebleu

from timetrial.datasets.synthetic import language
from timetrial.datasets.synthetic.language import Grammar, dictionary, draw_pairs, path_of, write_pairs
from timetrial.runner.core.errors import DataError

SMALL = Grammar(sentences=300, test=60)
FILES = ["test.source", "test.target", "train.source", "train.target"]
# The target's parts of speech, as the module's documentation tells them; function words have one syllable.
VOWEL, STEM = "[aeiouy]", "[^aeiouy ]+"
ARTICLE = f"{STEM}{VOWEL}{STEM}([aoi])(m?)(s?)"
NOUN = f"((?:{STEM}{VOWEL}){{2,3}}[fgklr])(et)?"
ADJECTIVE = f"(?:{STEM}{VOWEL}){{2,3}}[fgklr][aoi]m?s?"
PHRASE = re.compile(f"{ARTICLE} {NOUN}((?: {ADJECTIVE})*)(?= |$)")


@pytest.fixture(scope="module")
def grammar():
    return Grammar(sentences=3000, test=500)


@pytest.fixture(scope="module")
def pairs(grammar):
    return list(draw_pairs(grammar))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def words(sentence):
    return re.sub(r"[,.?]", "", sentence.lower())


def simple(pairs):
    """Pairs of one clause without a comma: one verb in the source (the only words in -t and -n)."""
    return [(s, t) for s, t in pairs if "," not in s and len(re.findall(r"[tn]\b", s)) == 1]


def phrases(target):
    """(gender, case, number, noun, plural ending, adjectives) of the target's noun phrases, with where they lie."""
    return [(match.groups(), match.span()) for match in PHRASE.finditer(words(target))]


def test_equal_settings_give_equal_bytes_and_others_another_folder(tmp_path):
    changed = [SMALL, Grammar(300, 60, seed=2), Grammar(300, 60, nouns=151), Grammar(301, 60)]
    assert len({path_of(tmp_path / "language", grammar) for grammar in changed}) == 4
    for name, grammar in (("one", SMALL), ("two", SMALL), ("three", changed[1])):
        write_pairs(tmp_path / name, grammar)
    one = contents(tmp_path / "one")
    assert sorted(one) == FILES
    assert one == contents(tmp_path / "two")
    assert not set(one.values()) & set(contents(tmp_path / "three").values())
    assert len(list(tmp_path.iterdir())) == 3


def test_another_seed_has_other_words():
    first, second = (dictionary(Grammar(300, 60, seed=seed)) for seed in (1, 2))
    assert len(first.items() & second.items()) == 0


def test_lines_are_pairs_and_no_test_sentence_is_for_training(tmp_path):
    write_pairs(tmp_path / "language", SMALL)
    text = {name: (tmp_path / "language" / name).read_text("utf-8").splitlines() for name in FILES}
    assert [len(text[name]) for name in FILES] == [60, 60, 300, 300]
    drawn = list(draw_pairs(SMALL))
    assert drawn[:60] == list(zip(text["test.source"], text["test.target"], strict=True))
    assert drawn[60:] == list(zip(text["train.source"], text["train.target"], strict=True))
    assert len(set(text["test.source"])) == 60
    assert not set(text["test.source"]) & set(text["train.source"])


def test_a_tiny_lexicon_does_not_leak_the_test():
    tiny = Grammar(sentences=2000, test=500, nouns=9, verbs=6, adjectives=6, adverbs=6, skew=2.0)
    sources = [source for source, _ in draw_pairs(tiny)]
    assert len(set(sources[:500])) == 500
    assert not set(sources[:500]) & set(sources[500:])


def test_sentences_have_the_promised_form(pairs):
    lengths = [len(source.split()) for source, _ in pairs]
    assert (min(lengths), max(lengths)) >= (3, 20)
    assert max(lengths) <= 25
    assert sum(6 <= length <= 14 for length in lengths) > 0.55 * len(lengths)
    letters = "a-zþð"
    form = re.compile(f"[{letters.upper()}][{letters}]*(?:,? [{letters}]+)+[.?]")
    assert all(form.fullmatch(sentence) for pair in pairs for sentence in pair)
    assert all(source[-1] == target[-1] for source, target in pairs)


def test_the_lexicon_has_the_settings_size_and_long_tails():
    grammar = Grammar(20000, 1000)
    assert 300 <= len(dictionary(grammar)) <= 2 * 150 + 2 * 60 + 60 + 20 + 15
    counts = defaultdict(int)
    for source, _ in draw_pairs(grammar):
        for word in words(source).split():
            counts[word] += 1
    ordered = sorted(counts.values(), reverse=True)
    assert ordered[0] > 20 * ordered[len(ordered) // 5] > 20 * ordered[len(ordered) // 2]
    many = Grammar(10, 10, nouns=4000, verbs=2000, adjectives=2000, adverbs=1000)
    assert len(list(draw_pairs(many))) == 20


def test_the_source_verb_agrees_with_its_subject(pairs):
    for source, _ in simple(pairs):
        before = re.match(r"(\w+ )+?(?=\w+[tn]\b)", source)[0].split()
        assert re.findall(r"\w+([tn])\b", source) == ["n" if before[-1].endswith("s") else "t"]


def test_a_target_noun_has_one_gender_and_all_agrees_with_it(pairs):
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


def test_a_target_main_clause_has_the_verb_second_and_a_question_first(pairs):
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


def test_a_target_subordinate_clause_ends_with_its_verb(pairs):
    """Two clauses with one comma: the second is subordinate, for a relative one in the middle has two."""
    found = 0
    for source, target in pairs:
        first, *second = source.split(",")
        if len(second) == 1 and len(re.findall(r"[tn]\b", second[0])) == len(re.findall(r"[tn]\b", first)) == 1:
            found += 1
            assert re.search(r"un?$", words(target))
    assert found > 100


def test_one_preposition_is_translated_by_the_gender_of_its_noun(pairs):
    """Where it follows the verb at once: two words of one syllable (two letters in the source)."""
    found = defaultdict(lambda: defaultdict(set))
    for source, target in simple(pairs):
        if preposition := re.search(r"[tn] (\w\w) \w\w .*[^l][.?]$", source):
            ((gender, begin),) = [(parts[0], span[0]) for parts, span in phrases(target) if parts[1] == "m"]
            found[preposition[1]][gender].add(words(target)[:begin].split()[-1])
    assert len(found) == 6
    assert all(len(translations) == 1 for by in found.values() for translations in by.values())
    assert sorted(len(set().union(*by.values())) for by in found.values()) == [1, 1, 1, 1, 1, 3]


def test_neither_copying_nor_a_dictionary_translates(grammar, pairs):
    known = dictionary(grammar)
    sources, targets = zip(*pairs[: grammar.test], strict=True)
    substituted = [re.sub(r"\w+", lambda word: known[word[0]], source.lower()).capitalize() for source in sources]
    assert 5 < sacrebleu.corpus_bleu(substituted, [targets]).score < 25
    assert sacrebleu.corpus_bleu(sources, [targets]).score < 2


def test_many_runs_write_one_folder_at_once(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: write_pairs(tmp_path / "language", SMALL), range(8)))
    assert [path.name for path in tmp_path.iterdir()] == ["language"]
    assert sorted(contents(tmp_path / "language")) == FILES


def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(words, mark):
        raise KeyboardInterrupt

    monkeypatch.setattr(language, "_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_pairs(tmp_path / "language", SMALL)
    assert not list(tmp_path.iterdir())


def test_an_unwritable_place_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="set data_dir"):
        write_pairs(tmp_path / "file" / "language", SMALL)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sentences": 0}, "sentences and test must be 1 or more"),
        ({"test": 0}, "sentences and test must be 1 or more"),
        ({"skew": -0.1}, "skew 0 to 2"),
        ({"skew": 2.1}, "skew 0 to 2"),
        ({"nouns": 8}, "nouns must be 9 or more"),
        ({"verbs": 5}, "verbs, adjectives and adverbs 6 or more"),
        ({"adjectives": 5}, "verbs, adjectives and adverbs 6 or more"),
        ({"adverbs": 5}, "verbs, adjectives and adverbs 6 or more"),
        ({"nouns": 8900}, "9040 nouns, verbs, adjectives and adverbs are more than 9000"),
    ],
    ids=str,
)
def test_what_cannot_be_written_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        Grammar(**{"sentences": 10, "test": 10, **changed})
