"""Checks of the host: processors, memory, limits, disks and datasets."""

import os
import resource
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from ...datasets.build.store import DatasetStore
from ...datasets.registry import catalog
from ..core.errors import Exit
from ..hardware import host
from .check_result import CheckResult, State

_GIB = 2**30
_MIN_DISK_GIB, _WARN_DISK_GIB = 1, 10  # embedded runs need megabytes, reference data more than a check can know
_MIN_SHARED_GIB = 1
_MIN_OPEN_FILES, _WARN_OPEN_FILES, _RAISED_OPEN_FILES = 1024, 4096, 65536
_MAX_CPU_LOAD, _CPU_LOAD_SECONDS = 0.25, 0.3


def check_host() -> Iterator[CheckResult]:
    """Check processors, memory and limits of the host."""
    facts = host.describe()
    loads = psutil.cpu_percent(_CPU_LOAD_SECONDS, percpu=True)
    allowed_loads = [loads[cpu] for cpu in facts["affinity"] if cpu < len(loads)] if facts["affinity"] else loads
    num_cpus = len(facts["affinity"] or loads)
    memory = psutil.virtual_memory()
    free_memory = f"{memory.available / _GIB:.0f} of {memory.total / _GIB:.0f} GiB free"
    yield CheckResult(State.OK, "host", f"{num_cpus} processors, {free_memory}")
    yield from _check_cgroup(num_cpus, memory.total)
    load = sum(allowed_loads) / 100 / max(len(allowed_loads), 1)
    if load > _MAX_CPU_LOAD:
        yield CheckResult(State.WARN, "other processes", f"these processors are {load:.0%} busy, which affects timings")
    if (governor := facts["governor"]) not in (None, "performance"):
        message = f"{governor}: processors speed up slowly (sudo cpupower frequency-set -g performance)"
        yield CheckResult(State.WARN, "governor", message)
    yield _check_open_files()
    yield from _check_shared_memory()


def _check_cgroup(num_cpus: int, memory_bytes: int) -> Iterator[CheckResult]:
    memory_limit, cpu_limit = host.cgroup_limits()
    if cpu_limit is not None and cpu_limit < num_cpus:
        message = f"{num_cpus} processors are visible, {cpu_limit:.3g} may be used: lower recipe.data.workers"
        yield CheckResult(State.WARN, "cgroup", message)
    if memory_limit is not None and memory_limit < memory_bytes:
        message = f"{memory_limit / _GIB:.1f} GiB of {memory_bytes / _GIB:.0f} GiB may be used"
        yield CheckResult(State.WARN, "cgroup", message)


def _check_open_files() -> CheckResult:
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit >= _WARN_OPEN_FILES:
        return CheckResult(State.OK, "open files", f"at most {soft_limit}")
    unlimited = hard_limit == resource.RLIM_INFINITY
    new_limit = _RAISED_OPEN_FILES if unlimited else min(hard_limit, _RAISED_OPEN_FILES)
    remedy = f"ulimit -n {new_limit}"
    if new_limit < _WARN_OPEN_FILES:
        remedy = f"sudo prlimit --pid $$ --nofile={_RAISED_OPEN_FILES}"
    state = State.WARN if soft_limit >= _MIN_OPEN_FILES else State.FAIL
    return CheckResult(state, "open files", f"at most {soft_limit}: many data workers need more ({remedy})", remedy)


def _check_shared_memory() -> Iterator[CheckResult]:
    """Check the space through which data workers pass their batches."""
    folder = Path("/dev/shm")
    if not folder.exists():
        return
    usage = shutil.disk_usage(folder)
    message = f"{usage.free / _GIB:.1f} GiB free in {folder}, through which data workers pass batches"
    if usage.free >= _MIN_SHARED_GIB * _GIB:
        yield CheckResult(State.OK, "shared memory", message)
        return
    remedy = f"sudo mount -o remount,size={usage.total / _GIB + 8:.0f}G {folder}"
    yield CheckResult(State.FAIL, "shared memory", f"{message}: start a container with --shm-size=8g", remedy)


def check_disks(runs_dir: Path, data_dir: Path | None = None) -> Iterator[CheckResult]:
    """Check that the folders of runs and of datasets are writable and have space."""
    for name, folder in (("runs", runs_dir), ("data", data_dir)):
        if folder is None:
            continue
        existing = host.nearest_existing(folder)
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            state = State.FAIL if name == "runs" else State.WARN
            remedy = "mkdir -p ~/timetrial && cd ~/timetrial"
            yield CheckResult(state, f"disk for {name}", f"{existing} is not a writable folder", remedy)
            continue
        storage = host.describe_storage(folder)
        free_gib = storage["free_bytes"] / _GIB
        message = f"{free_gib:,.0f} GiB free in {folder}/, {storage['file_system'] or 'unknown'} file system"
        state = State.FAIL if free_gib < _MIN_DISK_GIB else State.OK if free_gib >= _WARN_DISK_GIB else State.WARN
        remedy = f"du -xh --max-depth=3 {shlex.quote(str(existing))} | sort -h"
        yield CheckResult(state, f"disk for {name}", message, remedy)


def check_datasets(data_dir: Path) -> Iterator[CheckResult]:
    """Check the datasets that exist; missing ones are no fault."""
    store, sources = DatasetStore(data_dir), catalog.read()
    states = {name: store.state(source) for name, source in sources.items()}
    ready = [name for name, state in states.items() if state in ("ready", "unmanaged")]
    names = f": {', '.join(ready)}" if ready else ""
    yield CheckResult(State.OK, "data", f"{len(ready)} of {len(sources)} datasets in {data_dir}/{names}")
    for name, state in states.items():
        if state == "partial":
            yield CheckResult(State.WARN, name, f"partial: timetrial data fetch {name} continues")
        if state == "damaged":
            accept = " --accept-license" if sources[name].requires_acceptance else ""
            dataset, folder = (shlex.quote(str(path)) for path in (data_dir / name, data_dir))
            remedy = f"rm -r {dataset} && timetrial data fetch {name} --data-dir {folder}{accept}"
            message = "damaged: files are missing or have another size"
            yield CheckResult(State.FAIL, name, message, remedy, Exit.DATA)
