"""Comparisons of systems in tables of external measurements."""

import math

import pytest

from timetrial.runner.core.errors import ConfigurationError, DataError
from timetrial.runner.results.analysis.external_comparison import compare_studies, compare_systems
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.analysis.own_measurements import measure_runs
from timetrial.runner.results.analysis.verdicts import Verdict
from timetrial.runner.results.parse import external, sources
from timetrial.runner.results.parse.external import OWN_RUNS, REFERENCE_DATA, ExternalMeasurement
from timetrial.runner.results.report import comparison_json
from timetrial.runner.results.report.speed_text import external_summary


def study(name):
    return external.read_measurements(REFERENCE_DATA / "studies" / f"{name}.csv")


def measurement(accelerator, value, workload="net", **facts):
    values = {"study": "s", "source": "a paper", "published": "", "workload": workload, "task": "train"}
    values |= {"accelerator": accelerator, "num_accelerators": 1, "precision": "fp32", "interconnect": "", "batch": 8}
    values |= {"metric": "milliseconds", "value": value, "outcome": "measured", "baseline": "", "note": ""}
    return ExternalMeasurement(**values | facts)


def test_published_ratios_of_t4_and_v100():
    """The interval by hand: Student's t with 4 degrees of freedom over the logs of five networks."""
    logs = [math.log(3.6), math.log(3.3 * 3.4) / 2, math.log(2.2 * 2.7) / 2, math.log(2.5 * 3.6) / 2]
    logs.append(math.log(2.6 * 2.8) / 2)
    mean = sum(logs) / 5
    half_width = 2.7764 * math.sqrt(sum((value - mean) ** 2 for value in logs) / 4 / 5)
    (forward,) = compare_systems(study("t4_v100_2019"), [])
    interval = forward.speed.interval()
    assert (forward.baseline.title, forward.other.title) == ("T4", "V100-PCIe")
    assert (interval.estimate, interval.low) == pytest.approx((math.exp(mean), math.exp(mean - half_width)), rel=1e-4)
    assert forward.verdict == Verdict.FASTER
    (backward,) = compare_systems(study("t4_v100_2019"), ["v100", "t4"])
    assert backward.verdict == Verdict.SLOWER
    assert backward.speed.interval().estimate == pytest.approx(math.exp(-mean))


def test_systems_are_told_apart_by_what_differs():
    (links,) = compare_systems(study("rtx8000_nvlink_2020"), [])
    assert (links.baseline.title, links.other.title, links.verdict) == ("no NVLink", "NVLink", Verdict.EQUAL)
    assert {row.setting[0] for row in links.rows} == {"2", "4"}  # a single GPU has nothing to connect
    (formats,) = compare_systems(study("titan_v_2018"), [])
    assert (formats.baseline.title, formats.other.title) == ("precision not stated", "fp16")
    assert formats.verdict == Verdict.CANNOT_TELL
    assert external_summary(formats).endswith("cannot tell, one network was measured (6.27 times as fast).")


def test_only_equal_settings_are_compared():
    entries = [measurement("a", 10.0), measurement("a", 40.0, "other"), measurement("b", 5.0)]
    entries += [measurement("b", 9.0, "other", batch=16), measurement("b", 9.0, "other", precision="bf16")]
    entries += [measurement("b", 9.0, "other", num_accelerators=2), measurement("b", 9.0, "other", metric="minutes")]
    (pair,) = compare_systems(entries, [])
    assert [(row.workload, row.setting, round(row.ratio, 9)) for row in pair.rows] == [
        ("net", "1 GPU, fp32, batch 8", 2)
    ]
    (pair,) = compare_systems(entries, ["1 x a", "2 x b"])
    assert [(row.workload, row.ratio) for row in pair.rows] == [("other", pytest.approx(40 / 9))]
    entries = [measurement("a", 10.0), measurement("b", 5.0, "third")]
    (pair,) = compare_systems(entries, [])
    assert external_summary(pair) == "b against a: cannot tell, nothing was measured on both at equal settings."
    assert comparison_json.to_json(pair)["ratio"] is None


def test_beside_a_number_of_gpus_a_bare_name_is_of_one():
    entries = [measurement("a", 8.0), measurement("a", 4.0, num_accelerators=2), measurement("b", 6.0)]
    (pair,) = compare_systems(entries, ["a", "2 x a"])
    assert (pair.baseline.title, pair.other.title) == ("1 x a", "2 x a")
    assert [row.ratio for row in pair.rows] == [pytest.approx(2)]
    with pytest.raises(ConfigurationError, match="1 x a is no path"):
        compare_systems(entries[1:], ["1 x b", "a"])


def test_a_faster_best_batch_decides_nothing():
    """At batch 8 both take 10 ms. Only `a` was measured at batch 64, where it is four times as fast per sample."""
    entries = [measurement("a", 10.0), measurement("a", 20.0, batch=64), measurement("b", 10.0)]
    (pair,) = compare_systems(entries, [])
    assert [(row.setting, row.ratio) for row in pair.rows] == [("1 GPU, fp32, batch 8", 1.0)]


def test_a_network_counts_by_one_metric():
    """Milliseconds are not used beside samples per second, and published speedups only without both."""
    entries = [measurement("a", 10.0), measurement("b", 5.0)]
    entries += [measurement(name, value, metric="samples_per_second") for name, value in (("a", 100.0), ("b", 300.0))]
    entries += [measurement("b", 9.0, metric="speedup", baseline="a")]
    entries += [measurement("b", 7.0, "other", metric="speedup", baseline="a")]
    (pair,) = compare_systems(entries, [])
    assert [(row.workload, row.metric, round(row.ratio, 9)) for row in pair.rows] == [
        ("net", "samples_per_second", 3),
        ("other", "speedup", 7),
    ]


def test_repeats_of_one_network_tell_speed_from_luck():
    """Welch's interval by hand: three repeats a side with equal spread have 4 degrees of freedom."""
    entries = [measurement("a", value) for value in (99.0, 100.0, 101.0)]
    entries += [measurement("b", value / 2) for value in (99.0, 100.0, 101.0)]
    (pair,) = compare_systems(entries, [])
    logs = [math.log(value) for value in (99.0, 100.0, 101.0)]
    deviation = math.sqrt(sum((log - sum(logs) / 3) ** 2 for log in logs) / 2)
    half_width = 2.7764 * deviation * math.sqrt(2 / 3)
    assert pair.speed.interval().high == pytest.approx(2 * math.exp(half_width), rel=1e-4)
    assert pair.verdict == Verdict.FASTER
    assert external_summary(pair).endswith(") on one network, between these machines.")


def test_numbers_of_gpus_are_systems_where_nothing_else_differs():
    facts = {"metric": "samples_per_second", "source": OWN_RUNS}
    entries = [measurement("a", 100.0, **facts), measurement("a", 10.0, task="eval", source=OWN_RUNS)]
    entries += [measurement("a", 380.0, num_accelerators=4, interconnect="peer-to-peer", **facts)]
    entries += [measurement("a", 10.0, task="eval", num_accelerators=4, interconnect="peer-to-peer", source=OWN_RUNS)]
    (pair,) = compare_systems(entries, [])
    assert (pair.baseline.title, pair.other.title) == ("1 x a", "4 x a")
    assert [(row.task, row.ratio) for row in pair.rows] == [("train", pytest.approx(3.8))]
    (pair,) = compare_systems(entries, ["4 x a"])
    assert (pair.baseline.title, pair.other.title) == ("4 x a", "1 x a")


def test_studies_are_compared_apart_and_own_runs_together():
    entries = [measurement("a", 10.0), measurement("b", 5.0), measurement("c", 1.0, study="of one system")]
    entries += [measurement("a", 9.0, study="on host 1", source=OWN_RUNS)]
    entries += [measurement("b", 3.0, study="on host 2", source=OWN_RUNS)]
    entries += [measurement("d", 1.0, study="apart"), measurement("e", 1.0, study="apart", precision="bf16")]
    studies = compare_studies(entries, "b")
    assert {title: (pair.baseline.title, round(pair.rows[0].ratio, 9)) for title, (pair,) in studies.items()} == {
        "s": ("b", 0.5),
        "Throughput runs": ("b", round(1 / 3, 9)),
    }


def test_one_name_is_the_baseline_of_all_others():
    names = [pair.other.title for pair in compare_systems(study("rtx3060_2022"), ["V100"])]
    assert names == ["Titan V", "1080 Ti", "2080 Ti", "Tesla T4", "RTX 3060", "MX250"]
    levels = [pair.levels.difference for pair in compare_systems(study("rtx3060_2022"), ["V100"])]
    assert max(levels) > 0.95  # several comparisons share the chance of a false verdict


def test_wrong_names_are_refused():
    with pytest.raises(ConfigurationError, match=r"H100 is no path, and not the name of one system .*: T4, V100-PCIe"):
        compare_systems(study("t4_v100_2019"), ["T4", "H100"])
    with pytest.raises(ConfigurationError, match="9 x T4 is no path"):
        compare_systems(study("t4_v100_2019"), ["9 x T4", "V100"])
    with pytest.raises(DataError, match="of one system"):
        compare_systems([measurement("a", 1.0), measurement("a", 2.0)], [])


def test_runs_are_compared_with_published_minutes(published):
    """8 GPUs and 5 epochs of 60 s take 5 min; the publication takes half of it."""
    groups = group_runs(sources.read_runs([published("a", [5, 5], 60.0)]))
    own = measure_runs(groups)
    assert [(entry.metric, round(entry.value, 1)) for entry in own] == [("minutes", 5.0), ("epochs", 5.0)]
    facts = {"num_accelerators": 8, "precision": "", "batch": None, "metric": "minutes"}
    (pair,) = compare_systems([*own, measurement("b", 2.5, "gnmt", **facts)], [])
    assert [round(row.ratio, 1) for row in pair.rows] == [2.0]
