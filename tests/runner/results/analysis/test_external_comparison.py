"""Comparisons of systems in tables of external measurements."""

import math

import pytest

from timetrial.runner.core.errors import ConfigurationError, DataError
from timetrial.runner.results.analysis.comparison import Verdict
from timetrial.runner.results.analysis.external_comparison import compare_systems, to_measurements
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse import external, sources
from timetrial.runner.results.parse.external import REFERENCE_DATA, ExternalMeasurement


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
    assert formats.summary.endswith("cannot tell, one network was measured (6.27 times as fast).")


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
    assert pair.summary == "b against a: cannot tell, nothing was measured on both at equal settings."
    assert pair.to_json()["ratio"] is None


def test_one_name_is_the_baseline_of_all_others():
    names = [pair.other.title for pair in compare_systems(study("rtx3060_2022"), ["V100"])]
    assert names == ["Titan V", "1080 Ti", "2080 Ti", "Tesla T4", "RTX 3060", "MX250"]
    levels = [pair.level for pair in compare_systems(study("rtx3060_2022"), ["V100"])]
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
    own = to_measurements(groups)
    assert [(entry.metric, round(entry.value, 1)) for entry in own] == [("minutes", 5.0), ("epochs", 5.0)]
    facts = {"num_accelerators": 8, "precision": "", "batch": None, "metric": "minutes"}
    (pair,) = compare_systems([*own, measurement("b", 2.5, "gnmt", **facts)], [])
    assert [round(row.ratio, 1) for row in pair.rows] == [2.0]
