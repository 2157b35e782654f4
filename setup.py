"""Name the packages: the repository root is the package `timetrial`, which discovery cannot prefix."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FOLDERS = ("conf", "datasets", "runner", "workloads")
FOUND = {path.parent.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}


class BuildWithoutSetup(build_py):
    """Leave this file, which lies in the package's folder, out of the wheel."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if module[1] != "setup"]


setup(
    packages=["timetrial", *sorted(".".join(("timetrial", *path.parts)) for path in FOUND)],
    cmdclass={"build_py": BuildWithoutSetup},
)
