"""The host: processors, memory, disks, container limits, and the owners of processes."""

import math
import os
import time
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from .processor_time import ProcessTree, allowed_processors, idle_seconds
from .rapl import Rapl
from .readings import HostReading

_MIB, _MB = 2**20, 1e6
_MAX_PCIE_WIDTH = 32  # larger values stand for unknown
_ACCELERATOR_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # PCI: VGA, 3D, other display, processing accelerator
_PCI_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}


class HostSensors:
    """Load, memory, disk traffic and energy of the host; rates are means since the previous reading.

    The run consists of the process `launcher_pid` (default: this process) and its descendants.
    """

    def __init__(self, launcher_pid: int | None = None) -> None:
        launcher_pid = launcher_pid or os.getpid()
        self._run, self._processors = ProcessTree(launcher_pid), allowed_processors(launcher_pid)
        _, limit = cgroup_limits()
        self._usable_processors = min(len(self._processors), limit or math.inf)
        self._rapl = Rapl()
        self._previous = (time.monotonic(), psutil.disk_io_counters())
        psutil.cpu_percent()

    def read(self) -> HostReading:
        """Return a sample of the host."""
        now, disks = time.monotonic(), psutil.disk_io_counters()
        (previous_time, previous_disks), self._previous = self._previous, (now, disks)
        seconds = max(now - previous_time, 1e-3)

        def mb_per_second(counter: str) -> float | None:
            if not (disks and previous_disks):
                return None
            return float(getattr(disks, counter) - getattr(previous_disks, counter)) / _MB / seconds

        return HostReading(
            cpu_percent=psutil.cpu_percent(),
            host_memory_mib=psutil.virtual_memory().used / _MIB,
            disk_read_mb_s=mb_per_second("read_bytes"),
            disk_write_mb_s=mb_per_second("write_bytes"),
            host_energy_joules=self._rapl.joules(),
            usable_processors=self._usable_processors,
            idle_cpu_seconds=idle_seconds(self._processors),
            run_cpu_seconds=self._run.cpu_seconds(),
        )


def count_other_processes(pids: Iterable[int], ranks: Collection[int] = ()) -> int:
    """Count the processes that are not one of the run's ranks, nor this process, its parent, or a child of either.

    In a container, the driver reports process ids of the host, which do not exist here. Then one of them is taken to
    be this process.
    """
    pids = set(pids)
    own = {pid for pid in pids if pid in ranks or _is_own(pid)}
    own_is_hidden = not own and any(not psutil.pid_exists(pid) for pid in pids)
    return len(pids - own) - own_is_hidden


@cache
def _is_own(pid: int) -> bool:
    family = (os.getpid(), os.getppid())
    try:
        return pid in family or psutil.Process(pid).ppid() in family
    except psutil.Error:
        return False


def describe() -> dict[str, Any]:
    """Return constant facts: CPU affinity, NUMA nodes, frequency governor, huge pages, firmware, product."""
    governors = {
        _read_text(path) for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    }
    return {
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        "governor": "+".join(sorted(filter(None, governors))) or None,
        "huge_pages": _read_text(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "firmware": _read_text(Path("/sys/class/dmi/id/bios_version")),
        "product": _read_text(Path("/sys/class/dmi/id/product_name")),
    }


def cgroup_limits(
    cgroup_root: Path = Path("/sys/fs/cgroup"), own_cgroup: Path = Path("/proc/self/cgroup")
) -> tuple[int | None, float | None]:
    """Return the memory limit in bytes and the CPU limit in cores of this container or batch job; None if unlimited.

    The tightest limit counts, from the cgroup named in `own_cgroup` up to the root.
    """
    groups = {"": Path(), "memory": Path(), "cpu": Path()}  # cgroup v2 has one hierarchy, under the empty name
    for line in (_read_text(own_cgroup) or "").splitlines():
        _, controllers, group = line.split(":", 2)
        groups |= {controller: Path(group.lstrip("/")) for controller in controllers.split(",")}

    def read_all(controller: str, file: str) -> list[str]:
        group = groups[controller]
        return [_read_text(cgroup_root / controller / part / file) or "" for part in (group, *group.parents)]

    memory = [*read_all("", "memory.max"), *read_all("memory", "memory.limit_in_bytes")]
    v1_quotas = zip(read_all("cpu", "cpu.cfs_quota_us"), read_all("cpu", "cpu.cfs_period_us"), strict=True)
    quotas = [text.split() for text in (*read_all("", "cpu.max"), *map(" ".join, v1_quotas))]
    cores = [int(quota[0]) / int(quota[1]) for quota in quotas if len(quota) == 2 and all(map(str.isdigit, quota))]
    return min(map(int, filter(str.isdigit, memory)), default=None), min(cores, default=None)


def nearest_existing(path: Path) -> Path:
    """Return the resolved path, or its nearest ancestor that exists."""
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path


def describe_storage(path: Path) -> dict[str, Any]:
    """Return file system, kind of disk and free bytes at `path` or its nearest ancestor that exists."""
    path = nearest_existing(path)
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    if not mounts:
        return {"file_system": None, "rotational": None, "free_bytes": psutil.disk_usage(str(path)).free}
    mount = max(reversed(mounts), key=lambda mount: len(mount.mountpoint))  # the last of several on one mount point
    rotational = None
    if disk := Path(mount.device).name:
        rotational = next(map(_read_text, Path("/sys/class/block").glob(f"{disk}/**/queue/rotational")), None)
        rotational = rotational or next(map(_read_text, Path("/sys/block").glob(f"*/{disk}/../queue/rotational")), None)
    return {
        "file_system": mount.fstype,
        "rotational": None if rotational is None else rotational == "1",
        "free_bytes": psutil.disk_usage(str(path)).free,
    }


def numa_node(pci_address: str) -> int | None:
    """Return the NUMA node of the device at a PCI address."""
    text = _read_text(Path("/sys/bus/pci/devices") / pci_address.lower() / "numa_node")
    return int(text) if text and int(text) >= 0 else None


def max_pcie_width(pci_address: str, pci_devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """Return how many lanes of PCI Express the device at a PCI address has, whatever its slot offers."""
    return _max_link_width(pci_devices / pci_address.lower())


def slot_width(pci_address: str, pci_devices: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """Return how many lanes the port has that the device at a PCI address is plugged into; None where it is hidden."""
    return _max_link_width((pci_devices / pci_address.lower()).resolve().parent)


def _max_link_width(folder: Path) -> int | None:
    text = _read_text(folder / "max_link_width")
    return int(text) if text and text.isdecimal() and 0 < int(text) <= _MAX_PCIE_WIDTH else None


def pci_gpu_vendors(pci_devices: Path = Path("/sys/bus/pci/devices")) -> set[str]:
    """Return the vendors of the GPUs on the PCI bus, with or without a driver."""
    vendors = set()
    for device in pci_devices.glob("*"):
        if (_read_text(device / "class") or "").startswith(_ACCELERATOR_CLASSES):
            vendors.add(_PCI_VENDORS.get(_read_text(device / "vendor") or "", ""))
    return vendors - {""}


def largest_cache_bytes() -> int | None:
    """Return the size of the largest cache of the first processor; None if the kernel does not report it."""
    sizes = (_read_text(path) or "" for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return max((int(size[:-1]) * 2**10 for size in sizes if size.endswith("K")), default=None)


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
