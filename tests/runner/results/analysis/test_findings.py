"""Findings about five published studies and about run groups, and the format of external measurements."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from timetrial.runner.core.errors import DataError
from timetrial.runner.results.analysis import findings, plausibility
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse import external, sources
from timetrial.runner.results.report import build

STUDIES = external.REFERENCE_DATA / "studies"


def read_study(name):
    report = build.build_report([STUDIES / f"{name}.csv"])
    return report, [(finding.kind, finding.subject, finding.message) for finding in report.findings]


def test_t4_v100_study_has_banner_and_super_linear_flag():
    _, study_findings = read_study("t4_v100_2019")
    (banner,) = [message for kind, subject, message in study_findings if kind == "banner" and subject == "gnmt"]
    assert "cannot be compared by time-to-train" in banner
    assert "T4 x 1, 2, 3, 4: 12, 7, 5, 4; V100-PCIe x 1, 2, 3: 16, 12, 9" in banner
    flags = [message for kind, subject, message in study_findings if kind == "flag" and subject == "gnmt, T4"]
    assert len(flags) == 2
    assert flags[1].startswith("Super-linear scaling: 10.4 times faster with 4 times the accelerators (4)")


def test_t4_v100_study_gives_one_number():
    """The geometric mean of 3.6, 3.35, 2.44, 3.0 and 2.7 is 2.99; Student's t over five workloads."""
    _, study_findings = read_study("t4_v100_2019")
    (message,) = [message for _, subject, message in study_findings if subject == "V100-PCIe against T4"]
    assert message.startswith("faster (2.987 times, 95% CI: 2.455 to 3.634) over resnet, ssd, maskrcnn, gnmt")
    assert "each measured without repeats" in message


def test_nvlink_study_shows_equal_rates_and_flags_precision():
    _, study_findings = read_study("rtx8000_nvlink_2020")
    (effect,) = [message for kind, _, message in study_findings if kind == "note" and "against without" in message]
    assert effect.startswith(
        "Several accelerators with NVLink against without: equal within 5% (1.000 times, 95% CI: 0.992 to 1.008), from "
        "6 workloads in 24 configurations"
    )
    (single,) = [message for kind, _, message in study_findings if kind == "flag" and "a single accelerator" in message]
    assert "nasnet fp16 -15%" in single
    (without_effect,) = [(subject, message) for _, subject, message in study_findings if "precision switch" in message]
    assert without_effect[0] == "nasnet"


def test_precision_is_compared_at_best_batch_size():
    template = external.read_measurements(STUDIES / "rtx8000_nvlink_2020.csv")[0]
    runs = [("fp32", 16, 100.0), ("fp16", 512, 300.0), ("fp16", 16, 101.0)]
    measurements = [
        dataclasses.replace(template, precision=name, batch=batch, value=value) for name, batch, value in runs
    ]
    assert not list(findings._check_half_precision(measurements))
    assert list(findings._check_half_precision(measurements[::2]))


def test_precisions_are_compared_in_equal_execution():
    template = external.read_measurements(STUDIES / "rtx8000_nvlink_2020.csv")[0]
    fp32, fp16, captured = (
        dataclasses.replace(template, precision=name, value=100.0)
        for name in ("fp32 compile=default", "fp16 compile=default", "fp16 capture=true")
    )
    assert list(findings._check_half_precision([fp32, fp16]))
    assert not list(findings._check_half_precision([fp32, captured]))


def test_out_of_memory_has_no_value():
    report, study_findings = read_study("rtx2080ti_tpuv2_2019")
    subjects = [subject for _, subject, message in study_findings if message.startswith("out of memory")]
    assert subjects == ["cnn10, train, 1 x RTX 2080 Ti, batch 2048", "wrn-28-10, train, 1 x RTX 2080 Ti, batch 256"]
    assert all(entry.value is None for entry in report.measurements if entry.outcome == "out of memory")


HEAD = "schema," + ",".join(entry.name for entry in dataclasses.fields(external.ExternalMeasurement))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,s,o,,w,,c,1,,,,minutes,3,,,", "row 1: schema 1 is not supported"),
        ("2,s,,,w,,c,1,,,,minutes,3,,,", "row 1: source must not be empty"),
        ("2,s,o,,w,,c,1,,,,minutes,0,,,", "minutes must not be 0; give a failed run an outcome"),
        ("2,s,o,,w,,c,1,,,,parsecs,3,,,", "metric must be one of"),
        ("2,s,o,,w,,c,1,,,,minutes,fast,,,", "value must be a number"),
        ("2,s,o,,w,,c,1,,,,minutes,,,,", "value must be given if and only if"),
        ("2,s,o,,w,,c,1,,,,minutes,3,out of memory,,", "value must be given if and only if"),
        ("2,s,o,,w,,c,1,,,,minutes,,melted,,", "outcome must be one of"),
        ("2,s,o,,w,,c,-1,,,,minutes,3,,,", "num_accelerators must be a number"),
        ("2,s,o,,w,,c,1,,,,minutes,3,,,,extra", "row 1 has more or fewer cells"),
    ],
)
def test_names_invalid_row(tmp_path, row, message):
    (tmp_path / "b.csv").write_text(f"{HEAD}\n{row}\n")
    with pytest.raises(DataError, match=message):
        external.read_measurements(tmp_path / "b.csv")


def test_flags_outlier(tmp_path):
    """A published result with 4 GPUs was 57 times as fast per GPU as comparable ones."""
    rows = [f"2,s,o,,ncf,train,H100,{count},fp16,,,samples_per_second,{rate},,," for count, rate in RATES]
    (tmp_path / "b.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    flags = [found for found in build.build_report([tmp_path / "b.csv"]).findings if "Outlier" in found.message]
    assert [found.subject for found in flags] == ["ncf, train, 4 x H100, fp16"]
    assert flags[0].message.startswith("Outlier: 57")


def test_other_batch_size_is_not_comparable(tmp_path):
    rows = [
        f"2,s,o,,vgg16,train,H200,1,fp16,,{batch},samples_per_second,{rate},,," for batch, rate in ((16, 3), (512, 30))
    ]
    (tmp_path / "b.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    assert not [found for found in build.build_report([tmp_path / "b.csv"]).findings if "Outlier" in found.message]


RATES = [(1, 58e6), (2, 117e6), (4, 13.3e9), (8, 465e6)]


def test_flags_rate_above_peak(published):
    """ResNet-50 on 8 V100s, 1.3 M images in 0.1 s: 30 times the peak."""
    tree = published("box", [4] * 3, 0.1, benchmark="resnet")
    for path in tree.rglob("result_*.txt"):
        path.write_text(path.read_text().replace('"value": 0.245', '"value": 0.765'))
    flags = plausibility.check(group_runs(sources.read_runs([tree])), [])
    assert any("of the data sheet peak" in found.message for found in flags)


def measurements_of(rows):
    template = external.read_measurements(STUDIES / "rtx8000_nvlink_2020.csv")[0]
    return [dataclasses.replace(template, **row) for row in rows]


def with_and_without(*ratios, name="NVLink", **fields):
    rows = []
    for number, ratio in enumerate(ratios):
        configuration = {"workload": f"net{number}", "num_accelerators": 4, **fields}
        rows += [configuration | {"interconnect": f"no {name}", "value": 100.0}]
        rows += [configuration | {"interconnect": name, "value": 100.0 * ratio}]
    return measurements_of(rows)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.001, 1.01, 1.3), "cannot tell (1.095 times"),
        ((1 / 1.001, 1 / 1.01, 1 / 1.3), "cannot tell (0.913 times"),
        ((1.1, 1.11, 1.12), "faster (1.110 times"),
        ((1 / 1.1, 1 / 1.11, 1 / 1.12), "slower (0.901 times"),
        ((1.01, 1.012, 1.014), "equal within 5%"),
        ((1.1,), "cannot tell (1.100 times, not repeated"),
    ],
)
def test_interconnect_effect_is_symmetric_and_named_in_words(ratios, verdict):
    (finding,) = findings._check_interconnects(with_and_without(*ratios))
    assert verdict in finding.message


def test_configurations_of_one_workload_count_as_one_observation():
    """By hand: the workloads' geometric means are 1.1 and 1.2; Student's t with one degree of freedom on their logs."""
    logs = [math.log(1.1), math.log(1.2)]
    half_width = scipy_stats.t.ppf(0.975, 1) * np.std(logs, ddof=1) / math.sqrt(2)
    ratios = {("a", "GPU", "fp16", None, 2): 1.21, ("a", "GPU", "fp16", None, 4): 1.0}
    ratios |= {("b", "GPU", "fp16", None, 4): 1.2, ("b", "GPU", "fp16", None, 1): 5.0}
    effect = findings.pool_by_workload(ratios)
    assert effect.n == 2
    assert effect.interval().high == pytest.approx(math.exp(np.mean(logs) + half_width))
    assert findings.pool_by_workload({("b", "GPU", "fp16", None, 1): 5.0}) is None


def test_interconnects_are_separate():
    both = with_and_without(1.1, 1.11, 1.12) + with_and_without(1.0, 1.0, 1.0, name="PCIe", precision="fp32")
    assert [found.message.split()[3] for found in findings._check_interconnects(both)] == ["NVLink", "PCIe"]


def test_own_runs_are_not_paired_as_external_measurements():
    own = [dataclasses.replace(entry, source=external.OWN_RUNS) for entry in with_and_without(1.5, 1.5, 1.5)]
    assert not [found for found in findings.check_measurements(own, [], []) if found.subject == "interconnect"]


def test_banner_for_different_epochs_only():
    def banners(*epochs):
        rows = [
            {"metric": "epochs", "num_accelerators": count, "value": value}
            for count, value in enumerate(epochs, start=1)
        ]
        return [found.kind for found in findings.check_epochs(measurements_of(rows))]

    assert banners(10.0, 12.0) == ["banner"]
    assert banners(100.0, 104.0) == []


def test_five_percent_speedup_is_an_effect():
    def flags(speedup):
        rows = [{"precision": "fp32", "value": 100.0}, {"precision": "fp16", "value": 100.0 * speedup}]
        return list(findings._check_half_precision(measurements_of(rows)))

    assert flags(1.01)
    assert not flags(1.05)


@pytest.mark.parametrize("rates", [(1.0, 6.0), (10.0, 1.0)])
def test_outlier_is_compared_with_the_others_only(rates):
    rows = [{"num_accelerators": count, "value": rate * count} for count, rate in enumerate(rates, start=1)]
    assert len(plausibility._find_outliers(plausibility._measurement_rates(measurements_of(rows)))) == 2
