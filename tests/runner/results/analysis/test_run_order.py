"""Runs of two settings that were made in blocks, of training and of throughput."""

from dataclasses import replace
from functools import partial

import pytest

from timetrial.runner.record.run_record import Attempt
from timetrial.runner.results.analysis import run_order
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.analysis.throughput_groups import ThroughputGroup
from timetrial.runner.results.parse import sources


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
