"""The page on adding a workload: it shows what `timetrial new-workload` writes, and its commands work to the letter.

The package of the page is built and installed as a wheel, and nothing of timetrial is edited.
"""

import os
import re
import shlex
import subprocess
import sys

import pytest

from timetrial.runner.record.record_file import read_record

pytestmark = pytest.mark.integration

PIP = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check"]


def run(line, folder, *more, path=()):
    """Run a command line `[VARIABLE=VALUE] timetrial ...` of the page, with `path` importable."""
    words = shlex.split(line)
    start = words.index("timetrial")
    inherited = [os.environ[name] for name in ("PYTHONPATH",) if name in os.environ]
    variables = dict(word.split("=", 1) for word in words[:start])
    path = [*path, *([variables.pop("PYTHONPATH")] if "PYTHONPATH" in variables else []), *inherited]
    environment = os.environ | variables | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-P", "-m", "timetrial", *words[start + 1 :], *more]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(folder, site):
    """Build the wheel of the package in `folder`, and install it to `site`, without a package index."""
    options = ["--quiet", "--no-deps", "--no-index"]
    wheels = site.with_suffix(".wheels")
    for command in (
        ["wheel", *options, "--no-build-isolation", "--wheel-dir", wheels, folder],
        ["install", *options, "--find-links", wheels, "--target", site, "tiny_lm"],
    ):
        done = subprocess.run([*PIP, *map(str, command)], cwd=folder.parent, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_shows_the_files_and_its_commands_work(root, tmp_path):
    text = (root / "docs" / "adding_a_workload.md").read_text()
    lines = re.findall(r"^    ((?:PYTHONPATH=\S+ )?timetrial .*)$", text, re.M)
    new_workload, one_rank, two_ranks, throughput, without_installing, with_observer = lines
    run(new_workload, tmp_path)
    shown = dict(re.findall(r"^\*\*(extra/\S+)\*\*\n\n```\w+\n(.*?)^```$", text, re.M | re.S))
    observer = shown.pop("extra/tiny_lm/observer.py")
    assert len(shown) == 5
    assert shown == {name: (tmp_path / name).read_text() for name in shown}

    installed = {"path": [tmp_path / "site"]}
    install(tmp_path / "extra", tmp_path / "site")
    records = []
    for name, line in (("one", one_rank), ("two", two_ranks)):
        run(line, tmp_path, f"run_dir={name}", *["accelerator=cpu"] * ("accelerator" not in line), **installed)
        records.append(read_record(tmp_path / name))
        assert records[-1].training.reached
        assert records[-1].verdict.compliant
    losses = [[block.loss for block in record.training.blocks] for record in records]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    measured = run(throughput, tmp_path, "throughput.steps=2", "throughput.blocks=2", "accelerator=cpu", **installed)
    assert "samples/s" in measured
    assert "Tiny lm\n embedded" in re.sub(" +\n", "\n", run("timetrial list", tmp_path, **installed))
    assert "tiny_lm/embedded" in run("timetrial run --help", tmp_path, **installed)
    run(without_installing, tmp_path, "recipe.max_epochs=20")

    (tmp_path / "extra" / "tiny_lm" / "observer.py").write_text(observer)
    (entry_point,) = re.findall(
        r'^```toml\n(\[project\.entry-points\."timetrial\.observers"\]\n.*?)^```', text, re.M | re.S
    )
    with open(tmp_path / "extra" / "pyproject.toml", "a") as file:
        file.write(f"\n{entry_point}")
    install(tmp_path / "extra", tmp_path / "again")
    run(with_observer, tmp_path, "run_dir=observed", path=[tmp_path / "again"])
    lines = (tmp_path / "observed" / "quality.txt").read_text().splitlines()
    blocks = read_record(tmp_path / "observed").training.blocks
    assert [float(line) for line in lines] == [block.quality["accuracy"] for block in blocks]
