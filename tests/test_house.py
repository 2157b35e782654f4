"""House rules: packaging, the `datasets` trap, who may know what."""

import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

PACKAGES = ("conf", "datasets", "runner", "workloads")


@pytest.fixture
def sources(root):
    return [path for folder in PACKAGES for path in sorted((root / folder).rglob("*.py"))]


def test_the_tree_is_the_architecture(root):
    tracked = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    folders = {path.split("/")[0] for path in tracked if "/" in path and not path.startswith(".")}
    assert folders == {"workloads", "runner", "conf", "datasets", "tests", "scripts"}


def test_the_package_list_is_the_tree(root):
    declared = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {"timetrial"} | {
        ".".join(("timetrial", *path.parent.relative_to(root).parts))
        for folder in PACKAGES
        for path in (root / folder).rglob("*.py")
    }
    assert sorted(declared) == sorted(found)


def test_the_datasets_trap_is_closed_in_the_checkout(root):
    assert not list((root / "datasets").rglob("__init__.py"))
    assert root not in [Path(entry or ".").resolve() for entry in sys.path]
    look = "import importlib.util as u; s = u.find_spec('datasets'); print(s.origin if s else None)"
    found = subprocess.run([sys.executable, "-P", "-c", look], cwd=root, capture_output=True, text=True, check=True)
    assert str(root) not in found.stdout
    from timetrial.datasets.formats import movielens

    assert Path(movielens.__file__).parent == root / "datasets" / "formats"


def test_the_installed_wheel_keeps_out_of_the_way(root, tmp_path):
    """Built, installed beside a stand-in for Hugging Face's `datasets`, used from the checkout and from elsewhere."""
    build = [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist")]
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "-q", str(root), str(copy)], check=True)
    for path in ("pyproject.toml", "__init__.py", "__main__.py", "README.md", "LICENSE"):
        (copy / path).write_bytes((root / path).read_bytes())
    subprocess.run(build, cwd=copy, check=True, capture_output=True)
    wheel = next((tmp_path / "dist").glob("*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if not name.startswith("timetrial")]
    assert "timetrial/conf/config.yaml" in names
    assert "timetrial/conf/recipe/ncf/embedded.yaml" in names
    assert not [name for name in names if "tests/" in name or "test_" in name]
    venv.create(tmp_path / "venv", system_site_packages=False)
    site = next((tmp_path / "venv").rglob("site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    (site / "datasets").mkdir()
    (site / "datasets" / "__init__.py").write_text("face = 'hugging'\n")
    here = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(here) + "\n")
    look = "import datasets, timetrial.datasets.formats.movielens as m; print(datasets.face, m.__file__)"
    for folder in (root, tmp_path):
        found = subprocess.run(
            [tmp_path / "venv/bin/python", "-P", "-c", look], cwd=folder, capture_output=True, text=True, check=True
        )
        assert found.stdout.split() == ["hugging", str(site / "timetrial/datasets/formats/movielens.py")]


def test_datasets_know_only_errors_of_the_runner(root):
    """The import contracts cannot see a folder without __init__.py."""
    for path in (root / "datasets").rglob("*.py"):
        known = set(re.findall(r"from timetrial\.(\w+(?:\.\w+)?)", path.read_text()))
        assert not {name for name in known if not name.startswith("datasets")} - {"runner.errors"}, path


def test_only_the_accelerator_layer_knows_vendors(sources):
    vendors = re.compile(r"\b(cuda|rocm|hip|xpu|mps|nccl|nvml|amdsmi)\b|torch\.cuda|is_cuda", re.I)
    for path in sources:
        if path.name in ("on_card.py", "nvjpeg.py"):  # which decode on NVIDIA's alone
            continue
        if path.name == "accelerator.py" or path.parent.name == "hardware":  # the layer itself
            continue
        named = [line for line in path.read_text().splitlines() if vendors.search(line)]
        assert not named, (path, named)


def test_the_runner_names_no_workload(root):
    names = [path.stem for path in (root / "conf" / "workload").glob("*.yaml")]
    for path in (root / "runner").rglob("*.py"):
        if "results" in path.parts:  # which read what others have logged
            continue
        assert not re.search(rf"\b({'|'.join(names)})\b", path.read_text(), re.I), path


def test_only_the_log_and_its_check_know_log_keys(sources):
    knowing = {path.name for path in sources if "mlperf_logging" in path.read_text()}
    assert knowing <= {"mlperf.py", "compliance.py", "system.py", "convergence.py"}


def test_nothing_in_a_step_waits_for_the_device(root):
    text = (root / "runner" / "torch_engine.py").read_text()
    step = text[text.index("def _step") : text.index("def _total_weight")]
    assert not re.search(r"\.item\(|\.tolist\(|synchronize|\.cpu\(|float\(", step)


def test_files_and_functions_stay_small(sources):
    for path in sources:
        assert len(path.read_text().splitlines()) <= 380, path


def test_documentation_names_every_exit_code(root):
    from timetrial.runner.core.errors import Exit

    text = (root / "README.md").read_text()
    for code in Exit:
        assert re.search(rf"^\| {int(code)} \|", text, re.M), code


def test_what_is_committed_names_no_machine(root):
    tracked = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    forbidden = re.compile(r"file:///|/root/|/work/|/tmp/[a-z]")
    for name in tracked:
        if name != "tests/test_house.py":
            assert not forbidden.search((root / name).read_text()), name
