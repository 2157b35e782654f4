"""Name the packages: the repository root is the package `timetrial`, which discovery cannot prefix."""

from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
FOLDERS = ("conf", "datasets", "runner", "workloads")
FOUND = {path.parent.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}

setup(packages=["timetrial", *sorted(".".join(("timetrial", *path.parts)) for path in FOUND)])
