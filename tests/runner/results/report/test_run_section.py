"""What the page says of single runs, against their run records and logs."""

import csv
import html
import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.results.report import build, page

spec = importlib.util.spec_from_file_location("pages", Path(__file__).with_name("pages.py"))
pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)


def write(tmp_path, *paths):
    return page.write_page(build.build_report(paths), tmp_path / "page").read_text()


def facts_of(text, anchor):
    """Return the facts of a run's view by name."""
    view = re.search(rf'<section class="run" id="{anchor}">(.*?)</section>', text, re.DOTALL)[1]
    pairs = re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", view, re.DOTALL)
    return {name: re.sub("<[^>]*>", "", content) for name, content in pairs}


@pytest.mark.integration
def test_view_states_what_the_record_says(launch, tmp_path):
    code, run_dir = launch("recipe.max_epochs=3", "recipe.target.v05.hit_rate=0.99", "seed=5")
    assert code == Exit.TARGET_NOT_REACHED
    record = json.loads((run_dir.path / "status.json").read_text())
    training = record["training"]
    text = write(tmp_path, run_dir.path)
    facts = facts_of(text, "run-1")
    quality = training["blocks"][-1]["quality"]["hit_rate"]
    seconds = float(re.match(r"target not reached after ([\d.]+) s, 3 epochs, ", facts["Result"])[1])
    # Three digits are shown, and the page takes the time from the log, whose marks are whole milliseconds.
    assert seconds == pytest.approx(training["seconds"], rel=0.005, abs=0.002)
    assert f"hit_rate {quality:.4g} (target 0.99), exit code 10" in facts["Result"]
    assert facts["Run directory"] == str(run_dir.path)
    assert facts["Started"].endswith(f"UTC on {record['attempts'][0]['hostname']}")
    assert facts["MLPerf log"] == "complies, not converged (0.7.0 keys, own target)"
    assert "seed 5" in facts["Recipe"]
    assert record["environment"]["packages"]["torch"] in facts["System"]
    for name, sentence in record["flags"].items():
        assert f"{name}: {sentence}" in facts["Flags"].replace("&#39;", "'")
    assert facts["Before the clock"].startswith(f"{sum(record['attempts'][0]['startup'].values()):.1f} s: ")
    percent = [int(number) for number in re.findall(r"\((\d+)%\)", facts["Time on the clock"])]
    evaluation = int(re.search(r"evaluation [\d.]+ s \((\d+)%\)", facts["Time on the clock"])[1])
    assert evaluation == pytest.approx(100 * training["eval_seconds"] / training["seconds"], abs=0.51)
    assert 96 <= sum(percent) <= 103  # parts are rounded, and below half a percent they are left out
    (data,) = csv.DictReader((tmp_path / "page/csv/runs.csv").read_text().splitlines())
    assert (data["state"], data["exit_code"]) == ("target not reached", "10")
    assert data["host"] == record["attempts"][0]["hostname"]
    assert float(data["started_at"]) == pytest.approx(training["started_at"], abs=0.01)
    row = pages.Page(text).row("1 × CPU, seed 5")
    assert row[1] == "target not reached"
    assert record["attempts"][0]["hostname"] in row


@pytest.mark.integration
def test_view_of_a_run_that_ended_in_an_error_has_its_sentence(launch, tmp_path):
    code, run_dir = launch("recipe.training.learning_rate=1e30")
    assert code == Exit.DIVERGED
    overrides = ("recipe.training.learning_rate=1e30", "runs_dir=my runs")  # the launcher gets them from Hydra
    run_dir.update(lambda record: replace(record, attempts=(replace(record.attempts[0], overrides=overrides),)))
    facts = facts_of(write(tmp_path, run_dir.path), "run-1")
    assert facts["Result"].startswith("diverged after ")
    assert facts["Result"].endswith("exit code 31")
    assert html.unescape(facts["Overrides"]) == "recipe.training.learning_rate=1e30 'runs_dir=my runs'"
    assert facts["Error"] == json.loads((run_dir.path / "status.json").read_text())["error"]


def test_published_log_has_a_view_without_a_record(tmp_path):
    pages.write_log(tmp_path / "logs", "box", 3, qualities=[0.2, 0.22, 0.245])
    facts = facts_of(write(tmp_path, tmp_path / "logs"), "run-1")
    assert facts["Result"] == "target reached after 10.0 min, 3 epochs, BLEU 0.245 (target 0.24)"
    assert facts["Started"] == "2020-09-13 12:26 UTC"
    assert facts["Folder"] == str(tmp_path / "logs/v0.7/Maker/box/gnmt")
    assert "Run directory" not in facts


def test_repeats_of_a_seed_have_different_names(tmp_path):
    for folder in ("a", "b"):
        pages.write_log(tmp_path / folder, "box", 1, qualities=[0.25])
    text = write(tmp_path, tmp_path / "a", tmp_path / "b")
    options = re.findall(r'<option value="run-\d+">(.*?)</option>', text)
    assert len(options) == len(set(options)) == 2


@pytest.mark.parametrize(("runs", "points"), [(20, 60), (300, 39)])
def test_curves_are_thinned_to_a_bounded_page(tmp_path, runs, points):
    curve = [0.1 + 0.001 * epoch for epoch in range(100)] + [0.25]
    for number in range(runs):
        pages.write_log(tmp_path / "logs", "box", number, qualities=curve if number == 7 else [0.2, 0.25])
    text = write(tmp_path, tmp_path / "logs")
    lines = re.findall(r'<path data-run="run-8" data-end="\d+"(?: class="s\d")? d="(.*?)"', text)
    assert [len(re.findall(r"[ l]", line)) for line in lines] == [points, points]
    assert len(text) < 80_000 + 2_500 * runs
