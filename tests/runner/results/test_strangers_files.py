"""Attacks with files of strangers on `report`, `study` and `compare`: nothing stops them, the other results stay."""

import bz2
import csv
import importlib.util
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from timetrial.runner.benchmarks.peak_rows import Row
from timetrial.runner.benchmarks.peaks import to_document
from timetrial.runner.cli.app import app
from timetrial.runner.config.compose import compose
from timetrial.runner.launch.run import launch
from timetrial.runner.results.parse.external import REFERENCE_DATA

pytestmark = pytest.mark.integration

spec = importlib.util.spec_from_file_location("attacks", Path(__file__).with_name("attacks.py"))
attacks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(attacks)

INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def run_dirs(tmp_path_factory):
    """Return the run directories of a training run and a throughput run."""
    folder = tmp_path_factory.mktemp("runs")
    ncf = ["recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}"]
    ncf += ["recipe.data.eval_negatives=99", "recipe.global_batch_size=2048", "recipe.max_epochs=12"]
    ncf += ["recipe.target.v05.hit_rate=0.2", f"data_dir={folder}/data"]
    cnn = ["workload=cifar10", "model=cnn10", "scale=reference", "+recipe.training.width=2", "data=synthetic"]
    cnn += ["recipe.global_batch_size=8", "+recipe.data.eval_batch_size=4", "throughput.steps=1", "throughput.blocks=2"]
    for name, overrides in (("training", ncf), ("throughput", cnn)):
        options = ["accelerator=cpu", "launcher=inline", "seed=1", f"run_dir={folder}/{name}", *overrides]
        launch(compose(options).node, Console(quiet=True))
    return folder


@pytest.fixture
def tree(published):
    """Return a tree with ten sound runs of two systems."""
    published("a", [4, 5, 4, 5, 4], 60.0)
    return published("b", [5, 4, 5, 4, 5], 30.0)


@pytest.fixture
def victim(tree, run_dirs):
    """Return a function that puts a copy of a run directory into the tree."""

    def copy(kind):
        return Path(shutil.copytree(run_dirs / kind, tree / "victim"))

    return copy


def timetrial(*arguments):
    outcome = CliRunner().invoke(app, [os.fspath(argument) for argument in arguments], env={"COLUMNS": "300"})
    assert outcome.exit_code == 0, repr(outcome.exception)
    return outcome.stdout


def sound_groups(tree):
    """Return what `study` says of the sound runs; their ranks depend on what else is in their round."""
    groups = [group for group in json.loads(timetrial("study", "--json", tree)) if group["system"] in ("a", "b")]
    return [{key: value for key, value in group.items() if key != "ranking"} for group in groups]


@pytest.fixture
def unchanged(tree):
    """Return a function that fails unless the sound results are as before; it returns what `study` prints."""
    before = sound_groups(tree)
    assert [group["runs"] for group in before] == [5, 5]

    def check():
        assert sound_groups(tree) == before
        printed = timetrial("study", tree)
        assert not INVISIBLE.search(printed)
        return " ".join(printed.split())

    return check


def change(path, keys, value):
    document = json.loads(path.read_text())
    owner = document
    for key in keys[:-1]:
        owner = owner[key]
    owner[keys[-1]] = value
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        *(("training", *entry) for entry in [*attacks.RECORD_CHANGES, *attacks.TRAINING_CHANGES]),
        *(("throughput", *entry) for entry in [*attacks.RECORD_CHANGES, *attacks.THROUGHPUT_CHANGES]),
    ],
)
def test_wrong_value_in_a_run_record_is_passed_over(victim, unchanged, kind, place, value):
    keys = [int(key) if key.isdigit() else key for key in place.split(".")]
    change(victim(kind) / "status.json", keys, value)
    assert "Passed over:" in unchanged()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "1",
        attacks.DEEP,
        '{"a":' * 100_000,
        attacks.BIG,
        "\x00",
        "\ud800",
        '{"schema_version": NaN}',
        "NaN",
    ],
)
@pytest.mark.parametrize("name", ["status.json", "scaling.json", "peaks.json", "training.json", "training.entry.json"])
def test_damaged_json_beside_a_log(victim, unchanged, name, text):
    folder = victim("training")
    (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    if name.startswith("training"):  # the description of a published system
        (folder / "status.json").unlink()
    unchanged()


@pytest.mark.parametrize("name", ["status.json", "scaling.json", "peaks.json", "config.yaml", "system.json"])
@pytest.mark.parametrize("make", ["pipe", "zero", "folder", "loop", "memory", "large", "unreadable name"])
def test_special_file_beside_a_log(victim, unchanged, name, make):
    path = victim("training") / name
    path.unlink(missing_ok=True)
    match make:
        case "pipe":
            os.mkfifo(path)
        case "zero":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)
        case "memory":
            path.symlink_to("/proc/self/mem")
        case "large":
            with open(path, "wb") as file:
                file.truncate(2**40)
        case _:
            os.rename(path.parent, os.fsencode(path.parent) + b"\xff\xfe")
    unchanged()


def test_special_files_as_logs(tree, unchanged):
    folder = tree / "v0.7/Maker/b/odd"
    folder.mkdir()
    os.mkfifo(folder / "result_0.txt")
    (folder / "result_1.txt").symlink_to("/dev/zero")
    (folder / "result_2.txt").symlink_to(folder)
    for name in ("result_1²2.txt", "result_٣.txt", f"result_{'7' * 200}.txt", os.fsdecode(b"result_\xff.txt")):
        shutil.copyfile(tree / "v0.7/Maker/b/gnmt/result_0.txt", folder / name)
    unchanged()


@pytest.mark.parametrize("name", attacks.LOGS)
def test_hostile_log(tree, unchanged, name):
    folder = tree / "odd"
    folder.mkdir()
    (folder / "result_0.txt").write_text(attacks.LOGS[name])
    (folder / "result_1.txt").write_text("\n".join(attacks.lines()))
    unchanged()


def test_compressed_zeros(tree, unchanged):
    (tree / "odd").mkdir()
    zeros = bz2.compress(b"\0" * (64 << 20))
    (tree / "odd" / "result_0.txt.bz2").write_bytes(zeros * 16)  # one gigabyte
    unchanged()


@pytest.mark.parametrize(
    "value", [attacks.BIG, "8" * 400, "x", ["8"], {"a": 8}, None, True, -8, 1e308, attacks.HOSTILE]
)
@pytest.mark.parametrize("key", ["accelerators_per_node", "number_of_nodes", "accelerator_model_name", "framework"])
def test_odd_description_of_a_system(tree, unchanged, key, value):
    shutil.copytree(tree / "v0.7/Maker/b/gnmt", tree / "v0.7/Maker/odd/gnmt")
    description = json.loads((tree / "v0.7/Maker/systems/b.json").read_text()) | {key: value}
    (tree / "v0.7/Maker/systems/odd.json").write_text(json.dumps(description))
    assert timetrial("study", tree)
    odd = [group for group in json.loads(timetrial("study", "--json", tree)) if group["system"] == "odd"]
    assert [group["runs"] for group in odd] == [5]


@pytest.mark.parametrize(("place", "value"), attacks.PEAKS_CHANGES)
def test_wrong_value_in_peaks(tree, unchanged, place, value):
    rows = [Row(kind, "64x64", "fp32", "fp32", 1.0, 0.9, 1.1, 3, tflops=2.0, gb_s=3.0) for kind in ("gemm", "copy")]
    document = to_document("cpu", rows, None, 1.0, quick=False, stopped=False)
    (tree / "peaks.json").write_text(json.dumps(document))
    unchanged()
    change(tree / "peaks.json", [int(key) if key.isdigit() else key for key in place.split(".")], value)
    unchanged()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace(",", ",,", 40),
        lambda text: text + '"' + "x" * 200_000,
        lambda text: text.replace("samples_per_second,229", "samples_per_second,1e999"),
        lambda text: text.replace("samples_per_second,229", f"samples_per_second,{attacks.BIG}"),
        lambda text: text.replace("samples_per_second,229", "samples_per_second,nan"),
        lambda text: text.replace("samples_per_second", "\0"),
        lambda text: f"schema,{'a,' * 5000}\n1,2",
    ],
)
def test_damaged_table_is_passed_over(tree, unchanged, tmp_path, damage):
    table = tmp_path / "table.csv"
    table.write_text(damage((REFERENCE_DATA / "anchors.csv").read_text()))
    assert "Passed over:" in " ".join(timetrial("study", tree, table).split())
    os.remove(table)
    os.mkfifo(table)
    timetrial("study", tree, table)


def test_report_over_all_attacks(tree, run_dirs, tmp_path):
    """The page, its Markdown and all CSV files, over a tree that holds the attacks above together."""
    timetrial("report", tree, "--out", tmp_path / "before")
    odd = tree / "odd"
    for place, text in enumerate(attacks.LOGS.values()):
        (odd / f"log_{place}").mkdir(parents=True)
        (odd / f"log_{place}" / "result_0.txt").write_text(text)
    for kind, changes in (("training", attacks.TRAINING_CHANGES), ("throughput", attacks.THROUGHPUT_CHANGES)):
        for number, (place, value) in enumerate([*attacks.RECORD_CHANGES, *changes]):
            folder = Path(shutil.copytree(run_dirs / kind, odd / f"{kind}_{number}"))
            change(folder / "status.json", [int(key) if key.isdigit() else key for key in place.split(".")], value)
    hostile = Path(shutil.copytree(run_dirs / "training", odd / "hostile"))
    for keys in ("config.system", "config.submission.org", "config.accelerator.name", "attempts.0.hostname", "error"):
        names = [int(key) if key.isdigit() else key for key in keys.split(".")]
        change(hostile / "status.json", names, attacks.HOSTILE * 50)
    change(hostile / "status.json", ["flags"], {attacks.HOSTILE: attacks.HOSTILE})
    shutil.copytree(tree / "v0.7/Maker/a", tree / "v0.7/Maker" / os.fsdecode(b"\xff\xfe\x1b[31m\xe2\x80\xae"))
    printed = timetrial("report", tree, "--out", tmp_path / "after")
    assert not INVISIBLE.search(printed)
    for path in (tmp_path / "after").rglob("*.*"):
        assert not INVISIBLE.search(path.read_text()), path
    before, after = (
        {row["path"]: row for row in csv.DictReader((tmp_path / name / "csv/runs.csv").read_text().splitlines())}
        for name in ("before", "after")
    )
    assert len(before) == 10
    assert {path: after[path] for path in before} == before
    page = (tmp_path / "after" / "report.html").read_text()
    assert "Passed over" in page
    assert not (tmp_path / "escape").exists()


def test_export_stays_in_its_folder(tree, tmp_path):
    (tree / "odd").mkdir()
    (tree / "odd" / "result_0.txt").write_text(attacks.LOGS["benchmark is a path"])
    timetrial("report", tree, "--export-mlperf", tmp_path / "a/b/c/export")
    assert {path.name for path in (tmp_path / "a/b/c").iterdir()} == {"export"}
    assert {path.name for path in (tmp_path / "a/b").iterdir()} == {"c"}
