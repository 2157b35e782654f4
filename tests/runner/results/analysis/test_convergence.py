"""Convergence compared with reference points: MLPerf's own checker as the oracle, and groups like published ones."""

import csv
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker
from scipy import stats as scipy_stats

from timetrial.runner.results.analysis import convergence
from timetrial.runner.results.analysis.convergence import ReferenceConvergence
from timetrial.runner.results.analysis.groups import RunGroup, group_runs
from timetrial.runner.results.parse import rules, sources
from timetrial.runner.results.parse.evaluations import Evaluation
from timetrial.runner.results.parse.external import REFERENCE_DATA
from timetrial.runner.results.parse.runs import Run


def group_of(epochs, benchmark="resnet", round_="v0.7", batch=1632, system="box", submitter="Maker", **fields):
    group = RunGroup(round_, submitter, system, benchmark, "")
    for number, count in enumerate(epochs):
        run = Run(Path(f"{number}"), Path(f"{number}"), round=round_, benchmark=benchmark, **fields)
        run.success, run.duration, run.progress_to_converge, run.eval_spacing = True, 60.0 * count, count, 1.0
        run.target, run.global_batch_size = rules.quality_target(benchmark, round_), batch
        group.runs.append(run)
    return group


def flags(*groups):
    return [finding for finding in convergence.check(groups) if finding.kind == "flag"]


@pytest.mark.parametrize(("epochs", "fast"), [([30, 31, 30, 31, 30], True), ([35, 36, 35, 34, 35], False)])
def test_flags_convergence_faster_than_reference(published, epochs, fast):
    """Official RCP at batch 1632: 17 runs, 33 to 37 epochs."""
    tree = published("box", epochs, 60.0, benchmark="resnet", batch=1632)
    for path in tree.rglob("result_*.txt"):
        path.write_text(path.read_text().replace('"value": 0.245', '"value": 0.765'))
    found = flags(*group_runs(sources.read_runs([tree])))
    assert bool(found) == fast
    if fast:
        assert "olympic mean of 30.33 epochs vs. 35 of official reference convergence points at batch size 1632" in (
            found[0].message
        )


def test_equal_epochs_of_the_reference_give_no_flag(published):
    """Transformer at a batch of 81,920 took 3 or 4 epochs in published runs; a Welch test flagged 3 3 3."""
    tree = published("box", [3, 3, 3], 60.0, benchmark="transformer", batch=81_920)
    for path in tree.rglob("result_*.txt"):
        path.write_text(path.read_text().replace('"value": 0.245', '"value": 0.251'))
    (note,) = convergence.check(group_runs(sources.read_runs([tree])))
    message = "1 run group was compared with reference convergence, at a false discovery rate of 5%: none faster."
    assert note.message == message
    assert flags(group_of([2, 2, 2], "transformer", batch=81_920))


@pytest.mark.parametrize(
    ("benchmark", "ruleset"),
    [("resnet", "1.1.0"), ("resnet", "4.0.0"), ("ssd", "1.1.0"), ("maskrcnn", "2.0.0"), ("bert", "5.0.0")],
)
def test_agrees_with_the_official_checker(benchmark, ruleset):
    """The smallest mean that MLPerf accepts has p = 0.05, at its points and between them; pruned are the same."""
    checker = RCP_Checker("training", ruleset, benchmark, verbose=False)
    round_, runs = f"v{ruleset[:3]}", checker.submission_runs
    records = sorted(checker.pruned_rcp_data.values(), key=lambda record: record["BS"])
    points = convergence._official_points(benchmark, benchmark, round_)
    assert [point.global_batch_size for point in points] == [record["BS"] for record in records]
    between = [((low["BS"] + high["BS"]) // 2, low, high) for low, high in pairwise(records)]
    interpolated = [(batch, checker._create_interp_rcp(batch, low, high)[1]) for batch, low, high in between]
    for batch, record in [*((record["BS"], record) for record in records), *interpolated]:
        reference = convergence.find_reference(group_of([1], benchmark, round_, batch, progress_unit=points[0].unit))
        assert reference.mean == pytest.approx(record["RCP Mean"])
        assert reference.deviation == pytest.approx(record["RCP Stdev"], abs=1e-9)
        if record["RCP Stdev"] > 0.01:
            assert reference.p_value(record["Min Epochs"], runs) == pytest.approx(0.05, abs=1e-3)


def test_batch_below_all_points_has_the_smallest_and_above_all_none():
    points = convergence._official_points("resnet", "resnet", "v0.7")
    assert convergence.find_reference(group_of([1], batch=256)) == points[0]
    assert convergence.find_reference(group_of([1], batch=10**6)) is None


def test_floor_bounds_the_deviation_of_equal_epochs():
    """Mask R-CNN took 14 epochs in all ten reference runs at a batch of 48; epochs are a grid of 1 / sqrt(12)."""
    reference = convergence.find_reference(group_of([14], "maskrcnn", batch=48))
    assert reference.deviation == 0
    assert (reference.p_value(13.9, 5), reference.p_value(14.0, 5)) == (0.0, 1.0)
    t = -1 / math.sqrt(1 / 12 * (1 / 3 + 1 / 8))
    assert reference.p_value(13.0, 5, floor=1 / math.sqrt(12)) == pytest.approx(scipy_stats.t.cdf(t, 9))


def test_published_entries_are_clusters():
    """By hand, with the variance components of a one-way analysis of variance: entries of 3 runs left, means 5 6 7."""
    reference = ReferenceConvergence(1, "epochs", 6.0, 0.5, 1.0, (3, 3, 3), False, "")
    between, within = 1.0 - 0.25 / 3, 0.25 / 3
    error = 0.25 / 1 + within / 3 + between * 4 / 3
    by_entry = 1.0 * 4 / 3
    dof = error**2 / (by_entry**2 / 2 + (error - by_entry) ** 2 / 8)
    expected = scipy_stats.t.cdf(-2 / math.sqrt(error), dof)
    assert reference.p_value(4.0, 3) == pytest.approx(expected)
    # Means that differ by no more than their runs explain add nothing: MLPerf's t test.
    alike = ReferenceConvergence(1, "epochs", 6.0, 0.5, 0.2, (3, 3, 3), False, "")
    assert alike.p_value(5.0, 5) == pytest.approx(scipy_stats.t.cdf(-1 / math.sqrt(0.25 * (1 / 3 + 1 / 9)), 10))


def test_own_entry_is_no_reference_and_one_entry_is_too_few():
    """Two systems published Transformer at 81,920, one of them NVIDIA's dgx1_ngc20.06_pytorch."""
    options = {"benchmark": "transformer", "batch": 81_920}
    reference = convergence.find_reference(group_of([3], **options))
    assert (reference.official, reference.runs, reference.source) == (False, (8, 8), "2 published entries")
    own = group_of([3], **options, submitter="NVIDIA", system="dgx1_ngc20.06_pytorch")
    assert convergence.find_reference(own) is None
    with open(REFERENCE_DATA / "observed_convergence.csv", newline="") as file:
        entries = [
            list(map(float, row["epochs"].split()))
            for row in csv.DictReader(file)
            if (row["benchmark"], row["round"], row["global_batch_size"]) == ("transformer", "v0.7", "81920")
        ]
    assert reference.mean == pytest.approx(np.mean([np.mean(sorted(entry)[1:-1]) for entry in entries]))


def test_benjamini_and_hochberg_over_the_groups_of_a_report():
    """A group with p = 0.04 is flagged alone, and with 9 others of p near 1 it is not."""
    slow = [group_of([36, 36, 36, 36, 36]) for _ in range(9)]
    reference = convergence.find_reference(slow[0])
    epochs = next(
        values
        for values in ([33 + step / 50] * 5 for step in range(100))
        if 0.03 < reference.p_value(values[0], 5) < 0.049
    )
    assert len(flags(group_of(epochs))) == 1
    assert flags(group_of(epochs), *slow) == []
    assert len(flags(group_of([20] * 5), *slow)) == 1


def test_failures_and_copies_leave_too_few_runs():
    assert flags(group_of([20, 20, 20, 20]))
    group = group_of([20, 20, 20, 20])
    for run in group.runs[:2]:
        run.success = False
    assert convergence.check([group]) == []
    evaluations = [Evaluation(60.0, 20.0, {"accuracy": 0.76})]
    assert convergence.check([group_of([20, 20, 20, 20], evaluations=evaluations)]) == []


def test_epochs_are_not_compared_with_samples():
    assert convergence.find_reference(group_of([4], "bert", "v5.0", 448)) is None
    assert convergence.find_reference(group_of([4], "bert", "v5.0", 448, progress_unit="samples")) is not None


def test_samples_of_lora_are_compared():
    file = Path(convergence._RCP_FOLDER) / "training_5.0.0" / "rcps_llama2_70b_lora.json"
    (samples,) = [
        record["samples to converge"] for record in json.loads(file.read_text()).values() if record["BS"] == 8
    ]
    reference = convergence.find_reference(group_of([1], "llama2_70b_lora", "v5.0", 8, progress_unit="samples"))
    assert reference.mean == pytest.approx(np.mean(sorted(samples)[1:-1]))
