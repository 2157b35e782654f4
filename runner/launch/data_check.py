"""Check the data before a run where that costs little: against its dataset's manifest, and against the run's start.

At most `_MAX_FILES` files of a folder are looked at, evenly spaced, and `_MAX_BYTES` are read. `timetrial data verify`
reads everything.
"""

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ...datasets.download import manifest
from ...datasets.synthetic.spec_digest import path_with_digest
from ..config.schema import Config
from ..config.validation import build_settings, resolve_classes
from ..core.errors import DataError

_MAX_FILES = 2000
_MAX_BYTES = 1 << 26
_WHOLE_BYTES = 1 << 20  # files up to this size are read as a whole, larger ones in blocks
_BLOCKS, _BLOCK_BYTES = 16, 1 << 14

_Value = TypeVar("_Value")


def check_datasets(config: Config) -> None:
    """Raise `DataError` if a file of a fetched dataset that the run reads differs from the dataset's manifest.

    The sizes of the files are compared, and the SHA-256 of those that 64 MiB hold.
    """
    data_dir = Path(config.data_dir)
    for folder in sorted({_dataset_folder(path, data_dir) for path in _sources(config)} - {None}, key=str):
        if folder is None or not (folder / manifest.FILE_NAME).exists():
            continue
        listed = manifest.read(folder)
        entries = _spread(sorted(listed.entries, key=lambda entry: entry.path))
        fault = next(manifest.find_size_faults(folder, manifest.Manifest({}, entries)), None)
        num_bytes = 0
        for entry in entries:
            num_bytes += entry.size
            if fault is None and num_bytes <= _MAX_BYTES and _hash(folder / entry.path) != entry.sha256:
                fault = f"{folder / entry.path} has changed: its SHA-256 differs from the manifest."
        if fault is not None:
            raise DataError(f"{fault} Remove {folder} and run timetrial data fetch {folder.name}.")


def fingerprint_data(config: Config) -> str:
    """Return a hash of names, sizes and sampled blocks of the files that the run reads."""
    digest = hashlib.sha256()
    for path in sorted({path for path in [*_sources(config), *_generated(config)] if path.exists()}):
        for file in _files(path):
            digest.update(f"{os.path.relpath(file, path)} {file.stat().st_size}\n".encode(errors="surrogateescape"))
            for block in _sampled_blocks(file):
                digest.update(block)
    return digest.hexdigest()


def _sources(config: Config) -> Iterator[Path]:
    """Yield the files and folders that the recipe's data names, without the cache of prepared data."""
    for text in _texts({key: value for key, value in config.recipe.data.items() if key != "cache_dir"}):
        yield from map(Path, sorted(glob.glob(text)) if "*" in text else [text])


def _generated(config: Config) -> Iterator[Path]:
    """Yield where the data class may have generated the files that the recipe names."""
    settings = build_settings(resolve_classes(config)[1], config.recipe.data, "recipe.data")
    if (spec := getattr(settings, "generate", None)) is not None:
        for path in filter(lambda source: source.name, _sources(config)):
            yield path_with_digest(path, spec)
            if path.parent.name:
                yield path_with_digest(path.parent, spec) / path.name


def _texts(settings: Any) -> Iterator[str]:
    if isinstance(settings, dict | list):
        for value in settings.values() if isinstance(settings, dict) else settings:
            yield from _texts(value)
    elif isinstance(settings, str) and settings:
        yield settings


def _dataset_folder(path: Path, data_dir: Path) -> Path | None:
    """Return the folder of the dataset that `path` belongs to, None for a path outside of the data folder."""
    folders = [path, *path.parents]
    place = folders.index(data_dir) if data_dir in folders else 0
    return folders[place - 1] if place else None


def _files(path: Path) -> Sequence[Path]:
    if path.is_file():
        return [path]
    found = (Path(parent, name) for parent, _, names in os.walk(path) for name in names if not name.startswith("."))
    return _spread(sorted(found))


def _spread(values: Sequence[_Value]) -> Sequence[_Value]:
    """Return at most `_MAX_FILES` of `values`, evenly spaced."""
    return values[:: -(-len(values) // _MAX_FILES) or 1]


def _sampled_blocks(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    with open(file, "rb") as stream:
        if size <= _WHOLE_BYTES:
            yield stream.read()
            return
        for number in range(_BLOCKS):
            stream.seek((size - _BLOCK_BYTES) * number // (_BLOCKS - 1))
            yield stream.read(_BLOCK_BYTES)


def _hash(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
