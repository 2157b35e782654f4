"""The study of two machines: its page is what the tool says of the logs, and SciPy says the same."""

import numpy as np
import pytest
from scipy import linalg, stats

import timetrial
from timetrial.runner.results.analysis.intervals import SERIAL_CORRELATION
from timetrial.scripts.measure import h100_study

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What `timetrial report --json` says of the runs, and the runs."""
    folder = h100_study.unpack(tmp_path_factory.mktemp("h100"))
    return h100_study.read_report(folder), timetrial.read_runs(folder)


def test_page_has_the_tables_of_the_logs(results):
    page = h100_study.PAGE.read_text()
    for name, table in h100_study.tables(*results).items():
        assert f"<!-- begin {name} -->\n{table}<!-- end {name} -->" in page


def added_variance(logs):
    """Return what correlation of successive values adds to the variance of their mean, by generalized least squares."""
    n, ones = len(logs), np.ones(len(logs))
    correlation = linalg.toeplitz(SERIAL_CORRELATION ** np.arange(n))
    mean = ones @ linalg.solve(correlation, logs) / (ones @ linalg.solve(correlation, ones))
    variance = (logs - mean) @ linalg.solve(correlation, logs - mean) / (n - 1)
    return max(variance * correlation.mean() - logs.var(ddof=1) / n, 0)


def test_scipy_gives_the_same_ratios_and_intervals(results):
    report, runs = results
    assert len(report["comparisons"]) == 7
    for pair in report["comparisons"]:
        benchmark = pair["baseline"].split("(")[1].split()[0]
        same = runs[(runs.benchmark == benchmark) & (runs.scale == "mini")].sort_values("started_at")
        sides = [same[same.system == system] for system in "ab"]
        logs = [np.log(side.duration_s.to_numpy()) for side in sides]
        paces = [np.log((side.duration_s / side.epochs_to_converge).to_numpy()) for side in sides]
        welch = stats.ttest_ind(*logs, equal_var=False)
        variance = sum(side.var(ddof=1) / len(side) for side in logs) + sum(map(added_variance, paces))
        half_width = stats.t.ppf((1 + pair["level"]) / 2, welch.df) * np.sqrt(variance)
        ratio = logs[0].mean() - logs[1].mean()
        expected = np.exp([ratio, ratio - half_width, ratio + half_width])
        assert [pair["ratio"], pair["low"], pair["high"]] == pytest.approx(expected, rel=1e-6), benchmark
        assert (pair["verdict"] in ("faster", "slower")) == (not pair["low"] <= 1 <= pair["high"])


def test_two_machines_with_equal_gpus_are_told_apart_and_not_called_unequal(results):
    report, _ = results
    assert {pair["machines"] for pair in report["comparisons"]} == {"between these two machines"}
    assert {pair["verdict"] for pair in report["comparisons"]} <= {"cannot tell", "equal"}
