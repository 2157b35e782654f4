"""GPT's windows of text: each pass covers the text once, on several ranks and shards; errors in the files."""

import numpy as np
import pytest
import torch

from timetrial.datasets.formats import token_shards
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.gpt import token_windows
from timetrial.workloads.gpt.data import GPTData, SyntheticGPTData

CONTEXT = 16


@pytest.fixture
def make_data(tmp_path):
    """Write shards, each of consecutive numbers from a multiple of 1,000, and open their data."""

    def build(train=(1000,), validation=(200,), *, batch=61, ranks=(0, 1), seed=1, **settings):
        names = []
        for split, sizes in (("train", train), ("val", validation)):
            names.append([str(tmp_path / f"{split}_{number}.bin") for number in range(len(sizes))])
            for number, (name, size) in enumerate(zip(names[-1], sizes, strict=True)):
                token_shards.write(name, 1000 * number + np.arange(size))
        settings = {"vocabulary_size": 65536, "context": CONTEXT} | settings
        chosen = GPTData.Settings(*names, cache_dir=str(tmp_path), **settings)
        GPTData.prepare_data(chosen, lambda *progress: None)
        return opened(chosen, batch, ranks, seed)

    return build


def opened(settings, batch, ranks=(0, 1), seed=1):
    data = GPTData(
        settings,
        global_batch_size=batch,
        sharding=BatchSharding(*ranks),
        device=torch.device("cpu"),
        seeds=seeds.derive_streams(seed),
    )
    data.open()
    return data


def windows_of(data, *epochs):
    """Return the windows that one rank trains in the epochs: int64 [N, context + 1]."""
    steps = [step for epoch in epochs for step in data.train_batches(epoch)]
    return torch.cat([batch.inputs for step in steps for batch in step])


def starts_of(data, *epochs):
    """Return the first token of each window, in order."""
    return windows_of(data, *epochs)[:, 0].tolist()


@pytest.mark.parametrize("tokens", [1000, 160, 175, 176])
def test_pass_covers_the_text_once_after_a_shift(make_data, tokens):
    count = tokens // CONTEXT - 1
    data = make_data([tokens], batch=count)
    assert (data.steps_per_epoch, data.train_size) == (1, count)
    shifts = set()
    for epoch in range(1, 300):
        starts = starts_of(data, epoch)
        shift = min(starts)
        assert sorted(starts) == list(range(shift, shift + count * CONTEXT, CONTEXT))
        shifts.add(shift)
    assert shifts == set(range(CONTEXT))
    assert windows_of(data, 1).dtype == torch.int64


def test_targets_are_the_next_tokens(make_data):
    windows = windows_of(make_data(), 1)
    assert windows.shape == (61, CONTEXT + 1)
    assert torch.equal(windows[:, 1:], windows[:, :-1] + 1)


def test_leftover_windows_of_a_pass_are_dropped(make_data):
    data = make_data(batch=7)
    assert (data.steps_per_epoch, data.train_size) == (8, 56)
    assert [len(step[0].inputs) for step in data.train_batches(1)] == [7] * 8
    starts = starts_of(data, 3)
    assert len(set(starts)) == 56
    assert len({start % CONTEXT for start in starts}) == 1
    assert set(starts) < set(starts_of(make_data(), 3))


def test_order_and_shift_depend_on_seed_and_epoch_alone(make_data):
    data = make_data()
    assert torch.equal(windows_of(data, 2), windows_of(make_data(), 2))
    assert torch.equal(windows_of(data, 2), windows_of(data, 2))
    orders = [np.argsort(starts_of(make_data(seed=seed), epoch)).tolist() for seed in (1, 2) for epoch in (1, 2)]
    assert len({tuple(order) for order in [*orders, range(61)]}) == 5
    assert len({min(starts_of(make_data(seed=seed), 1)) for seed in range(30)}) > 5


@pytest.mark.parametrize("epoch_windows", [8, 61, 63, 130])
def test_epochs_continue_through_the_text(make_data, epoch_windows):
    """Epochs shorter, as long as and longer than a pass: no window repeats before the pass ends."""
    data = make_data(batch=2, epoch_windows=epoch_windows)
    size = epoch_windows // 2 * 2
    assert data.train_size == size
    starts = starts_of(data, *range(1, 2 + 183 // size))
    assert starts[:183] == starts_of(make_data(), 1, 2, 3)
    assert starts_of(data, 3) == starts[2 * size : 3 * size] or len(starts) < 3 * size


def test_no_window_crosses_a_shard(make_data):
    """With shards that are empty, too short for a window, or just long enough."""
    sizes = [100, 0, 31, 32, 33, 333]
    data = make_data(sizes, batch=26)
    shifts = set()
    for epoch in range(1, 50):
        windows = windows_of(data, epoch)
        assert torch.equal(windows[:, 1:], windows[:, :-1] + 1)
        shards, starts = windows[:, 0] // 1000, windows[:, 0] % 1000
        assert torch.bincount(shards, minlength=6).tolist() == [5, 0, 0, 1, 1, 19]
        assert all(starts[shards == shard].max() + CONTEXT < sizes[shard] for shard in (0, 3, 4, 5))
        shifts.add(tuple(int(starts[shards == shard].min()) for shard in (0, 3, 4, 5)))
    assert all(len(set(shift)) > 5 for shift in zip(*shifts, strict=True))
    assert sum(len(set(shift)) > 1 for shift in shifts) > 40  # each shard is shifted by itself


def test_text_on_the_host_gives_the_same_batches(make_data, monkeypatch):
    sizes = {"train": [100, 0, 31, 333], "validation": [5, 64, 0, 100], "batch": 5}
    on_device = make_data(**sizes)
    monkeypatch.setattr(token_windows, "_MAX_DEVICE_TOKENS", 0)
    on_host = make_data(**sizes)
    assert on_device._train._ids is not None
    assert on_host._train._ids is on_host._validation._ids is None
    assert torch.equal(windows_of(on_device, 1, 2), windows_of(on_host, 1, 2))
    for batches in zip(on_device.eval_batches(), on_host.eval_batches(), strict=True):
        assert torch.equal(*(batch.inputs for batch in batches))
    assert windows_of(on_host, 1).dtype == torch.int64


@pytest.mark.parametrize("ranks", [1, 2, 3, 20])
def test_evaluation_predicts_each_token_once(make_data, ranks):
    """All but the first token and the rest of a window at the end of each shard; a rank may have nothing to do."""
    sizes = [100, 5, 65, 64, 17]
    parts = [make_data(validation=sizes, ranks=(rank, ranks), eval_batch_size=4) for rank in range(ranks)]
    batches = [batch for data in parts for batch in data.eval_batches()]
    windows = torch.cat([batch.inputs for batch in batches])
    assert torch.equal(windows[:, 1:], windows[:, :-1] + 1)
    expected = [
        1000 * shard + token for shard, size in enumerate(sizes) for token in range(1, (size - 1) // 16 * 16 + 1)
    ]
    assert windows[:, 1:].flatten().tolist() == expected
    assert parts[0].eval_size == len(windows) == 14
    assert sum(batch.weight for batch in batches) == 14
    assert all(len(batch.inputs) <= 4 and batch.global_samples == 14 for batch in batches)


@pytest.fixture
def text_data(tmp_path):
    def build(train, validation=None, **settings):
        (tmp_path / "train.txt").write_text(train)
        if validation is not None:
            (tmp_path / "val.txt").write_text(validation)
        names = [[str(tmp_path / "train.txt")], [str(tmp_path / "val.txt")] if validation is not None else []]
        chosen = GPTData.Settings(*names, cache_dir=str(tmp_path / "cache"), **{"context": CONTEXT} | settings)
        GPTData.prepare_data(chosen, lambda *progress: None)
        return opened(chosen, 3)

    return build


def test_text_is_encoded_by_characters(text_data):
    train, validation = "To be, or not to be 😀!\n" * 20, "not to 😀 be\n" * 3
    data = text_data(train, validation)
    characters = sorted(set(train))
    assert data.vocab_size == len(characters) == 12
    assert data.padded_vocab_size == 64
    for window in windows_of(data, 1).tolist():
        assert "".join(characters[token] for token in window) in train
    evaluated = torch.cat([batch.inputs[:, :-1] for batch in data.eval_batches()])
    assert "".join(characters[token] for token in evaluated.flatten()) == validation[:32]


def test_last_tenth_of_the_text_is_for_validation(text_data):
    """Its characters need not occur before it."""
    train = "".join(chr(ord("a") + number % 7) for number in range(900)) + "xyz" * 33 + "x"
    data = text_data(train)
    assert data.vocab_size == 10
    assert set(windows_of(data, *range(1, 30)).flatten().tolist()) == set(range(7))
    batches = torch.cat([batch.inputs for batch in data.eval_batches()])
    assert set(batches.flatten().tolist()) == {7, 8, 9}
    assert data.eval_size == len(batches) == 99 // CONTEXT


def test_evaluation_of_the_first_windows(make_data):
    sizes = [100, 5, 65, 64, 17]
    whole = [batch.inputs for batch in make_data(validation=sizes).eval_batches()]
    first = [batch.inputs for batch in make_data(validation=sizes, eval_windows=8).eval_batches()]
    assert torch.equal(torch.cat(first), torch.cat(whole)[:8])
    on_ranks = [make_data(validation=sizes, eval_windows=8, ranks=(rank, 3)) for rank in range(3)]
    assert torch.equal(torch.cat([batch.inputs for data in on_ranks for batch in data.eval_batches()]), first[0])
    assert [data.eval_size for data in on_ranks] == [8, 8, 8]
    assert make_data(validation=sizes, eval_windows=15).eval_size == 14


def test_names_of_shards_may_have_wildcards(make_data, tmp_path):
    sizes = [100, 40, 200]
    data = make_data(sizes, batch=16)
    names = [f"{tmp_path}/train_?.bin"], [f"{tmp_path}/val_*.bin"]
    settings = GPTData.Settings(*names, CONTEXT, 65536, cache_dir=str(tmp_path))
    GPTData.prepare_data(settings, lambda *progress: None)
    assert starts_of(opened(settings, 16), 1) == starts_of(data, 1)


def test_synthetic_batches_have_the_shapes_of_real_ones(make_data):
    """Both those of real data for the warm-up and those of data=synthetic, for which nothing is prepared."""
    real = make_data(batch=6, ranks=(1, 2, 2), eval_batch_size=4)
    settings = GPTData.Settings(["no.bin"], ["no.bin"], 16, 50257, cache_dir="nowhere", eval_batch_size=4)
    SyntheticGPTData.prepare_data(settings, lambda *progress: None)
    keywords = {"sharding": real._sharding, "device": torch.device("cpu"), "seeds": seeds.derive_streams(1)}
    synthetic = SyntheticGPTData(settings, global_batch_size=6, **keywords)
    synthetic.open()
    assert (synthetic.vocab_size, synthetic.padded_vocab_size) == (50257, 50304)
    expected = next(iter(real.train_batches(1)))
    for micro_batches in (
        next(real.warm_up_steps()),
        next(synthetic.warm_up_steps()),
        next(iter(synthetic.train_batches(1))),
    ):
        assert [batch.inputs.shape for batch in micro_batches] == [batch.inputs.shape for batch in expected]
        assert [batch.weight for batch in micro_batches] == [batch.weight for batch in expected]
        assert max(batch.inputs.max() for batch in micro_batches) < 65536
    first = next(iter(real.eval_batches()))
    for batch in (
        *real.warm_up_eval_batches(),
        *synthetic.warm_up_eval_batches(),
        next(iter(synthetic.eval_batches())),
    ):
        assert batch.inputs.dtype == first.inputs.dtype
        assert batch.inputs.shape[1] == first.inputs.shape[1]


@pytest.mark.parametrize("ranks", [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("eval_batch_size", [4, 5, 1000])
def test_warm_up_has_the_shapes_of_the_evaluation(make_data, ranks, eval_batch_size):
    data = make_data(batch=6, ranks=(*ranks, 1), eval_batch_size=eval_batch_size)
    shapes = dict.fromkeys(batch.inputs.shape for batch in data.eval_batches())
    warm = list(data.warm_up_eval_batches())
    assert [batch.inputs.shape for batch in warm] == list(shapes)
    assert [batch.is_partial for batch in warm] == [False, True][: len(warm)]


@pytest.mark.integration
def test_text_is_opened_after_the_clock_has_started(data_files_opened_before_run_start):
    small = ["recipe.data.generate.num_train=600", "recipe.data.generate.num_test=40", "recipe.training.hidden_size=16"]
    assert data_files_opened_before_run_start(["workload=gpt", *small]) == []
