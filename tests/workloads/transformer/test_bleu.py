"""BLEU against values computed by hand and against sacrebleu, whose `intl` tokenization follows the same script."""

import math
import random
import unicodedata

import pytest

from timetrial.workloads.transformer.bleu import UncasedBleu, tokenize

WORDS = ["Der", "die", "Straße", "über", "7", "1999", "3,5", "1.000", "10-jährige", "E-Mail", "„Haus“", "»so«", "can't"]
WORDS += ["U.S.", "(ja)", "5%", "20€", "a+b=c", "...", "?!", "—", "§5", "\\"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", ""),
        ("Hallo, Welt!", "Hallo , Welt !"),
        ("„Nein“, sagte er.", "„ Nein “ , sagte er ."),
        ("3,5 von 1.000", "3,5 von 1.000"),  # between digits
        ("im Jahr 1999. Er", "im Jahr 1999 . Er"),  # before a space
        ("im Jahr 1999.", "im Jahr 1999."),  # quirk: nothing follows
        ("10-jährige E-Mail", "10 - jährige E - Mail"),
        ("5% 20€ a+b", "5 % 20 € a + b"),
        ("5+3 $5", "5 + 3 $ 5"),  # symbols even between digits
        ("x?!y", "x ? ! y"),
        ("x?!5", "x ? !5"),  # quirk: "x?" was one match, so "!" has no preceding character left
        ("x?5", "x ? 5"),
        ("km². Er", "km² . Er"),
        ("km².", "km² ."),  # a superscript is not a digit
        ("a\\b [c] ^-&", "a \\ b [ c ] ^ - &"),
        ("\u00a0a\u2028b\t", "a b"),
    ],
)
def test_tokenize_by_hand(text, tokens):
    assert tokenize(text) == tokens.split(" ") * bool(tokens)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        # Matches of orders 1 to 4 are 5 of 6, 3 of 5, 2 of 4, 1 of 3: their product is 30/360.
        ("The cat sat on the mat", "the cat sat on a mat", (1 / 12) ** 0.25),
        # All precisions are 1; 4 tokens of 6.
        ("a b c d e f", "a b c d", math.exp(1 - 6 / 4)),
        # No brevity penalty, but orders 1 to 4 have 4 of 6, 3 of 5, 2 of 4, 1 of 3: 24/360.
        ("a b c d", "a b c d e f", (1 / 15) ** 0.25),
        # "the" counts only twice, as in the reference: 2 of 5. Then 1/(2*4), 1/(4*3), 1/(8*2): the product is 1/3840.
        ("the cat the dog sat", "the the the the the", (1 / 3840) ** 0.25),
        # No match: 1/(2*5), 1/(4*4), 1/(8*3), 1/(16*2).
        ("a b c d e", "v w x y z", (1 / 122880) ** 0.25),
        # 3 of 4 and 1 of 3, then 1/(2*2) and 1/(4*1): 1/64. Brevity penalty: 4 tokens of 5.
        ("a b x c d", "a b c y", (3 / 4 / 3 / 4 / 4) ** 0.25 * math.exp(1 - 5 / 4)),
        # The comma is a token: 5 of 5, 4 of 4, ...
        ("Guten Tag, Herr Müller", "GUTEN TAG , HERR MÜLLER", 1.0),
        ("a b c d", "a b c", 0.0),  # no 4-gram is possible
        ("a b c d", "", 0.0),
        ("", "a b c d", (1 / 8 / 12 / 16 / 16) ** 0.25),  # 1/(2*4), 1/(4*3), 1/(8*2), 1/(16*1)
        ("", "", 0.0),
    ],
)
def test_scores_by_hand(reference, hypothesis, expected):
    assert UncasedBleu([reference]).score([hypothesis]) == pytest.approx(expected, rel=1e-12)


def test_corpus_score_sums_counts_over_sentences():
    # Orders 1 to 4 have 4+1 of 4+3, 3+0 of 3+2, 2+0 of 2+1, 1+0 of 1+0 matches; 7 tokens of 9. The second sentence has
    # no 4-gram but counts in the other orders.
    score = UncasedBleu(["a b c d", "e f g h i"]).score(["a b c d", "e x y"])
    assert score == pytest.approx((5 / 7 * 3 / 5 * 2 / 3) ** 0.25 * math.exp(1 - 9 / 7), rel=1e-12)
    assert UncasedBleu(["a b c d", "e f"]).score(["a b c d", ""]) == pytest.approx(math.exp(1 - 6 / 4), rel=1e-12)


def test_identical_texts_score_one():
    texts = random_texts(50)
    assert UncasedBleu(texts).score(texts) == 1.0
    assert UncasedBleu(texts).score([text.upper().replace("SS", "ß") for text in texts]) == 1.0


def test_rejects_unequal_counts():
    with pytest.raises(ValueError, match="2 references and 1 hypotheses"):
        UncasedBleu(["a", "b"]).score(["a"])
    assert UncasedBleu([]).score([]) == 0.0


def random_texts(count):
    generator = random.Random(7)
    return [
        " ".join(generator.choices(WORDS, k=generator.randrange(4, 20))) + generator.choice(".!?") for _ in range(count)
    ]


def corrupt(text, generator):
    words = text.split()
    for _ in range(generator.randrange(4)):
        index = generator.randrange(len(words))
        words[index : index + 1] = generator.choice([[], ["x"], [words[index], words[index].upper()]]) or ["y"]
    return " ".join(words[generator.randrange(3) :])


@pytest.mark.parametrize("count", [1, 2, 10, 300])
def test_scores_equal_sacrebleu(count):
    metrics = pytest.importorskip("sacrebleu.metrics")
    generator = random.Random(count)
    references = random_texts(count)
    hypotheses = [corrupt(text, generator) for text in references]
    expected = metrics.BLEU(lowercase=True, tokenize="intl", smooth_method="exp").corpus_score(hypotheses, [references])
    assert UncasedBleu(references).score(hypotheses) == pytest.approx(expected.score / 100, abs=1e-6)
    assert 0.1 < expected.score / 100 < 0.99


def test_smoothed_scores_equal_sacrebleu_except_without_any_match():
    metrics = pytest.importorskip("sacrebleu.metrics")
    sacrebleu = metrics.BLEU(lowercase=True, tokenize="intl", smooth_method="exp")
    for hypothesis in ("the the the the the", "the cat x y z", "dog, cat. the mat", "a b the c", "the cat", ""):
        expected = sacrebleu.corpus_score([hypothesis], [["the cat the dog sat"]]).score / 100
        assert UncasedBleu(["the cat the dog sat"]).score([hypothesis]) == pytest.approx(expected, abs=1e-6)
    # Without any match sacrebleu returns 0 for all smoothing methods; the reference smooths all four orders.
    assert sacrebleu.corpus_score(["v w x y z"], [["a b c d e"]]).score == 0
    assert UncasedBleu(["a b c d e"]).score(["v w x y z"]) > 0


def test_tokens_equal_sacrebleu_except_for_numbers_that_are_not_digits():
    tokenizer = pytest.importorskip("sacrebleu.tokenizers.tokenizer_intl").TokenizerV14International()
    code_points = [*range(0x20, 0x250), *range(0x2000, 0x2065), *range(0x20A0, 0x20C0), *range(0x660, 0x66E)]
    generator = random.Random(2)
    common = "aä0123456789.,-\"'!? "
    num_different = 0
    for _ in range(5000):
        text = "".join(
            generator.choice(common) if generator.random() < 0.7 else chr(generator.choice(code_points))
            for _ in range(generator.randrange(1, 30))
        )
        # sacrebleu's "digit" is any number, like mteval's \p{N}; the reference's is Python's \d, without ², ½ and Ⅳ.
        if any(unicodedata.category(c) in ("No", "Nl") for c in text):
            num_different += tokenize(text) != tokenizer(text).split()
        else:
            assert tokenize(text) == tokenizer(text).split(), text
    assert num_different
    assert (tokenize("5 km²."), tokenizer("5 km².").split()) == (["5", "km²", "."], ["5", "km²."])
