"""Pin every dependency: write constraints.txt and the hashed requirements of this platform and Python version.

    .venv/bin/python -P scripts/dev/lock_requirements.py

Versions in constraints.txt are kept. To update a package, change or delete its line there and run this script; to
update all, delete all lines. pip's own settings select the index. Nothing is installed.
"""

import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ALL_EXTRAS = "dev,cnn,dali,joblib,mlflow,nvidia,tensorboard,tensorflow,wandb"
EXTRAS = {"run": "cnn", "dev": "dev"}  # of the two kinds of installation that scripts/setup makes
CONSTRAINTS_HEADER = """\
# The versions that timetrial is tested with, transitive dependencies included. torch is the CUDA build, which runs on
# the CPU too. Written by scripts/dev/lock_requirements.py.
"""
HASHES_HEADER = """\
# The files that scripts/setup installs on {platform}, by SHA-256. They are the same on every mirror of PyPI.
# Written by scripts/dev/lock_requirements.py.
"""


class Pin(NamedTuple):
    """A distribution and the file of it that pip selects."""

    name: str
    version: str
    sha256: str


def resolve(extras: str, constraints: Path) -> list[Pin]:
    """Return what pip would install for timetrial with these extras, and setuptools, which builds it."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        subprocess.run(
            [*pip, "--constraint", constraints, "--report", report, "setuptools", f"{ROOT}[{extras}]"], check=True
        )
        installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    pins = []
    for item in installed:
        metadata, archive = item["metadata"], item["download_info"].get("archive_info")
        if archive:  # timetrial itself is a folder
            pins.append(Pin(normalize(metadata["name"]), metadata["version"], archive["hashes"]["sha256"]))
    return sorted(pins)


def normalize(name: str) -> str:
    """Return the name of a distribution in the form of PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def platform_name() -> str:
    """Return the name of this platform and Python version, as scripts/setup computes it."""
    return f"{platform.system()}-{platform.machine()}-py{sys.version_info[0]}.{sys.version_info[1]}".lower()


def write_constraints(path: Path, pins: list[Pin]) -> None:
    """Write the versions; those of packages that only other platforms install are kept."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "==" in line]
    versions = {normalize(name): version for name, version in (line.split("==") for line in lines)}
    versions |= {pin.name: pin.version for pin in pins}
    body = "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))
    path.write_text(CONSTRAINTS_HEADER + body, encoding="utf-8")


def main() -> None:
    """Write all files."""
    constraints = ROOT / "constraints.txt"
    write_constraints(constraints, resolve(ALL_EXTRAS, constraints))
    for kind, extras in EXTRAS.items():
        body = "".join(
            f"{pin.name}=={pin.version} --hash=sha256:{pin.sha256}\n" for pin in resolve(extras, constraints)
        )
        path = ROOT / "scripts" / "requirements" / f"{kind}-{platform_name()}.txt"
        path.write_text(HASHES_HEADER.format(platform=platform_name()) + body, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
