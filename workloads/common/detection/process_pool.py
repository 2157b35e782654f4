"""A pool of worker processes that ends with its parent."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

_MAX_WORKERS = 16  # more processes compete for memory bandwidth


def process_pool(workers: int | None = None) -> ProcessPoolExecutor:
    """Start a pool of `workers` processes; the default is one per usable core, at most 16.

    The processes are spawned, because the caller may have threads and a device, so each imports the main module again.
    Start the pool before the clock does. The processes end with the pool or with this process.
    """
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(_MAX_WORKERS, cores)
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _initialize_worker)
    for _ in range(workers):
        pool.submit(int)  # a job starts a process while none is idle
    return pool


def pool_map(function: Callable[[Any], Any], jobs: Iterable[Any], pool: Executor | None) -> list[Any]:
    """Return `function(job)` of each job, in order; computed in this process if `pool` is None."""
    return list(map(function, jobs) if pool is None else pool.map(function, jobs))


def _initialize_worker() -> None:
    """Ignore signals, which the parent handles, and exit when the parent is killed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)
