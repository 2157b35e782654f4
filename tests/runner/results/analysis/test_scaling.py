"""Scaling of run groups and measurements, and speed by peak."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from timetrial.runner.results.analysis import findings, scaling
from timetrial.runner.results.analysis.groups import RunGroup, group_runs
from timetrial.runner.results.parse import external, sources
from timetrial.runner.results.parse.runs import Run
from timetrial.runner.results.report import build

STUDIES = external.REFERENCE_DATA / "studies"


def measurements_of(rows):
    template = external.read_measurements(STUDIES / "rtx8000_nvlink_2020.csv")[0]
    return [dataclasses.replace(template, **row) for row in rows]


def group_of(seconds, gpus, batch=None, system="box"):
    """Return a group whose runs take these seconds, in one epoch per second, and so without a grid that matters."""
    group = RunGroup("v0.7", "Maker", system, "gnmt", "")
    for number, value in enumerate(seconds):
        run = Run(Path(f"{number}"), Path(f"{number}"), accelerator="GPU", num_accelerators=gpus)
        run.success, run.duration, run.progress_to_converge, run.eval_spacing = True, value, value, 1e-6
        run.global_batch_size = batch
        group.runs.append(run)
    return group


def test_flags_super_linear_scaling_of_runs(published):
    published("one", [12, 12, 12], 60.0, gpus=1)
    tree = published("four", [4, 4, 4], 15.0, gpus=4)
    (series,) = scaling.compute_scalings(group_runs(sources.read_runs([tree])), [])
    assert series.counts == [1, 4]
    assert series.speedup[1] == pytest.approx(12.0, rel=0.01)
    assert series.super_linear == [False, True]


def test_efficiency_has_a_welch_interval():
    one, two = [100.0, 110.0, 95.0], [48.0, 50.0, 51.0, 47.0]
    (series,) = scaling.compute_scalings([group_of(one, 1), group_of(two, 2)], [])
    welch = scipy_stats.ttest_ind(np.log(one), np.log(two), equal_var=False).confidence_interval()
    interval = series.efficiency[1]
    assert (interval.low, interval.high) == pytest.approx((math.exp(welch.low) / 2, math.exp(welch.high) / 2))


@pytest.mark.parametrize(
    ("two", "flagged", "sentence"),
    [
        ([45.0, 46.0, 44.0], True, "an efficiency of 111% (95% CI: 10"),
        ([30.0, 46.0, 60.0], False, ""),  # 1.11 as well, but its interval reaches below 1
        ([45.0], True, "not repeated, so without a confidence interval; flagged above 105%"),
        ([48.0], False, ""),  # 1.04
    ],
)
def test_super_linear_needs_a_lower_bound_above_one(two, flagged, sentence):
    (series,) = scaling.compute_scalings([group_of([100.0, 101.0, 99.0], 1), group_of(two, 2)], [])
    found = list(findings._check_scaling(series))
    assert len(found) == flagged
    assert all(sentence in finding.message for finding in found)


def test_repeated_measurements_have_an_interval():
    """Rates of two GPUs that scatter around 2.2 times those of one."""
    rows = [{"num_accelerators": 1, "interconnect": "", "value": value} for value in (100.0, 120.0, 80.0)]
    rows += [{"num_accelerators": 2, "interconnect": "", "value": value} for value in (220.0, 250.0, 190.0)]
    (repeated,) = scaling.compute_scalings([], measurements_of(rows))
    assert repeated.efficiency[1].is_bounded
    assert repeated.super_linear == [False, False]
    (single,) = scaling.compute_scalings([], measurements_of([rows[0], rows[3]]))
    assert single.super_linear == [False, True]


def test_groups_of_equal_count_and_other_batch_are_separate_series():
    groups = [group_of([100.0], 1, 256), group_of([40.0], 2, 256), group_of([60.0], 2, 512), group_of([30.0], 4, 1024)]
    series = {entry.title: entry for entry in scaling.compute_scalings(groups, [])}
    assert set(series) == {"Maker GPU batch 256", "Maker GPU batch 256 per accelerator"}
    assert series["Maker GPU batch 256"].speedup == pytest.approx([1, 2.5])
    assert series["Maker GPU batch 256 per accelerator"].counts == [1, 2, 4]
    assert series["Maker GPU batch 256 per accelerator"].speedup == pytest.approx([1, 100 / 60, 100 / 30])


def test_fastest_of_equal_count_and_batch_counts():
    groups = [group_of([100.0], 1), group_of([70.0], 2, system="slow"), group_of([60.0], 2, system="fast")]
    for order in (groups, groups[::-1]):
        (series,) = scaling.compute_scalings(order, [])
        assert series.speedup[1] == pytest.approx(100 / 60)


def test_counts_with_one_group_each_are_one_series_whatever_the_batch():
    (series,) = scaling.compute_scalings([group_of([100.0], 1, 256), group_of([50.0], 2, 512)], [])
    assert (series.title, series.counts) == ("Maker GPU", [1, 2])


def test_scaling_with_interconnect_starts_at_one_gpu():
    rows = [{"num_accelerators": 1, "interconnect": "", "value": 90.0}]
    rows += [
        {"num_accelerators": count, "interconnect": "NVLink", "value": rate} for count, rate in ((2, 180.0), (4, 396.0))
    ]
    (series,) = scaling.compute_scalings([], measurements_of(rows))
    assert (series.counts, series.super_linear) == ([1, 2, 4], [False, False, True])


def test_training_and_evaluation_are_separate_series():
    rows = [
        {"num_accelerators": count, "value": 90.0 * count, "task": task}
        for count in (1, 2)
        for task in ("train", "eval")
    ]
    assert [series.speedup for series in scaling.compute_scalings([], measurements_of(rows))] == [[1, 2], [1, 2]]


def test_fits_speed_to_peaks():
    report = build.build_report([STUDIES / "rtx3060_2022.csv"])
    messages = [finding.message for finding in report.findings]
    fits = {fit.workload: fit for fit in report.peak_fits if fit.peak_name == "FP32 peak"}
    assert len(report.peak_fits) == 2 * len(fits) == 12  # the others fit the bandwidth
    assert fits["vgg16, eval"].line.r2_uncentered == pytest.approx(0.976, abs=0.0006)
    assert fits["vgg16, eval"].line.r2_centered == pytest.approx(0.70, abs=0.006)
    assert fits["vgg16, train"].line.r2_uncentered == pytest.approx(0.975, abs=0.0006)
    assert fits["vgg16, train"].line.r2_centered == pytest.approx(0.66, abs=0.006)
    assert any("to the power of 1.53 (95% CI: 0.61 to 2.45)" in message for message in messages)
    assert any("overstates the uncentered R²" in message for message in messages)
    assert sum("out of memory" in message for message in messages) == 4  # MX250: two networks, two tasks


def test_fp16_peak_is_not_used_for_fp32():
    rows = [{"metric": "peak_tflops", "precision": "fp16", "accelerator": name, "value": 9.0} for name in "abc"]
    rows += [{"metric": "milliseconds", "precision": "fp32", "accelerator": name, "value": 5.0} for name in "abc"]
    assert not scaling.fit_speed_to_peaks(measurements_of(rows), [])


@pytest.mark.parametrize(("peaks", "fits"), [((9.0, 10.0, 11.0), 1), ((9.0, 9.0, 9.0), 0), ((9.0, 10.0), 0)])
def test_fit_needs_three_accelerators_and_two_peaks(peaks, fits):
    rows = []
    for name, peak in zip("abc", peaks, strict=False):
        rows += [{"metric": "peak_tflops", "precision": "fp32", "accelerator": name, "value": peak}]
        rows += [{"metric": "milliseconds", "precision": "fp32", "accelerator": name, "value": 50.0 / peak}]
    assert len(scaling.fit_speed_to_peaks(measurements_of(rows), [])) == fits
