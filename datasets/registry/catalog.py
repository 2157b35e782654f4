"""Where each data set comes from and what becomes of it: the facts in `sources/*.yaml`, read and checked."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from ...runner.core.errors import ConfigurationError

_OURS = Path(__file__).with_name("sources")
_FILE_NAME = re.compile(r"[\w][\w .+-]*")
_SUMS = {"md5": 32, "sha256": 64}  # hexadecimal digits


@dataclass(frozen=True)
class RawFile:
    """A file as its makers publish it; `bytes`, `md5` and `sha256` are None where nobody has published them.

    `urls` are tried in this order; without any, a user has to bring the file. Of an archive the `members` that match a
    pattern are unpacked, without the first `strip` parts of their names.
    """

    name: str
    urls: tuple[str, ...] = ()
    bytes: int | None = None
    md5: str | None = None
    sha256: str | None = None
    members: tuple[str, ...] = ("*",)
    strip: int = 0
    optional: bool = False

    def place(self, member: str) -> str | None:
        """Where an archive's member goes, or None if it is not wanted."""
        if not any(fnmatchcase(member, pattern) for pattern in self.members):
            return None
        return "/".join(member.split("/")[self.strip :]) or None

    @property
    def published_sum(self) -> tuple[str, str] | None:
        """The kind and value of the better checksum that is published, by which the file is told from another."""
        if self.sha256:
            return "sha256", self.sha256
        return ("md5", self.md5) if self.md5 else None


@dataclass(frozen=True)
class Source:
    """A data set: its `files`, how they are `convert`ed (None: unpacked alone), and what that `makes`.

    `makes` are paths below the set's folder that recipes read, with the md5 of those whose md5 is published. `accept`
    says that the licence binds whoever downloads, who has to say so.
    """

    name: str
    title: str
    serves: str
    page: str
    licence: str
    licence_url: str
    files: tuple[RawFile, ...]
    makes: Mapping[str, str | None]
    accept: bool = False
    convert: Mapping[str, Any] = field(default_factory=dict)

    def size(self) -> tuple[int, bool]:
        """Bytes to download, as far as they are published, and whether that is all."""
        known = [file.bytes for file in self.files if not file.optional]
        return sum(size or 0 for size in known), None not in known


def read(more: Path | None = None) -> dict[str, Source]:
    """All data sets by name; the yaml files in the folder `more` come on top, and replace those of their name.

    Raises `ConfigurationError` naming the file that does not say what it should.
    """
    if more and not more.is_dir():
        raise ConfigurationError(f"{more} is no folder: name one that holds a yaml file for each set.")
    paths = sorted(_OURS.glob("*.yaml")) + (sorted(more.glob("*.yaml")) if more else [])
    written: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in paths:
        try:
            facts = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            problem = " ".join(str(error).split())
            raise ConfigurationError(f"{path} cannot be read ({problem}): mend or remove it.") from error
        written[path.stem] = (path, facts)
    return {name: _source(name, written) for name in sorted(written)}


def select(sources: Mapping[str, Source], names: Iterable[str]) -> list[Source]:
    """The sets of these names, each once; raises `ConfigurationError` for a name that is none."""
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in sources:
            raise ConfigurationError(f"{name} is no data set: choose from {', '.join(sources)}.")
    return [sources[name] for name in chosen]


def _source(name: str, written: Mapping[str, tuple[Path, dict[str, Any]]]) -> Source:
    path, facts = written[name]
    try:
        entries = dict(facts["files"])
        for file, entry in entries.items():
            if entry and "same_as" in entry:
                entries[file] = written[entry["same_as"]][1]["files"][file]
        files = tuple(_raw_file(file, entry or {}) for file, entry in entries.items())
        if not files or not facts["makes"]:
            raise ValueError("files and makes must not be empty")
        return Source(**facts | {"name": name, "files": files})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"{path} does not describe a data set ({error}): mend or remove it.") from error


def _raw_file(name: str, entry: dict[str, Any]) -> RawFile:
    file = RawFile(**entry | {"name": name} | {key: tuple(entry[key]) for key in ("urls", "members") if key in entry})
    if not _FILE_NAME.fullmatch(name):
        raise ValueError(f"{name} is no plain file name")
    for kind, digits in _SUMS.items():
        digest = getattr(file, kind)
        if digest is not None and not re.fullmatch(rf"[0-9a-f]{{{digits}}}", digest):
            raise ValueError(f"{name} has the {kind} {digest}, which is no {digits} hexadecimal digits")
    for url in file.urls:
        if not re.match(r"https?://[^/]+/", url):
            raise ValueError(f"{name} has the address {url}, which is none of http or https")
    return file
