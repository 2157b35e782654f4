"""Name the packages, and make the long description.

The repository root is the package `timetrial`, which discovery cannot prefix.
"""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FOLDERS = ("conf", "datasets", "runner", "workloads")
SUFFIXES = (".py", ".yaml", ".csv", ".j2")  # folders of data are named too, or setuptools warns of them
FILES = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
FOUND = {path.parent.relative_to(ROOT) for path in FILES}


class BuildWithoutSetup(build_py):
    """Leave this file, which lies in the package's folder, out of the wheel."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if module[1] != "setup"]


def long_description() -> str:
    """Return README.md without images and links to files of the repository, which a package index does not have."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[[^]]*\]\((?!https:)[^)]*\)\n+", "", text)
    return re.sub(r"\[([^]]*)\]\((?!https:)[^)]*\)", r"\1", text)


setup(
    long_description=long_description(),
    long_description_content_type="text/markdown",
    packages=["timetrial", *sorted(".".join(("timetrial", *path.parts)) for path in FOUND)],
    cmdclass={"build_py": BuildWithoutSetup},
)
