"""What `timetrial accept` measures of the host: processors, memory bandwidth, and the disk as data loaders read it."""

import os
import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from ...hardware import host
from ...launch import page_cache
from .. import peaks
from ..peak_rows import find_peaks
from .expected import IMAGE_BYTES, MEMORY, disk_figure
from .figures import HOST, Figure, Host

_FILES = 512
_THREADS = 16
_PASSES = 3
_MIN_FREE_BYTES = 2**30


def measure_host(data_dir: Path, num_gpus: int, baseline: str) -> Host:
    """Return the figures of the host, the disk beside the needs of so many GPUs of the accelerator config `baseline`.

    Files to read are written to the disk of `data_dir` and removed again.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    _, limit = host.cgroup_limits()
    usable_cores = min(float(affinity), limit or float(affinity))
    rows = list(peaks.measure_kinds(("copy",), "cpu", quick=True, threads=max(int(usable_cores), 1)))
    figures = [Figure(MEMORY, HOST, "GB/s", (find_peaks(rows)["gb_s"],))]
    disk_problem = ""
    try:
        figures.append(disk_figure(measure_disk(host.nearest_existing(data_dir)), num_gpus, baseline))
    except OSError as error:
        disk_problem = error.strerror or str(error)
    return Host(usable_cores, os.cpu_count() or 1, tuple(figures), disk_problem)


def measure_disk(folder: Path) -> tuple[float, ...]:
    """Return the MB/s of each pass in which threads read small files in random order, none of them in memory.

    Raises `OSError` if the files cannot be written or do not leave the memory.
    """
    if not hasattr(os, "posix_fadvise"):
        raise OSError(0, "only Linux can read past its memory")
    if psutil.disk_usage(str(folder)).free < _MIN_FREE_BYTES:
        raise OSError(0, "less than 1 GiB is free")
    with tempfile.TemporaryDirectory(prefix=".timetrial_", dir=folder) as files_folder:
        files = [Path(files_folder, str(number)) for number in range(_FILES)]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(_write, files))
            return tuple(_read_all(files, pool) for _ in range(_PASSES))


def _write(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(os.urandom(IMAGE_BYTES))  # no disk can compress it
        file.flush()
        os.fsync(file.fileno())


def _read_all(files: Sequence[Path], pool: ThreadPoolExecutor) -> float:
    """Return the MB/s of reading all files."""
    if any(pool.map(page_cache.evict, files)):
        raise OSError(0, "the file system keeps its files in memory")
    started = time.perf_counter()
    num_bytes = sum(pool.map(_read, random.sample(files, len(files))))
    return num_bytes / 1e6 / (time.perf_counter() - started)


def _read(path: Path) -> int:
    """Read a file and return its number of bytes; `Path.read_bytes` holds the GIL longer, which slows other threads."""
    file = os.open(path, os.O_RDONLY)
    try:
        return len(os.read(file, IMAGE_BYTES))
    finally:
        os.close(file)
