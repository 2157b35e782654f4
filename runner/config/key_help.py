"""Describe the keys of the configuration for `timetrial run --help`, from the docstrings of the schema."""

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import get_type_hints

from .schema import Config

_KEY_WIDTH = 31  # of launcher.hang_timeout_seconds, and two spaces
_MAX_WIDTH = 120
# Chosen as a whole with GROUP=NAME, or rarely set; docs/configuration.md has their keys.
_LEFT_OUT = ("workload", "round", "precision", "data", "accelerator", "submission")


def attribute_docs(owner: type) -> dict[str, str]:
    """Return the string literals under the fields of the dataclass `owner` and its bases, by field name."""
    docs: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        if not is_dataclass(base):
            continue
        definition = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(definition, ast.ClassDef)
        for statement, following in zip(definition.body, definition.body[1:], strict=False):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
    return docs


def list_keys() -> dict[str, str]:
    """Return the description of each key: those of `Config` itself first, then those of its groups."""
    hints, docs = get_type_hints(Config), attribute_docs(Config)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    keys = {field.name: docs[field.name] for field in fields(Config) if field.name not in groups}
    for group, owner in groups.items():
        if group not in _LEFT_OUT:
            keys |= {f"{group}.{name}": text for name, text in attribute_docs(owner).items()}  # type: ignore[arg-type]
    return keys


def describe_keys(columns: int) -> str:
    """Return a line for each key, as wide as the terminal."""
    return "\n".join(_line(key, text, min(columns, _MAX_WIDTH)) for key, text in list_keys().items())


def describe_groups(choices: Mapping[str, Sequence[str]], columns: int) -> str:
    """Return the choices of each group, wrapped."""
    lines = (f"{group}: {', '.join(names)}" for group, names in choices.items())
    return "\n".join(textwrap.fill(line, min(columns, _MAX_WIDTH), subsequent_indent="  ") for line in lines)


def _line(key: str, text: str, columns: int) -> str:
    """Return the key and its description, of which only the first clause is shown."""
    clause = re.split(r"(?<=[^.])\. |; ", text.replace("`", ""))[0].rstrip(".")
    return f"{key:<{_KEY_WIDTH}}{textwrap.shorten(clause, columns - _KEY_WIDTH, placeholder=' ...')}"
