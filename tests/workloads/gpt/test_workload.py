"""GPT's schedule, optimizer, score and settings; training on several ranks, and after a resume."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch

from timetrial.runner.config.validation import build_settings
from timetrial.runner.core.errors import ConfigurationError, Exit
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import Batch, BatchSharding, TextPredictions
from timetrial.workloads.gpt.data import GPTData
from timetrial.workloads.gpt.workload import GPTWorkload

REQUIRED = {
    "hidden_size": 16,
    "num_heads": 2,
    "num_layers": 2,
    "learning_rate": 0.01,
    "min_learning_rate": 0.001,
    "warmup_samples": 40,
    "decay_samples": 400,
}


def make_workload(data=None, **changes):
    data = data or SimpleNamespace(global_batch_size=4, padded_vocab_size=64, context=8)
    return GPTWorkload(GPTWorkload.Settings(**REQUIRED | changes), data)


def expected_rate(update, warmup, decay, highest, lowest):
    """Return the learning rate of the 1-based update: a line to the highest, half a cosine to the lowest."""
    if update <= warmup:
        return highest * update / (warmup + 1)
    if update > decay:
        return lowest
    angle = math.pi * (update - 1 - warmup) / (decay - warmup)
    return (highest + lowest) / 2 + (highest - lowest) / 2 * math.cos(angle)


@pytest.mark.parametrize(
    ("warmup_samples", "decay_samples", "lowest", "updates"),
    [
        (40, 400, 0.001, (10, 100)),
        (0, 400, 0.001, (0, 100)),
        (38, 399, 0.0, (10, 100)),  # rounded to updates: 9.5 to the even 10
        (40, 44, 0.005, (10, 11)),  # falls in one update
        (40, 400, 0.01, (10, 100)),  # never falls
    ],
)
def test_learning_rate_of_every_update(warmup_samples, decay_samples, lowest, updates):
    schedule = {"warmup_samples": warmup_samples, "decay_samples": decay_samples, "min_learning_rate": lowest}
    workload = make_workload(**schedule)
    optimizer, scheduler = workload.build_optimizer(torch.nn.Linear(2, 2), 10)
    params = workload.mlperf_params()
    assert (params["opt_learning_rate_warmup_steps"], params["opt_learning_rate_decay_steps"]) == updates
    for update in range(1, 131):
        for group in optimizer.param_groups:
            assert group["lr"] == pytest.approx(expected_rate(update, *updates, 0.01, lowest), rel=1e-12), update
        optimizer.step()
        scheduler.step()


def test_schedule_has_these_values():
    """Of 10 updates of warm-up and 100 in all: a formula with another offset would differ."""
    factor = make_workload().lr_factor
    assert [factor(step) for step in (0, 9, 10)] == pytest.approx([1 / 11, 10 / 11, 1.0])
    assert [factor(step) for step in (55, 100, 5000)] == pytest.approx([0.55, 0.1, 0.1])


@pytest.mark.parametrize("bias", [True, False])
def test_matrices_decay_and_each_parameter_is_in_one_group(bias):
    workload = make_workload(bias=bias, weight_decay=0.3, beta_1=0.8, beta_2=0.97, epsilon=1e-7)
    model = workload.build_model()
    optimizer, _ = workload.build_optimizer(model, 10)
    decays = {}
    for group in optimizer.param_groups:
        assert (group["betas"], group["eps"], group["amsgrad"]) == ((0.8, 0.97), 1e-7, False)
        for parameter in group["params"]:
            assert id(parameter) not in decays
            decays[id(parameter)] = group["weight_decay"]
    expected = {name: 0.3 if parameter.ndim == 2 else 0.0 for name, parameter in model.named_parameters()}
    assert {name: decays.pop(id(parameter)) for name, parameter in model.named_parameters()} == expected
    assert not decays
    assert (expected["embedding"], expected["position"], expected["norm.weight"]) == (0.3, 0.3, 0.0)
    assert ("layers.0.qkv.bias" in expected) == bias


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_size": 10, "num_heads": 4},
        {"hidden_size": 0},
        {"num_heads": 0},
        {"num_layers": 0},
        {"learning_rate": 0.0, "min_learning_rate": 0.0},
        {"learning_rate": -0.1},
        {"min_learning_rate": 0.011},
        {"min_learning_rate": -1e-9},
        {"epsilon": 0.0},
        {"warmup_samples": -1},
        {"warmup_samples": 400},
        {"beta_1": 1.0},
        {"beta_2": 1.0},
        {"beta_2": -0.1},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"weight_decay": -0.1},
    ],
)
def test_rejects_values_out_of_range(wrong):
    with pytest.raises(ConfigurationError, match=r"^recipe\.training: .*must be") as caught:
        build_settings(GPTWorkload, REQUIRED | wrong, "recipe.training")
    assert caught.value.exit_code == Exit.CONFIGURATION
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("right", [{}, {"min_learning_rate": 0.0}, {"warmup_samples": 399}, {"warmup_samples": 0}])
def test_accepts_the_ends_of_the_ranges(right):
    assert build_settings(GPTWorkload, REQUIRED | right, "").decay_samples == 400


def test_score_is_the_mean_over_the_tokens_of_all_ranks():
    parts = [TextPredictions((6.0, 10), 10), TextPredictions((3.0, 2), 2), TextPredictions((0.0, 0), 0)]
    assert make_workload().score(parts) == {"log_perplexity": 0.75}


def test_prediction_sums_losses_and_tokens():
    workload = make_workload()
    torch.manual_seed(1)
    model = workload.build_model().eval()
    windows = torch.randint(60, (5, 9))
    with torch.no_grad():
        batches = [Batch(part, len(part) * 8, 5) for part in windows.split(2)]
        part = workload.predict(model, batches)
        assert part.tokens == part.predictions[1] == 40
        assert part.predictions[0] == pytest.approx(model(windows).item(), rel=1e-6)
        assert workload.predict(model, []) == TextPredictions((0.0, 0), 0)


@pytest.fixture
def text(tmp_path):
    generator = torch.Generator().manual_seed(1)
    letters = torch.randint(20, (1500,), generator=generator).tolist()
    path = tmp_path / "text.txt"
    path.write_text("".join(chr(ord("a") + letter) for letter in letters))
    return path


@pytest.fixture
def build(build_engine, text):
    """Build an engine on a small text: 20 windows a pass of which an epoch has 12, in 3 updates."""

    def build_on_text(*overrides):
        model = [
            "hidden_size=16",
            "num_heads=2",
            "num_layers=1",
            "warmup_samples=8",
            "decay_epochs=null",
            "decay_samples=40",
        ]
        data = [f"train=[{text}]", "validation=[]", "context=64", "generate=null", "epoch_windows=12"]
        return build_engine(
            "workload=gpt",
            "scale=embedded",
            "recipe.global_batch_size=4",
            f"data_dir={text.parent}",
            *(f"++recipe.training.{override}" for override in model),
            *(f"++recipe.data.{override}" for override in data),
            *overrides,
        )

    return build_on_text


def test_resume_in_the_middle_of_an_epoch_continues_bit_by_bit(build):
    """Of the second of three epochs; with dropout, which draws random numbers, and across a pass over the text."""
    overrides = ["seed=1", "++recipe.training.dropout=0.3", "tuning.micro_batch_size=2"]
    engine = build(*overrides)
    losses, state = [], None
    for epoch in (1, 2, 3):
        for update, _ in enumerate(engine.train_epoch(epoch)):
            if (epoch, update) == (2, 0):
                state = copy.deepcopy(engine.state_dict())
        losses.append(engine.synchronize().loss)
    resumed = build(*overrides)
    resumed.load_state_dict(state)
    assert list(resumed.train_epoch(1)) == []
    for epoch, updates in ((2, 2), (3, 3)):
        assert len(list(resumed.train_epoch(epoch))) == updates
        assert resumed.synchronize().loss == losses[epoch - 1]
    for expected, weight in zip(engine.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(weight, expected)
    assert resumed.optimizer.param_groups[0]["lr"] == engine.optimizer.param_groups[0]["lr"]
    assert resumed.evaluate().quality == engine.evaluate().quality


def test_ranks_and_micro_batches_train_like_one_batch(text):
    """The parts are the windows of the whole batch, and their losses and gradients add up to those of it."""
    settings = GPTData.Settings([str(text)], context=16, cache_dir=str(text.parent))
    GPTData.prepare_data(settings, lambda *progress: None)

    def steps(rank, ranks, accumulation):
        data = GPTData(
            settings,
            global_batch_size=11,
            sharding=BatchSharding(rank, ranks, accumulation),
            device=torch.device("cpu"),
            seeds=seeds.derive_streams(1),
        )
        data.open()
        return list(data.train_batches(1)), data

    (whole, data) = steps(0, 1, 1)
    workload = make_workload(data)
    torch.manual_seed(1)
    model = workload.build_model().double()

    def gradients(batches):
        model.zero_grad()
        losses = [workload.compute_loss(model, batch) / batch.global_weight for batch in batches]
        sum(losses).backward()
        return [sum(losses).detach(), *(parameter.grad for parameter in model.parameters())]

    for ranks, accumulation in ((2, 1), (2, 3), (3, 1)):
        parts = [steps(rank, ranks, accumulation)[0] for rank in range(ranks)]
        for number, ((batch,), *of_ranks) in enumerate(zip(whole, *parts, strict=True)):
            micro_batches = [part for of_rank in of_ranks for part in of_rank]
            assert len(micro_batches) == ranks * accumulation
            assert torch.equal(torch.cat([part.inputs for part in micro_batches]), batch.inputs)
            assert sum(part.weight for part in micro_batches) == batch.weight == 11 * 16
            shared = {(part.global_samples, part.global_weight, part.global_tokens) for part in micro_batches}
            assert shared == {(11, 11 * 16, 11 * 16)}
            if number == 0:
                expected = gradients([batch])
                added = [sum(values) for values in zip(*map(gradients, of_ranks), strict=True)]
                torch.testing.assert_close(added, expected, rtol=1e-9, atol=1e-15)
