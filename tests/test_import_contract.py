"""The import contract is kept, and a wrong import in any package breaks it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

WRONG = {
    "runner/core/console.py": "from ...datasets.formats import coco",
    "runner/config/diff.py": "from ..hardware import host",
    "runner/hardware/host.py": "from ..record import run_dir",
    "runner/record/run_dir.py": "from ..training import seeds",
    "runner/training/seeds.py": "from ..callbacks import progress",
    "runner/callbacks/progress.py": "from ..mlperf import compliance",
    "runner/mlperf/log_writer.py": "from ..launch import staging",
    "runner/launch/staging.py": "from ..results.analysis import stats",
    "runner/results/analysis/stats.py": "from ...launch import staging",
    "runner/benchmarks/estimate.py": "from ..cli import main",
    "workloads/common/nn/sgd.py": "from ...ncf import model",
    "workloads/ncf/model.py": "from ..ssd import model as other",
    "datasets/formats/jpeg.py": "from ...runner.record import run_dir",
    "datasets/synthetic/ratings.py": "from ...workloads.ncf import model",
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the sources in a folder of the package's name."""
    root = Path(__file__).resolve().parents[1]
    package = tmp_path_factory.mktemp("contract") / "timetrial"
    package.mkdir()
    for name in ("__init__.py", "__main__.py", "pyproject.toml"):
        shutil.copy(root / name, package)
    for folder in ("conf", "datasets", "runner", "workloads"):
        shutil.copytree(root / folder, package / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def lint(package):
    command = [Path(sys.executable).parent / "lint-imports", "--config", package / "pyproject.toml", "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    done = subprocess.run(command, cwd=package.parent, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_contract_is_kept(copy):
    code, output = lint(copy)
    assert (code, "1 kept, 0 broken" in output) == (0, True), output


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_import_breaks_the_contract(copy, name):
    path = copy / name
    text = path.read_text()
    path.write_text(f"{text}\n{WRONG[name]}\n")
    try:
        code, output = lint(copy)
    finally:
        path.write_text(text)
    assert (code, "is not allowed to import" in output) == (1, True), output
