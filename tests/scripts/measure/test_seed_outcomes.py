"""Outcomes of runs by hand, and shares of the variance in simulations with known ones."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from timetrial.runner.record.run_record import RunState
from timetrial.scripts.measure import seed_outcomes, seed_study
from timetrial.scripts.measure.seed_outcomes import Variance

spec = importlib.util.spec_from_file_location("seed_runs", Path(__file__).with_name("seed_runs.py"))
seed_runs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(seed_runs)
train, cross_at = seed_runs.train, seed_runs.cross_at
make_record, write, UNSET = seed_runs.make_record, seed_runs.write, seed_runs.UNSET


# The outcome


def fraction(training, **options):
    return seed_outcomes.fractional_epochs(training, **options)


def test_crossing_is_linear_between_the_last_two_evaluations():
    assert fraction(train({"accuracy": [0.2, 0.4, 0.8]}, {"accuracy": 0.5})) == pytest.approx(2.25)
    assert fraction(train({"accuracy": [0.2, 0.4, 0.8]}, {"accuracy": 0.5}, step=2)) == pytest.approx(4.5)
    assert fraction(train({"accuracy": [0.2, 0.5]}, {"accuracy": 0.5})) == 2
    assert (
        fraction(train({"loss": [3.0, 2.0, 1.0]}, {"loss": 1.25}, lower_is_better=True), lower_is_better=True) == 2.75
    )


def test_first_evaluation_that_meets_the_target_is_its_epoch():
    assert fraction(train({"accuracy": [0.7]}, {"accuracy": 0.5}, step=4)) == 4


def test_latest_of_several_metrics_counts():
    both = {"BBOX": 0.4, "SEGM": 0.3}
    assert fraction(train({"BBOX": [0.2, 0.6], "SEGM": [0.2, 0.5]}, both)) == pytest.approx(1.5)
    assert fraction(train({"BBOX": [0.3, 0.7], "SEGM": [0.1, 0.35]}, both)) == pytest.approx(1.8)
    # SEGM had met its target, fell below it and crossed again.
    assert fraction(train({"BBOX": [0.1, 0.2, 0.6], "SEGM": [0.4, 0.2, 0.325]}, both)) == pytest.approx(2.8)
    assert fraction(train({"BBOX": [0.2, 0.6], "SEGM": [0.6, 0.5]}, both)) == pytest.approx(1.5)


def test_missed_target_has_no_outcome():
    assert math.isnan(fraction(train({"accuracy": [0.2, 0.4]}, {"accuracy": 0.5})))
    records = [
        make_record(cross_at(2.5)),
        make_record(train({"accuracy": [0.2]}, {"accuracy": 0.5})),
        make_record(None),
    ]
    runs = seed_outcomes.tabulate(records)
    assert runs.outcome.tolist() == pytest.approx([math.log(2.5), math.nan, math.nan], nan_ok=True)
    assert seed_study._count(runs) == "3 (2 failed)"


def test_recipe_of_fixed_length_has_its_error_rate():
    """Whether its one evaluation meets the target or not."""
    results = [train({"accuracy": [accuracy]}, {"accuracy": 0.9}, step=8) for accuracy in (0.88, 0.92)]
    runs = seed_outcomes.tabulate([make_record(each, first_eval_epoch=8, max_epochs=8) for each in results])
    assert runs.outcome.tolist() == pytest.approx(np.log([0.12, 0.08]).tolist())
    assert seed_study._count(runs) == "2 (1 failed)"


def test_runs_that_have_not_ended_count_nowhere(tmp_path):
    for place, state in enumerate((RunState.STOPPED, RunState.RUNNING, RunState.TIME_LIMIT, None)):
        write(tmp_path / f"{place}", make_record(cross_at(3.5), seed=place, state=state))
    assert [record.config["seed"] for record in seed_outcomes.read_ended(tmp_path)] == [3]


def test_seed_counts_once_and_belongs_to_its_arm(tmp_path):
    for place, training in enumerate((None, cross_at(3.5), cross_at(4.5))):
        write(tmp_path / f"{place}", make_record(training, seed=7))
    (record,) = seed_outcomes.read_arm(tmp_path, "all")
    assert record.training is not None
    with pytest.raises(ValueError, match="dropout"):
        seed_outcomes.read_arm(tmp_path, "dropout")
    stream = make_record(cross_at(3.5), streams=UNSET | {"dropout": 9})
    assert seed_outcomes.varied_seed(stream, "dropout") == 9
    with pytest.raises(ValueError, match="sampling"):
        seed_outcomes.varied_seed(stream, "sampling")


def test_first_difference_of_repeats():
    runs = [make_record(train({"accuracy": [0.2, middle, 0.8]}, {"accuracy": 0.5})) for middle in (0.4, 0.4, 0.3)]
    assert seed_outcomes.first_unequal_epoch(runs[:2]) is None
    assert seed_outcomes.first_unequal_epoch(runs) == 2
    longer = make_record(train({"accuracy": [0.2, 0.4, 0.45, 0.8]}, {"accuracy": 0.5}))
    assert seed_outcomes.first_unequal_epoch([*runs[:2], longer]) == 3
    another_loss = make_record(train({"accuracy": [0.2, 0.4, 0.8]}, {"accuracy": 0.5}, loss=math.nextafter(1, 2)))
    assert seed_outcomes.first_unequal_epoch([runs[0], another_loss]) == 1
    with pytest.raises(ValueError, match="several seeds"):
        seed_outcomes.first_unequal_epoch([runs[0], make_record(cross_at(3.5), seed=2)])


# Shares of the variance


def coverage(shares, runs, repeats):
    """Return how often intervals contain the truth: of the first share, of the sum, and of it by Satterthwaite."""
    noise, hits = 1 - sum(shares), np.zeros(3)
    truths, sizes = [*(each + noise for each in shares), noise, 1.0], [*(runs for _ in shares), repeats, runs]
    draws = np.random.default_rng(1)
    for _ in range(1000):
        *streams, fixed, whole = (
            Variance(truth * draws.chisquare(n - 1) / (n - 1), n - 1) for truth, n in zip(truths, sizes, strict=True)
        )
        first = seed_outcomes.share(streams[0], whole)
        total = seed_outcomes.sum_of_shares(streams, fixed, whole, draws=2000)
        low, high = satterthwaite(streams, fixed, whole)
        hits += first.low <= truths[0] <= first.high, total.low <= 1 <= total.high, low <= 1 <= high
    return hits / 1000


def satterthwaite(streams, fixed, whole):
    """Return the interval that takes the sum for a variance with the degrees of freedom of its terms."""
    terms = np.array([*(each.value for each in streams), (1 - len(streams)) * fixed.value])
    dof = terms.sum() ** 2 / (terms**2 / [each.dof for each in (*streams, fixed)]).sum()
    bounds = stats.f.isf([0.025, 0.975], dof, whole.dof)
    return terms.sum() / whole.value / bounds if terms.sum() > 0 else (math.nan, math.nan)


@pytest.mark.parametrize(
    ("shares", "runs", "repeats", "approximated"),
    [
        ([0.25] * 4, 20, 10, 0.95),
        ([0.25, 0.25, 0.1, 0.1], 20, 10, 0.91),
        ([0.2, 0.1, 0.05, 0.05], 20, 10, 0.76),
        ([0.3, 0.3, 0.3], 10, 10, None),
        ([0.5, 0.5], 50, 2, None),
    ],
)
def test_intervals_contain_the_true_shares(shares, runs, repeats, approximated):
    of_share, of_sum, by_satterthwaite = coverage(shares, runs, repeats)
    if approximated:  # which the generalized interval replaces
        assert by_satterthwaite == pytest.approx(approximated, abs=0.025)
    assert 0.93 <= of_share <= 0.97
    assert 0.93 <= of_sum <= 0.985


def test_least_ratio_is_found_in_four_of_five_studies():
    part, whole = Variance(1.0, 9), Variance(1.0, 19)
    ratio, draws = seed_outcomes.least_ratio(part, whole), np.random.default_rng(2)
    sides = draws.normal(scale=math.sqrt(ratio), size=(20_000, 20)), draws.normal(size=(20_000, 10))
    observed = sides[0].var(axis=1, ddof=1) / sides[1].var(axis=1, ddof=1)
    p = 2 * stats.f.sf(observed, 19, 9)  # doubled, as the test has two sides
    assert (p < 0.05).mean() == pytest.approx(0.8, abs=0.01)


def outcomes_on(**by_processor):
    """Return a table of runs with these outcomes by processor."""
    rows = [(name, outcome) for name, outcomes in by_processor.items() for outcome in outcomes]
    return pd.DataFrame(rows, columns=["processor", "outcome"])


def test_equal_runs_have_no_share_and_no_interval():
    assert math.isnan(seed_outcomes.share(Variance(1.0, 9), Variance(0.0, 9)).estimate)
    assert seed_study._interval(seed_outcomes.share(Variance(0.0, 9), Variance(1.0, 9))) == "0%"
    assert Variance.of(outcomes_on(h100=[1.0, math.nan])) is None
    assert Variance.of(outcomes_on(h100=[0.1, 0.1, 0.1])) == Variance(0.0, 2)


def test_what_processors_differ_by_is_no_luck():
    """By hand: 1 and 8 squares with 1 and 2 degrees of freedom; 9^2 / (1 * 1 + 8 * 4) of them by Satterthwaite."""
    variance = Variance.of(outcomes_on(h100=[0.0, math.sqrt(2)], h200=[8.0, 10.0, 12.0], cpu=[5.0], tpu=[math.nan]))
    assert (variance.value, variance.dof) == (pytest.approx(3.0), pytest.approx(81 / 33))
    equal = Variance.of(outcomes_on(h100=[0.0, math.sqrt(2)], h200=[9.0, 10.0, 11.0]))
    assert (equal.value, equal.dof) == (pytest.approx(1.0), pytest.approx(3.0))
    assert Variance.of(outcomes_on(h100=[0.1, 0.1], h200=[0.3, 0.3])) == Variance(0.0, 2)
    assert Variance.of(outcomes_on(h100=[1.0], h200=[2.0])) is None


@pytest.mark.parametrize("deviations", [(1.0, 1.0), (1.0, 2.0), (3.0, 1.0)])
def test_intervals_contain_the_true_shares_of_two_processors(deviations):
    """Ten runs on each, whose variances may differ; the share of the mean variances is 40%, the sum 80%."""
    draws, hits = np.random.default_rng(5), np.zeros(2)
    for _ in range(400):

        def arm(share):
            logs = {
                name: place + deviation * math.sqrt(share) * draws.normal(size=10)
                for place, (name, deviation) in enumerate(zip("ab", deviations, strict=True))
            }
            return Variance.of(outcomes_on(**logs))

        streams, fixed, whole = [arm(0.4), arm(0.4), arm(0.2)], arm(0.1), arm(1.0)
        first, total = seed_outcomes.share(streams[0], whole), seed_outcomes.sum_of_shares(streams, fixed, whole, 2000)
        hits += first.low <= 0.4 <= first.high, total.low <= 0.8 <= total.high
    assert 0.93 <= hits[0] / 400 <= 0.98
    assert 0.93 <= hits[1] / 400 <= 0.99


def test_processor_is_the_accelerator_or_the_cpu_of_the_machine():
    records = [make_record(cross_at(2.5), accelerator=name) for name in ("h200", "cpu")]
    assert seed_outcomes.tabulate(records).processor.tolist() == ["H200", "EPYC, 2 cores"]


def test_a_seed_on_two_processors_counts_on_both(tmp_path):
    for name in ("h100", "h200"):
        write(tmp_path / name, make_record(cross_at(3.5), seed=7, accelerator=name))
    assert len(seed_outcomes.read_arm(tmp_path, "all")) == 2
