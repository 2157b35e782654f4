"""Test with the lowest versions that pyproject.toml allows for the packages that timetrial depends on.

    .venv/bin/python -P scripts/dev/lowest_versions.py [FOLDER] [-- ARGUMENTS OF PYTEST]

They and what they need are installed into FOLDER (default: a temporary one), which comes first on the import path of
the tests; a FOLDER with files is used as it is. All other packages are those of the environment, PyTorch and
torchvision too, because a second PyTorch is a large download. Without arguments, the unit tests run.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ("torch", "torchvision")
# It compares the installed packages with constraints.txt.
DESELECTED = "tests/scripts/test_setup.py::test_hashed_requirements_hold_every_dependency"


def lowest_versions(pyproject: Path) -> list[str]:
    """Return the lowest version of each dependency, such as "numpy==1.26"."""
    requirements = tomllib.loads(pyproject.read_text())["project"]["dependencies"]
    matches = [re.match(r"([\w-]+)>=([\d.]+)", text) for text in requirements]
    assert all(matches), requirements
    return [f"{match[1]}=={match[2]}" for match in matches if match and match[1] not in KEPT]


def main(arguments: list[str]) -> int:
    """Install the versions, run the tests and return the exit code of pytest."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    folder, tests = arguments[:split], arguments[split + 1 :] or ["--tier", "unit", "-q"]
    with tempfile.TemporaryDirectory() as temporary:
        target = Path(folder[0] if folder else temporary).resolve()
        versions = lowest_versions(ROOT / "pyproject.toml")
        if not target.exists() or not any(target.iterdir()):
            print("installing", *versions, flush=True)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), *versions]
            if code := subprocess.run(pip).returncode:
                return code
        path = os.pathsep.join(filter(None, (str(target), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        pytest = [
            sys.executable,
            "-m",
            "pytest",
            "-W",
            "default",
            "--deselect",
            DESELECTED,
            *tests,
        ]  # old packages warn
        return subprocess.run(pytest, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
