"""The study of random streams: known shares are recovered, and the page is what its logs say, as SciPy does."""

import importlib.util
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from timetrial.runner.core.errors import Exit
from timetrial.runner.record.run_record import RunState
from timetrial.scripts.measure import seed_study, study_page
from timetrial.scripts.measure.seed_outcomes import STREAMS

spec = importlib.util.spec_from_file_location("seed_runs", Path(__file__).with_name("seed_runs.py"))
seed_runs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(seed_runs)
cross_at, make_record, write, UNSET = seed_runs.cross_at, seed_runs.make_record, seed_runs.write, seed_runs.UNSET

TRUE_SHARES = {"initialization": 0.5, "data_order": 0.3, "dropout": 0.1, "sampling": 0.0}
NOISE = 0.1
SEEDS = 120


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """A study whose streams have `TRUE_SHARES` of the variance of the log epochs, of which the spread is 10%."""
    root = tmp_path_factory.mktemp("seeds")
    draws = np.random.default_rng(3)

    def run(folder, seed, streams, effect):
        noise = draws.normal(scale=math.sqrt(NOISE))
        training = cross_at(20 * math.exp(0.1 * (effect + noise)))
        write(folder / f"{seed}-{streams}", make_record(training, seed=seed, streams=UNSET | streams))

    for stream, share in TRUE_SHARES.items():
        for seed in range(1, SEEDS + 1):
            effect = draws.normal(scale=math.sqrt(share))
            run(root / "streams/gpu/ncf_mini" / stream, 1, {stream: seed}, effect)
    for seed in range(1, SEEDS + 1):
        run(root / "streams/gpu/ncf_mini/all", seed, {}, draws.normal(scale=math.sqrt(1 - NOISE)))
    for place in range(60):
        run(root / f"repeats/ncf_mini/{place}", 1, {}, 0)
    return root


def cells_of(table):
    """Return the cells of a table's rows by the first two."""
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]
    return {tuple(row[:2]): row[2:] for row in rows}


def percentages(cell):
    """Return the estimate and the bounds of `50% (40% to 60%)`, or of an estimate without bounds."""
    return [float(word.strip("()%")) / 100 for word in cell.split() if word != "to"]


def test_known_shares_are_recovered(simulated):
    rows = cells_of(seed_study.tables(simulated)["streams"])
    assert rows["NCF", "all"][0] == f"{SEEDS}"
    for stream, share in (TRUE_SHARES | {"none": 0.0}).items():
        estimate, low, high = percentages(rows["NCF", stream.replace("_", " ")][3])
        assert low <= share + NOISE <= high, stream
        assert estimate == pytest.approx(share + NOISE, abs=0.15), stream
    _, low, high = percentages(rows["NCF", "sum of 4 streams"][3])
    assert low <= 1 <= high


# The other tables


def test_tables_of_repeats_determinism_and_precision(tmp_path):
    replays = {"accelerator": "h100", "workload": "NCF", "steps": 100, "replays": 3}
    lines = [
        {"run": "recipe=ncf/mini precision=bf16"} | replays | {"differs": True, "step": 7, "tensor": "fc.weight"},
        {"run": "recipe=ncf/mini engine.deterministic=true"} | replays | {"differs": False},
    ]
    (tmp_path / "first_difference.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for place, epochs in enumerate((2.5, 2.5, 3.25)):
        write(tmp_path / f"repeats/ncf_mini/{place}", make_record(cross_at(epochs)))
        on_cpu = make_record(cross_at(2.5), recipe="gpt/embedded", accelerator="cpu")
        write(tmp_path / f"repeats/cpu/gpt_embedded/{place}", on_cpu)
        elsewhere = make_record(cross_at(4.5, rate=9.0), accelerator="h200", seed=2)
        write(tmp_path / f"repeats/ncf_mini/h200-{place}", elsewhere)
        for deterministic, rate in ((False, 100.0 + place), (True, 50.0 + place)):
            training = cross_at(2.5 if deterministic else epochs, rate=rate)
            folder = tmp_path / f"deterministic/ncf_mini/{deterministic}{place}"
            write(folder, make_record(training, deterministic=deterministic))
    refused = make_record(None, deterministic=True, state=RunState.FAILED, recipe="ssd/mini")
    refused = refused.ended(Exit.DEVICE, "No deterministic algorithm: a | b.")
    write(tmp_path / "deterministic/ssd_mini/0", refused)
    for seed in (1, 2, 3):
        for precision, factor in (("fp32", 1), ("bf16", 2 + 0.1 * seed)):
            training = cross_at(2.5 + 0.1 * seed, seconds=8 / factor, rate=100 * factor)
            record = make_record(training, seed=seed, precision=precision, joules=1000.0 * factor)
            write(tmp_path / f"precision/gnmt_mini/{precision}{seed}", record)
    tables = {name: cells_of(table) for name, table in seed_study.tables(tmp_path).items()}

    spread = np.log([2.5, 2.5, 3.25]).std(ddof=1)
    step = "7: `fc.weight`"
    assert tables["repeats"]["NCF", "H100"] == ["3", "no", "1", "2: 3 to 4", f"{spread:.1%}", step]
    assert tables["repeats"]["NCF", "H200"] == ["3", "yes", "", "1: 5", "0.0%", ""]
    assert tables["repeats"]["GPT", "EPYC, 2 cores"] == ["3", "yes", "", "1: 3", "0.0%", ""]

    fewer = tables["deterministic"]["NCF", "H100"]  # the repeats on the same processor are among those without
    ratio = stats.ttest_ind(-np.log([50, 51, 52]), -np.log([100, 101, 102, 100, 100, 100]), equal_var=False)
    low, high = np.exp(ratio.confidence_interval())
    equal = ["no", "yes", "none of 100, 3 replays"]
    assert fewer[:7] == ["6", "3", *equal, "1 s", "1.96 s"]
    assert fewer[7].endswith(f"({low:.3g} to {high:.3g})")
    assert tables["deterministic"]["SSD", "H100"] == ["", "1", *[""] * 5, "No deterministic algorithm: a \\| b."]

    assert tables["precision"]["GNMT", "fp32"] == ["H100", "3", "100", "", "2.7", "", "8 s", "", "1 kJ", ""]
    factors = np.log([2.1, 2.2, 2.3])
    mean = math.exp(factors.mean())
    low, high = np.exp(stats.t.interval(0.95, 2, factors.mean(), stats.sem(factors)))
    to_fp32 = f"{mean:.3g} ({low:.3g} to {high:.3g})"
    _, runs, rate, of_rate, epochs, of_epochs, *_, joules, of_joules = tables["precision"]["GNMT", "bf16"]
    assert [runs, rate, of_rate, epochs, of_epochs] == ["3", f"{100 * mean:.0f}", to_fp32, "2.7", "1"]
    assert [joules, of_joules] == [f"{mean:.3g} kJ", to_fp32]


def test_page_without_a_place_for_a_table_is_refused():
    page = "a\n<!-- begin streams -->\nold\n<!-- end streams -->\nb\n"
    assert study_page.fill(page, {"streams": "new\n"}) == page.replace("old", "new")
    with pytest.raises(ValueError, match="precision"):
        study_page.fill(page, {"precision": "new\n"})


def test_page_has_a_place_for_every_table(tmp_path):
    assert study_page.fill(seed_study.PAGE.read_text(), seed_study.tables(tmp_path))


# The page against the archive


@pytest.fixture(scope="module")
def archived(tmp_path_factory):
    """The folder of the archive's runs, and the tables of them."""
    root = study_page.unpack(seed_study.ARCHIVE, tmp_path_factory.mktemp("archive"))
    return root, seed_study.tables(root)


@pytest.mark.integration
def test_page_has_the_tables_of_the_logs(archived):
    page = seed_study.PAGE.read_text()
    assert study_page.fill(page, archived[1]) == page


@pytest.mark.integration
def test_every_run_of_the_archive_has_its_log(archived):
    run_dirs = [path.parent for path in archived[0].rglob("status.json")]
    assert run_dirs
    assert not [run_dir for run_dir in run_dirs if not list(run_dir.glob("result_*.txt"))]


def outcome_of(run_dir):
    """Return the log outcome of a run by its quality.csv; NaN without one."""
    status = json.loads((run_dir / "status.json").read_text())
    recipe, training = status["config"]["recipe"], status["training"]
    if not training:
        return math.nan
    table = pd.read_csv(run_dir / "quality.csv").set_index("epoch")
    target = pd.Series(training["target"])
    if recipe["first_eval_epoch"] == recipe["max_epochs"]:
        return np.log(1 - table[target.index[0]].iloc[-1])
    margin = (table[target.index] - target) * (-1 if recipe["lower_is_better"] else 1)
    met = (margin >= 0).all(axis=1)
    if not met.any():
        return math.nan
    until = margin.loc[: met.idxmax()].iloc[-2:]
    crossed = [np.interp(0, until[metric], until.index) for metric in until if until[metric].iloc[0] < 0]
    return np.log(max(crossed, default=until.index[-1]))


def outcomes_of(folder, *, once_a_seed):
    """Return an array of outcomes for each processor on which runs below a folder have ended."""
    found = {}
    for path in folder.rglob("status.json"):
        status = json.loads(path.read_text())
        if status["state"] not in ("created", "running", "stopped", "time limit"):
            start = status["attempts"][0]["started_at"]
            seeds = str([status["config"][key] for key in ("seed", "seeds")])
            order = (status["training"] is None, start)
            key = seeds if once_a_seed else str(path)
            name = status["config"]["accelerator"]["name"]
            cpu = status["environment"]["cpu"]
            where = f"{cpu['model']} {cpu['logical_cores']}" if name == "cpu" else name
            this = order, outcome_of(path.parent), where
            found[key, where] = min(found.get((key, where), this), this)
    values = pd.DataFrame([rest for _, *rest in found.values()], columns=["outcome", "processor"]).dropna()
    return [group.to_numpy() for _, group in values.groupby("processor").outcome]


def pooled(groups):
    """Return the mean variance within groups and its degrees of freedom by Satterthwaite; NaN and 0 without any."""
    known = [(group.var(ddof=1) if np.ptp(group) else 0.0, len(group) - 1) for group in groups if len(group) > 1]
    total = sum(dof for _, dof in known)
    if not total:
        return math.nan, 0
    value = sum(variance * dof for variance, dof in known) / total
    # The variance of an estimated variance is 2 v^2 / dof; that of the weighted mean of several gives its dof.
    spread = sum((dof / total) ** 2 * 2 * variance**2 / dof for variance, dof in known)
    return value, 2 * value**2 / spread if spread else total


def check_shares(root, device, repeats, table):
    """Compare the rows of a table with variances from quality.csv, quantiles of F and draws of chi-squared."""
    rows = cells_of(table)
    for place in filter(Path.is_dir, sorted((root / "streams" / device).iterdir())):
        name = seed_study._NAMES[place.name.split("_")[0]]
        values = {arm: pooled(outcomes_of(place / arm, once_a_seed=True)) for arm in (*STREAMS, "all")}
        values["none"] = pooled(outcomes_of(repeats / place.name, once_a_seed=False))
        whole, whole_dof = values.pop("all")
        values = {arm: known for arm, known in values.items() if known[1]}
        for arm, (variance, dof) in values.items():
            cells = rows[name, arm.replace("_", " ")]
            assert cells[2] == f"{math.sqrt(variance):.1%}", (name, arm)
            if not whole_dof or not whole:
                continue
            if not variance:
                assert cells[3:5] == ["0%", ""], (name, arm)
                continue
            expected = [variance / whole, *variance / whole * stats.f.ppf([0.025, 0.975], whole_dof, dof)]
            assert percentages(cells[3]) == pytest.approx(expected, abs=0.0051), (name, arm)
            least = stats.f.isf(0.025, whole_dof, dof) / stats.f.isf(0.8, whole_dof, dof)
            assert float(cells[4]) == pytest.approx(least, abs=0.051)
            fixed, fixed_dof = values.get("none", (0, 0))
            if arm != "none" and fixed:
                over = variance / fixed
                bounds = over / stats.f.isf([0.025, 0.975], dof, fixed_dof)
                assert cells[5] == f"{over:.3g} ({bounds[0]:.3g} to {bounds[1]:.3g})", (name, arm)
        if "none" in values and len(values) > 2 and whole_dof and whole:
            parts = {
                arm: variance * dof / stats.chi2.rvs(dof, size=200_000, random_state=seed)
                for seed, (arm, (variance, dof)) in enumerate((values | {"all": (whole, whole_dof)}).items())
            }
            total, fixed = parts.pop("all"), parts.pop("none")
            drawn = (sum(parts.values()) - (len(parts) - 1) * fixed) / total
            _, low, high = percentages(rows[name, f"sum of {len(parts)} streams"][3])
            assert [low, high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]), rel=0.05, abs=0.03), name


def test_scipy_gives_the_same_shares_of_a_simulation(simulated):
    check_shares(simulated, "gpu", simulated / "repeats", seed_study.tables(simulated)["streams"])


@pytest.mark.integration
def test_scipy_gives_the_same_shares_of_the_archive(archived):
    root, tables = archived
    check_shares(root, "gpu", root / "repeats", tables["streams"])
    check_shares(root, "cpu", root / "repeats" / "cpu", tables["streams_cpu"])


@pytest.mark.integration
def test_table_of_the_search_is_what_the_files_say(archived):
    root, tables = archived
    names = {"cifar10": "CIFAR-10", "resnet50": "ResNet-50", "ssd": "SSD", "maskrcnn": "Mask R-CNN"}
    for workload, name in names.items():
        sides = [read_search(root / "search" / side / f"{workload}_mini") for side in ("with", "without")]
        cells = []
        for side in sides:
            of_seeds = [group["values"].nunique() for _, group in side.groupby("seed") if len(group) > 1]
            repeats = f"{of_seeds.count(1)} of {len(of_seeds)}" if of_seeds else ""
            warm_up, seconds = f"{side.warm_up.median():.3g} s", f"{side.seconds.median():.3g} s"
            cells.append([f"{len(side)}", repeats, warm_up, seconds])
        row = next(line for line in tables["search"].splitlines() if line.startswith(f"| {name} |"))
        shown = [cell.strip() for cell in row.split("|")[2:-1]]
        assert shown[:-1] == [cell for pair in zip(*cells, strict=True) for cell in pair]
        logs = [np.log(side.seconds) for side in sides]
        if min(map(len, logs)) > 1:
            bounds = stats.ttest_ind(*reversed(logs), equal_var=False).confidence_interval()
            ratio = np.exp([logs[1].mean() - logs[0].mean(), *bounds])
            assert shown[-1] == "{:.3g} ({:.3g} to {:.3g})".format(*ratio)
        else:
            assert not shown[-1]


def read_search(folder):
    """Return a row for each run below a folder: its seed, seconds of warm-up and of an epoch, and what it computed."""
    rows = []
    for path in folder.rglob("status.json"):
        table, status = pd.read_csv(path.parent / "quality.csv"), json.loads(path.read_text())
        rates = table.samples / table.train_seconds
        epoch = table.samples[0] / table.epoch[0] / rates[1:].median()
        values = table.drop(columns=["seconds", "samples", "train_seconds", "eval_seconds"]).to_csv()
        rows.append([status["config"]["seed"], status["attempts"][0]["startup"]["warming up"], epoch, values])
    return pd.DataFrame(rows, columns=["seed", "warm_up", "seconds", "values"])
