"""The study of one H200: its page is what the tool says of the logs, and SciPy and pandas say the same."""

import numpy as np
import pytest
from scipy import stats

from timetrial.scripts.measure import h200_study

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What `timetrial report --json` says of the runs, and those of mini recipes."""
    return h200_study.read_studies(tmp_path_factory.mktemp("studies"))


@pytest.fixture(scope="module")
def cells():
    """The cells of a table of the page by workload."""
    page = h200_study.PAGE.read_text()

    def read(name):
        table = page.split(f"<!-- begin {name} -->")[1].split("<!-- end")[0]
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.strip().splitlines()[2:]]
        return {workload: row for workload, *row in rows}

    return read


def test_page_has_the_tables_of_the_logs(results):
    page = h200_study.PAGE.read_text()
    for name, table in h200_study.tables(*results).items():
        assert f"<!-- begin {name} -->\n{table}<!-- end {name} -->" in page


def test_every_run_of_the_h200_reached_its_target(results):
    runs = results[1][results[1].system == "h200"]
    assert (len(runs), runs.success.all()) == (52, True)


def test_scipy_gives_the_same_parts_and_energies(results, cells, ratio_text):
    runs = results[1]
    for benchmark, name in h200_study.NAMES.items():
        side = dict(iter(runs[runs.benchmark == benchmark].groupby("system")))
        records = [record.training for record in side["h200"].record]
        epoch = stats.gmean([each.train_seconds / each.epochs for each in records])
        assert cells("parts")[name][0] == f"{epoch:.3g} s"
        for place, system in enumerate(sorted(side.keys() - {"h200"}), start=1):
            assert cells("parts")[name][place] == ratio_text(side["h200"].per_epoch, side[system].per_epoch)
            assert cells("parts")[name][place + 3] == ratio_text(
                side["h200"].per_evaluation, side[system].per_evaluation
            )
            if name in cells("energy"):
                assert cells("energy")[name][place] == ratio_text(side["h200"].energy_j, side[system].energy_j)


def test_prices_of_equal_cost_are_the_inverse_of_the_times(results, cells, ratio_text):
    runs = results[1]
    for benchmark, name in h200_study.NAMES.items():
        sides = dict(iter(runs[runs.benchmark == benchmark].groupby("system").per_epoch))
        for place, system in enumerate("ab"):
            time, price = cells("verdicts")[name][2 + 2 * place], cells("prices")[name][place]
            assert bool(time) == bool(price)
            if time:
                ratio, low, high = (1 / float(word.strip("()")) for word in time.split() if word != "to")
                expected = [ratio, high, low]
                assert [float(word.strip("()")) for word in price.split() if word != "to"] == pytest.approx(
                    expected, rel=0.01
                )
            if system in sides:
                assert cells("prices")[name][2 + place] == ratio_text(sides[system], sides["h200"])


def test_ratios_are_of_the_means_and_verdicts_follow_the_intervals(results, cells):
    runs = results[1]
    for benchmark, name in h200_study.NAMES.items():
        same = runs[(runs.benchmark == benchmark) & runs.success]
        row, mean = cells("verdicts")[name], same.groupby("system").duration_s.apply(stats.gmean)
        assert row[1].startswith(f"{mean['h200']:.3g} s")
        for place, system in ((2, "a"), (4, "b")):
            if system in mean:
                ratio, low, _, high = row[place].replace("(", "").replace(")", "").split()
                assert float(ratio) == pytest.approx(mean["h200"] / mean[system], rel=5e-3)
                assert row[place + 1] == "cannot tell" or not float(low) <= 1 <= float(high)


def test_numpy_gives_the_same_ratios_of_epochs_and_correlations(results, cells, ratio_text):
    epochs = results[3]
    assert not epochs.duplicated(["benchmark", "processor", "seed"]).any()
    for benchmark, name in h200_study.NAMES.items():
        sides = [epochs[(epochs.benchmark == benchmark) & (epochs.processor == gpu)] for gpu in ("H200", "H100")]
        if not all(map(len, sides)):
            assert name not in cells("epochs")
            continue
        counts = [f"{len(side)}" for side in sides]
        own, theirs = (side.set_index("seed").fractional for side in sides)
        both = sorted(set(own.index) & set(theirs.index))
        row = cells("epochs")[name]
        assert row[:4] == [*counts, ratio_text(own, theirs), f"{len(both)}"]
        if len(both) < 5:
            assert not row[4]
            continue
        found = np.corrcoef(np.log(own[both]), np.log(theirs[both]))[0, 1]
        bounds = np.tanh(np.arctanh(min(found, 1 - 1e-12)) + np.array([-1, 1]) * 1.959964 / np.sqrt(len(both) - 3))
        assert row[4] == "{:.2f} ({:.2f} to {:.2f})".format(found, *bounds)


def test_scipy_gives_the_same_ratios_of_two_machines_with_an_h200(results, cells, ratio_text):
    first, second = results[1][results[1].system == "h200"], results[2]
    assert second.groupby("benchmark").size().to_dict() == {"gnmt": 10, "gpt": 10, "ncf": 10, "resnet": 5, "ssd": 10}
    for benchmark, name in h200_study.NAMES.items():
        sides = [side[side.benchmark == benchmark] for side in (second, first)]
        if len(sides[0]):
            columns = ("duration_s", "per_epoch", "per_evaluation")
            assert cells("machines")[name][1:4] == [ratio_text(*(side[name] for side in sides)) for name in columns]


def test_pandas_counts_the_same_equal_epochs(results, cells):
    runs = results[1][results[1].success]
    for benchmark, name in h200_study.NAMES.items():
        own = runs[(runs.benchmark == benchmark) & (runs.system == "h200")]
        for place, system in enumerate("ab"):
            other = runs[(runs.benchmark == benchmark) & (runs.system == system)]
            pairs = own.merge(other, on="seed")
            equal = (pairs.epochs_to_converge_x == pairs.epochs_to_converge_y).sum()
            assert cells("pairs")[name][place] == (f"{equal} of {len(pairs)}" if len(pairs) else "")
