"""The study of two machines: its page is what the tool says of the logs, and SciPy says the same."""

import itertools

import numpy as np
import pytest
from scipy import linalg, stats

import timetrial
from timetrial.runner.results.analysis import expectations
from timetrial.runner.results.analysis.intervals import SERIAL_CORRELATION
from timetrial.scripts.measure import h100_expectations, h100_study, study_page

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What `timetrial report --json` says of the runs, and those of mini recipes."""
    folder = study_page.unpack(h100_study.ARCHIVE, tmp_path_factory.mktemp("h100"))
    runs = h100_expectations.read_mini_runs(folder, timetrial.read_runs(folder))
    return h100_study.read_report(folder), runs


def test_page_has_the_tables_of_the_logs(results):
    page = h100_study.PAGE.read_text()
    for name, table in h100_study.tables(*results).items():
        assert f"<!-- begin {name} -->\n{table}<!-- end {name} -->" in page


def test_recipes_have_the_rows_of_the_runs(results):
    _, runs = results
    assert h100_study.recipe_rows(runs) == expectations.FILE.read_text()
    for recipe, same in runs[runs.success].groupby("recipe"):
        known = expectations.find_expectation(recipe, "v05")
        assert known.epochs == tuple(np.sort(same.epochs_to_converge)), recipe
        assert (known.runs, known.accelerator) == (len(same), "h100")
        assert known.seconds_range == pytest.approx((same.duration_s.min(), same.duration_s.max()), rel=5e-3)
        paces = [np.log(side.duration_s / side.epochs_to_converge) for _, side in same.groupby("system")]
        differences = [first - second for side in paces for first, second in itertools.combinations(side, 2)]
        assert known.pace_deviation == pytest.approx(np.sqrt(np.mean(np.square(differences))), rel=0.05), recipe
    assert expectations.find_expectation("cifar10/mini_airbench", "v05") is None  # no run reached the target


def predictions():
    """Return the cells of the page's table of predictions by workload."""
    table = h100_study.PAGE.read_text().split("begin predictions -->")[1].split("<!-- end")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.strip().splitlines()[2:]]
    return {name: cells for name, *cells in rows}


def test_intervals_of_estimate_hold_as_often_as_they_say():
    for name, cells in predictions().items():
        for cell in cells[:4]:  # the fifth is measured on another machine, of which estimate says nothing
            hits, runs = (int(word) for word in cell.split()[:3:2])
            assert stats.binom.cdf(hits, runs, 0.95) > 0.025, (name, cell)
            bounds = stats.beta.ppf([0.025, 0.975], [hits, hits + 1], [runs - hits + 1, runs - hits])
            low, high = np.where(np.isnan(bounds), 1, bounds)  # Clopper and Pearson 1934
            assert cell.endswith(f"({low:.0%} to {high:.0%})"), (name, cell)


def test_epochs_of_ten_runs_are_predicted_by_students_interval(results):
    """ResNet-50 is evaluated after every epoch, so a bound is rounded up to a whole one."""
    hits, same = 0, results[1][results[1].benchmark == "resnet"]
    for index, run in same.iterrows():
        others = np.log(same[same.system == run.system].drop(index).epochs_to_converge)
        deviation = max(others.std(), 1 / np.sqrt(12) / np.exp(others).mean())
        bounds = stats.t.interval(0.95, 8, others.mean(), deviation * np.sqrt(1 + 1 / 9))
        low, high = np.ceil(np.exp(bounds))
        hits += low <= run.epochs_to_converge <= high
    assert predictions()["ResNet-50"][0].startswith(f"{hits} of 20 ")


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
        same = runs[runs.benchmark == benchmark]
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
