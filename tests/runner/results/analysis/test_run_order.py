"""Runs of two settings that were made in blocks, of training and of throughput."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from timetrial.runner.record.attempt import Attempt
from timetrial.runner.results.analysis import run_order
from timetrial.runner.results.analysis.groups import RunGroup, group_runs
from timetrial.runner.results.analysis.throughput_groups import ThroughputGroup
from timetrial.runner.results.parse import sources
from timetrial.runner.results.parse.runs import Run


def throughput_group(starts, host="node1", **config):
    return ThroughputGroup("GPU", config, attempts=[Attempt(float(start), host, 1) for start in starts])


@pytest.mark.parametrize(
    ("first", "second", "flagged"),
    [
        ((1, 2, 3), (4, 5, 6), True),
        ((4, 5, 6), (1, 2, 3), True),
        ((1, 3, 5), (2, 4, 6), False),
        ((1, 2, 5), (3, 4, 6), False),
        ((1,), (2, 3), False),  # a single run cannot be in a block
    ],
)
def test_flags_blocks_and_not_turns(first, second, flagged):
    groups = [throughput_group(first, peer_to_peer=True), throughput_group(second, peer_to_peer=False)]
    found = run_order.check([], groups)
    assert [finding.kind for finding in found] == ["flag"] * flagged
    if flagged:
        assert found[0].subject == "peer_to_peer"
        assert "in blocks, one after the other, on node1: drift" in found[0].message
        assert "`-m seed=1,2,3 peer_to_peer=...`" in found[0].message


def test_other_machines_and_several_differences_are_not_compared():
    first = throughput_group((1, 2), peer_to_peer=True, batch=1)
    assert run_order.check([], [first, throughput_group((3, 4), "node2", peer_to_peer=False, batch=1)]) == []
    assert run_order.check([], [first, throughput_group((3, 4), peer_to_peer=False, batch=2)]) == []
    assert run_order.check([], [first, throughput_group((3, 4), peer_to_peer=False, batch=1)])


def test_one_flag_for_each_setting():
    groups = [throughput_group((start, start + 1), precision=name) for start, name in ((1, "a"), (3, "b"), (5, "c"))]
    (finding,) = run_order.check([], groups)
    assert "The runs of 3 pairs of groups that differ only in precision" in finding.message


@pytest.mark.integration
def test_start_times_of_training_runs(launch, tmp_path):
    """Two runs with each of two precisions, one precision after the other, then with changed times in turn."""
    folders = {
        (precision, seed): launch(f"precision={precision}", f"seed={seed}")[1]
        for precision in ("fp32", "bf16")
        for seed in (1, 2)
    }
    (finding,) = run_order.check(group_runs(sources.read_runs([tmp_path / "runs"])), [])
    assert finding.subject == "precision.name"
    assert "`-m seed=1,2,3 precision=...`" in finding.message
    for (_, seed), folder in folders.items():
        attempts = (replace(folder.record().attempts[0], started_at=float(seed)),)
        folder.update(partial(replace, attempts=attempts))
    assert run_order.check(group_runs(sources.read_runs([tmp_path / "runs"])), []) == []


def sequence(positions, paces, host="node1"):
    return [
        Run(
            Path(),
            Path(),
            started=float(position),
            host=host,
            success=True,
            duration=float(pace),
            progress_to_converge=1.0,
        )
        for position, pace in zip(positions, paces, strict=True)
    ]


def test_drift_is_the_slope_that_a_regression_finds():
    """Common slope of two series with means of their own: ordinary least squares with an indicator of the side."""
    paces = np.exp(0.01 * np.arange(8) + 0.002 * np.random.default_rng(1).standard_normal(8))
    sides = sequence(range(4), paces[:4]), sequence(range(4, 8), paces[4:])
    trend = run_order.fit_trend(*([(int(run.started), run) for run in side] for side in sides))
    design = np.column_stack([np.arange(8), np.repeat([0.0, 1.0], 4), np.ones(8)])
    solution, residual, *_ = np.linalg.lstsq(design, np.log(paces), rcond=None)
    error = math.sqrt(residual[0] / 5 * np.linalg.inv(design.T @ design)[0, 0])
    assert (trend.slope, trend.error, trend.dof) == (pytest.approx(solution[0]), pytest.approx(error), 5)
    assert trend.p_value == pytest.approx(2 * scipy_stats.t.sf(solution[0] / error, 5))
    drift = run_order.find_drift(*sides)
    assert drift.down == 0
    assert drift.up == pytest.approx(4 * (trend.slope + scipy_stats.t.ppf(0.975, 5) * error))
    assert run_order.find_drift(*reversed(sides)).down == pytest.approx(drift.up)


def test_no_drift_between_machines_or_in_unknown_order():
    sides = sequence(range(4), [1, 2, 3, 4.1]), sequence(range(4, 8), [5, 6, 7, 8.1])
    assert run_order.find_drift(*sides)
    assert not run_order.find_drift(sides[0], sequence(range(4, 8), [5, 6, 7, 8.1], host="node2"))
    assert not run_order.find_drift(sides[0], sequence([4, 5, 6, math.nan], [5, 6, 7, 8.1]))


@pytest.mark.parametrize(
    ("first", "second", "in_turn"),
    [
        ((1, 3, 5), (2, 4, 6), True),
        ((1, 2, 3), (4, 5, 6), False),
        ((1, 4, 5, 8), (2, 3, 6, 7), False),
        ((1, 3, 5, 7), (2, 4, 8, 6), True),
        ((1, math.nan, 5), (2, 4, 6), False),
        ((1, 1, 5), (2, 4, 6), False),
        ((), (), False),
    ],
)
def test_sides_alternate(first, second, in_turn):
    assert run_order.alternate(first, second) is in_turn


def test_a_trend_in_one_group_is_a_flag():
    group = RunGroup("v0.7", "", "a", "gnmt", "", sequence(range(6), [1, 1.011, 1.02, 1.031, 1.04, 1.049]))
    (finding,) = run_order.check([group], [])
    assert "changes by +0.9" in finding.message
    assert "the machine drifts" in finding.message
    steady = RunGroup("v0.7", "", "a", "gnmt", "", sequence(range(6), [1, 1.011, 0.99, 1.01, 0.995, 1.0]))
    assert run_order.check([steady], []) == []
