"""The study of H200s: its page is what the tool says of the logs, and SciPy and pandas say the same."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from timetrial.runner.record.performance import PERFORMANCE_FILE
from timetrial.scripts.measure import h200_study

pytestmark = pytest.mark.integration

MACHINES = (("h200", ""), ("h200b", ", later H200"))


def rows(runs):
    """The name in the tables and the runs of each system of each workload on the first H200 and on later ones."""
    for benchmark, name in h200_study.NAMES.items():
        for own, label in MACHINES:
            same = runs[(runs.benchmark == benchmark) & runs.system.isin([own, "a", "b"])]
            if (same.system == own).any():
                yield name + label, own, dict(iter(same.groupby("system")))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What `timetrial report --json` says of the runs, and what the tables are made of."""
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
    for name, table in h200_study.tables(results).items():
        assert f"<!-- begin {name} -->\n{table}<!-- end {name} -->" in page


@pytest.mark.parametrize(("system", "count"), [("h200", 52), ("h200b", 80)])
def test_every_run_of_an_h200_reached_its_target(results, system, count):
    runs = results.runs[results.runs.system == system]
    assert (len(runs), runs.success.all()) == (count, True)


def test_scipy_gives_the_same_parts_and_energies(results, cells, ratio_text):
    for name, own, sides in rows(results.runs):
        records = [record.training for record in sides[own].record]
        epoch = stats.gmean([(each.train_seconds - each.data_wait_seconds) / each.epochs for each in records])
        assert cells("parts")[name][0] == f"{epoch:.3g} s"
        for place, system in enumerate(sorted(sides.keys() - {own}), start=1):
            mine, theirs = sides[own], sides[system]
            assert cells("parts")[name][place] == ratio_text(mine.per_epoch, theirs.per_epoch)
            assert cells("parts")[name][place + 3] == ratio_text(mine.per_evaluation, theirs.per_evaluation)
            if name in cells("energy"):
                assert cells("energy")[name][place] == ratio_text(mine.energy_j, theirs.energy_j)


def test_prices_of_equal_cost_are_the_inverse_of_the_times(results, cells, ratio_text):
    for name, own, sides in rows(results.runs):
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
                assert cells("prices")[name][2 + place] == ratio_text(sides[system].per_epoch, sides[own].per_epoch)


def test_ratios_are_of_the_means_and_verdicts_follow_the_intervals(results, cells):
    for name, own, sides in rows(results.runs[results.runs.success]):
        row, mean = cells("verdicts")[name], {system: stats.gmean(side.duration_s) for system, side in sides.items()}
        assert row[1].startswith(f"{mean[own]:.3g} s")
        for place, system in ((2, "a"), (4, "b")):
            if row[place]:
                ratio, low, _, high = row[place].replace("(", "").replace(")", "").split()
                assert float(ratio) == pytest.approx(mean[own] / mean[system], rel=5e-3)
                assert row[place + 1] == "cannot tell" or not float(low) <= 1 <= float(high)
            else:
                assert row[place + 1] in ("", "not comparable")


def test_numpy_gives_the_same_ratios_of_epochs_and_correlations(results, cells, ratio_text):
    epochs = results.epochs
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


def test_scipy_gives_the_same_ratios_of_machines_with_an_h200(results, cells, ratio_text):
    first, later = (results.runs[results.runs.system == system] for system, _ in MACHINES)
    second = results.second
    assert second.groupby("benchmark").size().to_dict() == {"gnmt": 10, "gpt": 10, "ncf": 10, "resnet": 5, "ssd": 10}
    for benchmark, name in h200_study.NAMES.items():
        for label, other in (("second", second), ("later", later)):
            sides = [side[side.benchmark == benchmark] for side in (other, first)]
            row = cells("machines").get(f"{name}, {label}")
            assert bool(len(sides[0])) == bool(row)
            if row:
                columns = ("duration_s", "per_epoch", "per_evaluation")
                assert row[1:4] == [ratio_text(*(side[column] for side in sides)) for column in columns]


def test_pandas_counts_the_same_equal_epochs(results, cells):
    runs = results.runs[results.runs.success]
    for benchmark, name in h200_study.NAMES.items():
        own = runs[(runs.benchmark == benchmark) & (runs.system == "h200")]
        for place, system in enumerate("ab"):
            other = runs[(runs.benchmark == benchmark) & (runs.system == system)]
            pairs = own.merge(other, on="seed")
            equal = (pairs.epochs_to_converge_x == pairs.epochs_to_converge_y).sum()
            assert cells("pairs")[name][place] == (f"{equal} of {len(pairs)}" if len(pairs) else "")


def test_scipy_gives_the_same_reference_speeds(results, cells):
    """From the plain files and performance.csv."""
    figures = pd.read_csv(PERFORMANCE_FILE, keep_default_na=False)
    runs = {}
    folders = [results.multi_gpu / name for name in ("in_backward", "in_backward_strong", "reference")]
    paths = [path for folder in folders for path in folder.glob("*/1gpu/*/status.json")]
    for path in paths:
        record = json.loads(path.read_text())
        place = record["config"]["workload"]["title"], record["config"]["workload"]["name"]
        rate = record["throughput"]["tokens_per_second"] or record["throughput"]["samples_per_second"]
        runs.setdefault(place, []).append((rate, record["config"]["recipe"]["global_batch_size"]))
    assert len(runs) == 8
    for (title, name), measured in runs.items():
        rates, batches = zip(*measured, strict=True)
        row = cells("reference")[title]
        assert row[:2] == [f"{batches[0]:,}", f"{len(rates)}"]
        assert row[2].split()[0] == f"{stats.gmean(rates):,.0f}"
        same = figures[
            (figures.workload == name) & (figures.recipe == "reference") & (figures.variant == "")
            & (figures.gpu == "H100") & (figures.gpus == 1) & (figures.batch == str(batches[0]))
            & (figures.data == "synthetic") & (figures.precision == "bf16") & (figures.quantity == "training")
        ]  # fmt: skip
        (h100,) = same.value
        assert row[-1] == f"{stats.gmean(rates) / h100:.3g}"
