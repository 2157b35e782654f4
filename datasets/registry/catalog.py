"""The datasets that `timetrial data` knows: descriptions in `sources/*.yaml`, read and checked."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from ...runner.core.errors import ConfigurationError
from ...runner.core.found_files import UnreadableFile, read_text
from ...runner.core.suggestions import choose_one_of

_BUILT_IN = Path(__file__).with_name("sources")
_FILE_NAME = re.compile(r"[\w][\w .+-]*")
_HEX_DIGITS = {"md5": 32, "sha256": 64}


@dataclass(frozen=True)
class RawFile:
    """A file as its publisher provides it; `bytes`, `md5` and `sha256` are None where they are not published.

    `urls` are tried in order; without any, the user has to provide the file. From an archive, the members that match a
    pattern in `members` are unpacked, without the first `strip_components` parts of their names.
    """

    name: str
    urls: tuple[str, ...] = ()
    bytes: int | None = None
    md5: str | None = None
    sha256: str | None = None
    members: tuple[str, ...] = ("*",)
    strip_components: int = 0
    optional: bool = False

    def target_path(self, member: str) -> str | None:
        """Return where a member of the archive goes, or None if it is not selected."""
        if not any(fnmatchcase(member, pattern) for pattern in self.members):
            return None
        return "/".join(member.split("/")[self.strip_components :]) or None

    @property
    def published_checksum(self) -> tuple[str, str] | None:
        """The algorithm and value of the strongest published checksum."""
        if self.sha256:
            return "sha256", self.sha256
        return ("md5", self.md5) if self.md5 else None


@dataclass(frozen=True)
class Source:
    """A dataset: its raw `files`, their `conversion` (empty: they are only unpacked), and the resulting `outputs`.

    `outputs` maps the paths below the dataset's folder that recipes read to their md5, or None where it is not
    published. `requires_acceptance` tells that users must accept the license before downloading.
    """

    name: str
    title: str
    used_by: str
    homepage: str
    license: str
    license_url: str
    files: tuple[RawFile, ...]
    outputs: Mapping[str, str | None]
    requires_acceptance: bool = False
    conversion: Mapping[str, Any] = field(default_factory=dict)

    def urls(self) -> list[str]:
        """Return the addresses of all files."""
        return [url for file in self.files for url in file.urls]

    def download_size(self) -> tuple[int, bool]:
        """Return the bytes to download, as far as they are published, and whether that is the whole size."""
        sizes = [file.bytes for file in self.files if not file.optional]
        return sum(size or 0 for size in sizes), None not in sizes


def read(extra: Path | None = None) -> dict[str, Source]:
    """Return all datasets by name. YAML files in the folder `extra` add to the built-in ones or replace them by name.

    Raises `ConfigurationError` naming the file that is not a valid description.
    """
    if extra and not extra.is_dir():
        raise ConfigurationError(f"{extra} is not a folder: name one with a YAML file for each dataset.")
    paths = sorted(_BUILT_IN.glob("*.yaml")) + (sorted(extra.glob("*.yaml")) if extra else [])
    descriptions: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in paths:
        try:
            description = yaml.safe_load(read_text(path))
        except (UnreadableFile, yaml.YAMLError) as error:
            problem = " ".join(str(error).split())
            raise ConfigurationError(f"{path} cannot be read ({problem}): correct or remove it.") from error
        descriptions[path.stem] = (path, description)
    return {name: _source(name, descriptions) for name in sorted(descriptions)}


def is_unencrypted(url: str) -> bool:
    """Return whether others on the network can change what comes from `url`, which therefore needs a checksum."""
    return bool(re.match(r"http://(?!(127\.0\.0\.1|localhost)[:/])", url))


def select(sources: Mapping[str, Source], names: Iterable[str]) -> list[Source]:
    """Return the datasets with these names, each once; raises `ConfigurationError` for an unknown name."""
    selected = list(dict.fromkeys(names))
    for name in selected:
        if name not in sources:
            raise ConfigurationError(f"{name} is not a dataset: {choose_one_of(name, list(sources))}.")
    return [sources[name] for name in selected]


def _source(name: str, descriptions: Mapping[str, tuple[Path, dict[str, Any]]]) -> Source:
    path, description = descriptions[name]
    try:
        entries = dict(description["files"])
        for file, entry in entries.items():
            if entry and "same_as" in entry:
                entries[file] = descriptions[entry["same_as"]][1]["files"][file]
        files = tuple(_raw_file(file, entry or {}) for file, entry in entries.items())
        if not files or not description["outputs"]:
            raise ValueError("files and outputs must not be empty")
        return Source(**description | {"name": name, "files": files})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"{path} does not describe a dataset ({error}): correct or remove it.") from error


def _raw_file(name: str, entry: dict[str, Any]) -> RawFile:
    file = RawFile(**entry | {"name": name} | {key: tuple(entry[key]) for key in ("urls", "members") if key in entry})
    if not _FILE_NAME.fullmatch(name):
        raise ValueError(f"{name} is not a plain file name")
    for algorithm, digits in _HEX_DIGITS.items():
        checksum = getattr(file, algorithm)
        if checksum is not None and not re.fullmatch(rf"[0-9a-f]{{{digits}}}", checksum):
            raise ValueError(f"{name} has the {algorithm} {checksum}, which is not {digits} hexadecimal digits")
    for url in file.urls:
        if not re.match(r"https?://[^/]+/", url):
            raise ValueError(f"{name} has the URL {url}, which is neither http nor https")
        if is_unencrypted(url) and not file.published_checksum:
            raise ValueError(f"{name} has the URL {url} and no checksum: add its sha256, or use https")
    return file
