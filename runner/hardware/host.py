"""The host: processors, memory, disks, and whose processes are whose."""

import os
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from .rapl import Rapl
from .readings import HostReading

_MIB, _MB = 2**20, 1e6
_ACCELERATORS = ("0x0300", "0x0302", "0x0380", "0x1200")  # PCI classes: graphics, 3D, other displays, processing
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}


class Host:
    """Looks at the host; rates are means since the look before."""

    def __init__(self) -> None:
        self._rapl = Rapl()
        self._before = (time.monotonic(), psutil.disk_io_counters())
        psutil.cpu_percent()

    def read(self) -> HostReading:
        """What the host shows now."""
        now, disks = time.monotonic(), psutil.disk_io_counters()
        (since, before), self._before = self._before, (now, disks)
        seconds = max(now - since, 1e-3)
        return HostReading(
            cpu_percent=psutil.cpu_percent(),
            host_memory_mib=psutil.virtual_memory().used / _MIB,
            disk_read_mb_s=(disks.read_bytes - before.read_bytes) / _MB / seconds if disks and before else None,
            disk_write_mb_s=(disks.write_bytes - before.write_bytes) / _MB / seconds if disks and before else None,
            host_energy_joules=self._rapl.joules(),
        )


def others(processes: Iterable[int]) -> int:
    """How many of a card's processes are not this process, its parent, or children of either.

    Seen from a container, the card names its processes by numbers that are nobody's here. Then one of them is taken for
    ours.
    """
    found = set(processes)
    ours = {process for process in found if _is_ours(process)}
    unknown = not ours and any(not psutil.pid_exists(process) for process in found)
    return len(found - ours) - unknown


@cache
def _is_ours(process: int) -> bool:
    family = (os.getpid(), os.getppid())
    try:
        return process in family or psutil.Process(process).ppid() in family
    except psutil.Error:
        return False


def describe() -> dict[str, Any]:
    """What stays of a host: processors allowed, memory nodes, frequency governor, huge pages, firmware."""
    governors = {_text(path) for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")}
    return {
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        "governor": "+".join(sorted(filter(None, governors))) or None,
        "huge_pages": _text(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "firmware": _text(Path("/sys/class/dmi/id/bios_version")),
        "product": _text(Path("/sys/class/dmi/id/product_name")),
    }


def limits(
    tree: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> tuple[int | None, float | None]:
    """Bytes of memory and number of processors that a container, or a batch job, may use; None without a limit.

    Of all groups from the one that `own` names up to the root of `tree` the least counts.
    """
    groups = {"": Path(), "memory": Path(), "cpu": Path()}  # in the second version all limits lie in one tree
    for line in (_text(own) or "").splitlines():
        _, controllers, place = line.split(":", 2)
        groups |= {controller: Path(place.lstrip("/")) for controller in controllers.split(",")}

    def told(controller: str, name: str) -> list[str]:
        group = groups[controller]
        return [_text(tree / controller / part / name) or "" for part in (group, *group.parents)]

    memory = [*told("", "memory.max"), *told("memory", "memory.limit_in_bytes")]
    quotas = zip(told("cpu", "cpu.cfs_quota_us"), told("cpu", "cpu.cfs_period_us"), strict=True)
    shares = [share.split() for share in (*told("", "cpu.max"), *map(" ".join, quotas))]
    cores = [int(share[0]) / int(share[1]) for share in shares if len(share) == 2 and all(map(str.isdigit, share))]
    return min(map(int, filter(str.isdigit, memory)), default=None), min(cores, default=None)


def nearest(path: Path) -> Path:
    """The place itself, or where it is not there the nearest above it that is."""
    place = path.resolve()
    while not place.exists():
        place = place.parent
    return place


def storage(path: Path) -> dict[str, Any]:
    """The kind of file system that holds `path`, or that of its nearest folder that is there, and of its disk."""
    place = nearest(path)
    mounts = [mount for mount in psutil.disk_partitions(all=True) if place.is_relative_to(mount.mountpoint)]
    if not mounts:
        return {"file_system": None, "rotational": None, "free_bytes": psutil.disk_usage(str(place)).free}
    mount = max(reversed(mounts), key=lambda mount: len(mount.mountpoint))  # of several at one place the last
    turns = None
    if disk := Path(mount.device).name:  # which a mount need not have
        turns = next(map(_text, Path("/sys/class/block").glob(f"{disk}/**/queue/rotational")), None)
        turns = turns or next(map(_text, Path("/sys/block").glob(f"*/{disk}/../queue/rotational")), None)
    return {
        "file_system": mount.fstype,
        "rotational": None if turns is None else turns == "1",
        "free_bytes": psutil.disk_usage(str(place)).free,
    }


def memory_node(address: str) -> int | None:
    """The memory node next to the card at this PCI address."""
    text = _text(Path("/sys/bus/pci/devices") / address.lower() / "numa_node")
    return int(text) if text and int(text) >= 0 else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def vendors(bus: Path = Path("/sys/bus/pci/devices")) -> set[str]:
    """Whose accelerators sit on the PCI bus, whether there is a driver for them or not."""
    found = set()
    for device in bus.glob("*"):
        if (_text(device / "class") or "").startswith(_ACCELERATORS):
            found.add(_VENDORS.get(_text(device / "vendor") or "", ""))
    return found - {""}


def cache_bytes() -> int | None:
    """The largest cache of the first processor, where the kernel tells."""
    told = (_text(path) or "" for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return max((int(size[:-1]) * 2**10 for size in told if size.endswith("K")), default=None)
