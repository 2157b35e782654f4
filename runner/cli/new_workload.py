"""The command `timetrial new-workload`."""

import importlib.util
import keyword
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..core.atomic_files import write_failure
from ..core.errors import ConfigurationError

_TEMPLATES = Path(__file__).parent / "workload_template"
_TESTS = "tests"  # the folder beside the package


def new_workload(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the workload, such as tiny_lm.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.", metavar="FOLDER")] = Path("extra"),
) -> None:
    """Write a package with a small working workload to start from: model, data, configuration and a test.

    It trains on generated text and reaches its target in seconds on a CPU. docs/adding_a_workload.md explains it.
    """
    _check_name(name)
    files = _render_files(name, out)
    if existing := [path for path in files if path.exists()]:
        raise ConfigurationError(f"{existing[0]} exists: choose another folder with --out.")
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise write_failure(path, error, "choose another folder with --out") from error
        console.print(f"wrote {path}")
    paths = (out, out / _TESTS / f"test_{name}.py", out / name / "conf")
    folder, test, config = (shlex.quote(str(path)) for path in paths)
    console.print(f"\nInstall, train and test it:\n\n  python -m pip install -e {folder}")
    console.print(f"  timetrial run workload={name}\n  python -m pytest {test}")
    console.print(
        f"\nOr without installing it:\n\n  PYTHONPATH={folder} timetrial run --config-dir {config} workload={name}"
    )


def _check_name(name: str) -> None:
    """Raise `ConfigurationError` unless `name` can name a new Python package and a new workload."""
    from ..config.search_path import find_config

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigurationError(
            f"{name!r} cannot name a Python package: use lower-case letters, digits and underscores, such as tiny_lm."
        )
    if find_config(f"workload/{name}.yaml"):
        raise ConfigurationError(f"timetrial has a workload {name}: choose another name.")
    if name == _TESTS or importlib.util.find_spec(name) is not None:
        raise ConfigurationError(f"There is a package or folder {name} already: choose another name.")


def _render_files(name: str, out: Path) -> dict[Path, str]:
    """Return the path and the text of each file."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    paths = {
        "pyproject.toml": out / "pyproject.toml",
        "__init__.py": out / name / "__init__.py",
        "data.py": out / name / "data.py",
        "workload.py": out / name / "workload.py",
        "conf.py": out / name / "conf" / "__init__.py",
        "workload.yaml": out / name / "conf" / "workload" / f"{name}.yaml",
        "embedded.yaml": out / name / "conf" / "recipe" / name / "embedded.yaml",
        "test.py": out / _TESTS / f"test_{name}.py",
    }
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True
    )
    words = [word for word in name.split("_") if word]
    values = {
        "name": name,
        "class_name": "".join(word.capitalize() for word in words),
        "title": " ".join(words).capitalize(),
    }
    return {path: environment.get_template(f"{file}.j2").render(values) for file, path in paths.items()}
