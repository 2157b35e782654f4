"""The transcriptions in plain PyTorch learn, and compute what the rules say."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from timetrial.scripts.parity import resnet50, transformer

SETTINGS = SimpleNamespace(
    hidden_size=32, num_heads=4, ffn_dim=64, num_layers=1, dropout=0.0, beam_size=4, length_penalty=0.6,
    extra_decode_length=5,
)  # fmt: skip


def test_smoothed_loss_is_the_cross_entropy_with_smoothed_labels():
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 5, 20), torch.randint(1, 20, (3, 5))
    labels[0, 3:] = 0
    wanted = torch.full((3, 5, 20), 0.1 / 19).scatter(-1, labels[..., None], 0.9)
    losses = -(wanted * logits.double().log_softmax(-1)).sum(-1)
    loss = transformer._smoothed_loss(logits, labels, 0.1)
    assert float(loss) == pytest.approx(float(losses[labels != 0].mean()), rel=1e-5)


def test_padding_and_later_words_change_nothing():
    torch.manual_seed(0)
    model = transformer._Transformer(20, SETTINGS).eval()
    source, target = torch.randint(2, 20, (2, 6)), torch.randint(2, 20, (2, 7))
    logits = model(source, target)
    padded = model(torch.nn.functional.pad(source, (0, 3)), torch.cat([target[:, :4], target[:, 4:].flip(1)], 1))
    assert torch.allclose(padded[:, :5], logits[:, :5], atol=1e-5)


def test_search_with_one_hypothesis_takes_the_likeliest_words():
    torch.manual_seed(1)
    model = transformer._Transformer(20, SETTINGS).eval()
    source = torch.randint(2, 20, (3, 6))
    greedy = SimpleNamespace(**vars(SETTINGS) | {"beam_size": 1, "extra_decode_length": 0})
    with torch.no_grad():
        found = transformer._search(model, source, greedy)
        for sentence, words in zip(source, found, strict=True):
            ids = torch.tensor([*words, 0])[None]
            expected = model(sentence[None], ids)[0, : len(words)].argmax(-1).tolist()
            assert words == expected


def test_batches_hold_each_pair_once_and_no_more_tokens_than_asked():
    generator = np.random.default_rng(0)
    pairs = [(np.zeros(generator.integers(1, 9)), np.zeros(generator.integers(1, 9))) for _ in range(300)]
    batches = list(transformer._batches(pairs, 64, generator))
    assert sorted(number for batch in batches for number in batch) == list(range(300))
    for batch in batches:
        assert max(sum(len(pairs[number][side]) for number in batch) for side in (0, 1)) <= 64


def test_crops_lie_within_the_image_and_cover_what_they_should():
    generator = np.random.default_rng(0)
    for _ in range(200):
        rows, columns = generator.integers(60, 200, 2).tolist()
        top, left, height, width = resnet50._crop_box(generator, rows, columns, 0.35)
        assert top >= 0
        assert left >= 0
        assert top + height <= rows
        assert left + width <= columns
        assert height * width >= 0.35 * rows * columns


def test_learning_rate_rises_and_falls():
    training = SimpleNamespace(
        learning_rate=0.4, warmup_epochs=2, end_epoch=10, end_learning_rate=1e-4, decay_power=2.0
    )
    rates = [resnet50._learning_rate(step, 5, training) for step in range(52)]
    assert rates[0] == 0
    assert rates[5] == pytest.approx(0.2)
    assert rates[10] == pytest.approx(0.4)
    assert rates[-1] == pytest.approx(1e-4)
    assert rates[30] == pytest.approx((0.4 - 1e-4) * (1 - 20 / 41) ** 2 + 1e-4)
