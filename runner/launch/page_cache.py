"""Clear the page cache of the files that a run reads, and verify it: MLPerf's data start on disk, not in memory."""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ConfigurationError

_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_PAGE_CACHE = "1"  # not the kernel's caches of names and inodes
_THREADS = 16


def clear_page_cache(paths: Iterable[Path]) -> None:
    """Evict all files at and below `paths` from memory; raise `ConfigurationError` if a page of one remains.

    The whole page cache is dropped where this process may do so, and each file is evicted by `posix_fadvise` otherwise.
    """
    if not hasattr(os, "posix_fadvise"):
        raise ConfigurationError("Caches can only be cleared on Linux: run there, or with clear_caches=false.")
    os.sync()  # pages that are not yet on the disk cannot be evicted
    with contextlib.suppress(OSError):  # not permitted
        _DROP_CACHES.write_text(_PAGE_CACHE)
    with ThreadPoolExecutor(_THREADS) as pool:
        files = sorted(_files_below(paths))
        resident = [file for file, pages in zip(files, pool.map(evict, files), strict=True) if pages]
    if resident:
        raise ConfigurationError(
            f"{len(resident)} of {len(files)} data files stay in memory, such as {resident[0]}: move data_dir to a "
            "disk, own the files or run as root, or use division=open clear_caches=false."
        )


def data_paths(settings: Any) -> Iterator[Path]:
    """Yield the existing files and folders that data settings, as nested dictionaries and lists, name."""
    if isinstance(settings, dict | list | tuple):
        for value in settings.values() if isinstance(settings, dict) else settings:
            yield from data_paths(value)
    elif isinstance(settings, str) and settings and Path(settings).exists():
        yield Path(settings)


def resident_pages(path: Path) -> int:
    """Return the pages of a file that are in the page cache.

    Linux tells this to those who own the file or may write it; to others all pages seem resident (mincore(2)).
    """
    size = path.stat().st_size
    if not size:
        return 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        view = np.frombuffer(mapping, np.uint8)
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = (ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data))
        failed = libc.mincore(*arguments)
        del view  # a mapping cannot be closed while it is exported
        if failed:
            raise OSError(ctypes.get_errno(), "mincore failed", str(path))
    return int((pages & 1).sum())


def evict(path: Path) -> int:
    """Evict a file that is on the disk from the page cache and return the pages that remain."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return resident_pages(path)


def _files_below(paths: Iterable[Path]) -> set[Path]:
    """Return the files at and below the paths; links are followed."""
    files: set[Path] = set()
    for path in paths:
        if path.is_file():
            files.add(path)
        for folder, _, names in os.walk(path, followlinks=True):
            files |= {Path(folder, name) for name in names}
    return files
