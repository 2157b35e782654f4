"""scripts/setup installs only files with a listed SHA-256, and says so where it cannot; the lists are complete."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

PIN = re.compile(r"([a-z0-9-]+)==([\w.+]+)")
HASHED = re.compile(PIN.pattern + r" --hash=sha256:[0-9a-f]{64}")
PLATFORM = f"{platform.system()}-{platform.machine()}-py{sys.version_info[0]}.{sys.version_info[1]}".lower()
FAKE_PYTHON = """\
#!/bin/bash
echo "$*" >> pip_calls
[[ "$*" != *"$FAILING"* || -z "$FAILING" ]]
"""


def normalize(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path, pattern):
    """Return version by name; every line must be a comment or match `pattern`."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    matches = [pattern.fullmatch(line) for line in lines]
    assert all(matches), lines
    return {match[1]: match[2] for match in matches}


def requirements(root):
    return sorted((root / "scripts" / "requirements").glob("*.txt"))


def test_hashed_requirements_agree_with_the_constraints_and_name_no_index(root):
    constraints = pins(root / "constraints.txt", PIN)
    assert {path.name for path in requirements(root)} >= {f"{kind}-linux-x86_64-py3.11.txt" for kind in ("run", "dev")}
    for path in requirements(root):
        hashed = pins(path, HASHED)
        assert hashed.items() <= constraints.items()
        assert {"torch", "setuptools"} < set(hashed)
        assert not re.search(r"://|--(extra-)?index-url|--find-links", path.read_text())


@pytest.mark.parametrize(("kind", "extras"), [("run", {"cnn"}), ("dev", {"dev"})])
def test_hashed_requirements_hold_every_dependency(root, kind, extras):
    """Follow the metadata of the installed distributions, which pip's resolver did not see."""
    path = root / "scripts" / "requirements" / f"{kind}-{PLATFORM}.txt"
    if not path.exists():
        path = root / "constraints.txt"
    listed = {line.partition("==")[0] for line in path.read_text().splitlines()}
    pending, seen = [("timetrial", frozenset(extras))], set()
    while pending:
        name, wanted = pending.pop()
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            environments = [{"extra": extra} for extra in (wanted or {""})]
            is_needed = not requirement.marker or any(map(requirement.marker.evaluate, environments))
            found = normalize(requirement.name), frozenset(requirement.extras)
            if is_needed and found not in seen:
                seen.add(found)
                pending.append(found)
    missing = {name for name, _ in seen} - listed
    assert len(seen) > 60
    assert not missing


@pytest.fixture
def checkout(tmp_path, root):
    """Return a checkout whose environment has an interpreter that only records how it is called."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(root / "scripts" / "setup", tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(root / name, tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    (tmp_path / "scripts" / "requirements").mkdir()
    (tmp_path / "scripts" / "requirements" / "other.txt").write_text("")
    (tmp_path / "scripts" / "requirements" / f"run-{PLATFORM}.txt").write_text("setuptools==1 --hash=sha256:0\n")
    return tmp_path


def set_up(checkout, *arguments, failing="", **environment):
    """Run scripts/setup; return its code, its messages and the arguments of each call of pip."""
    (checkout / "pip_calls").unlink(missing_ok=True)
    environment = os.environ | {"PYTHON": sys.executable, "FAILING": failing} | environment
    result = subprocess.run(
        ["scripts/setup", *arguments], cwd=checkout, env=environment, capture_output=True, text=True
    )
    calls = checkout / "pip_calls"
    return result.returncode, result.stderr, calls.read_text().splitlines() if calls.exists() else []


def test_installs_hashed_files_and_then_the_project_without_dependencies(checkout):
    code, stderr, calls = set_up(checkout)
    assert (code, "no hashes" in stderr, len(calls)) == (0, False, 3)
    assert all("--require-hashes" in call for call in calls[:2])
    assert f"scripts/requirements/run-{PLATFORM}.txt" in calls[1]
    assert calls[2].endswith("--no-build-isolation --no-deps --editable .")
    assert set_up(checkout) == (0, "", [])  # nothing has changed


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", "scripts/requirements/other.txt"])
def test_installs_again_when_a_list_changes(checkout, name):
    set_up(checkout)
    with open(checkout / name, "a") as file:
        file.write("# changed\n")
    assert len(set_up(checkout)[2]) == 3


def test_other_files_are_refused_until_the_switch_is_set(checkout):
    code, stderr, calls = set_up(checkout, failing="--require-hashes")
    assert code == 1
    assert "If your index serves other builds, set TIMETRIAL_HASHES=0" in stderr
    assert not any("--editable" in call for call in calls)
    code, stderr, calls = set_up(checkout, failing="--require-hashes", TIMETRIAL_HASHES="0")
    assert (code, len(calls)) == (0, 1)
    assert "no hashes are checked: TIMETRIAL_HASHES=0" in stderr
    assert "--constraint constraints.txt --editable .[cnn]" in calls[0]


def test_other_platforms_are_told_that_no_hash_is_checked(checkout):
    code, stderr, calls = set_up(checkout, "dev")  # which this checkout has no file for
    assert (code, len(calls)) == (0, 1)
    assert f"no hashes are checked: scripts/requirements/dev-{PLATFORM}.txt does not exist" in stderr
    assert "--constraint constraints.txt --editable .[dev]" in calls[0]


@pytest.mark.parametrize("arguments", [["--torch-backend=cu126"], ["develop"], ["dev", "cu126"]])
def test_other_arguments_are_refused_in_one_sentence(checkout, arguments):
    code, stderr, calls = set_up(checkout, *arguments)
    assert (code, len(stderr.splitlines()), calls) == (20, 1, [])
    assert f"'{' '.join(arguments)}' is no argument" in stderr
    assert "docs/getting_started.md" in stderr


def test_help_installs_nothing(checkout):
    assert set_up(checkout, "--help") == (0, "", [])
