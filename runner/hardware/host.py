"""The host: processors, memory, disks, and whose processes are whose."""

import os
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from timetrial.runner.hardware.rapl import Rapl
from timetrial.runner.hardware.reading import HostReading

_MIB, _MB = 2**20, 1e6


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

    Seen from a container, the card names its processes by other numbers than we do. Then one of them is taken for ours.
    """
    found = set(processes)
    ours = {process for process in found if _is_ours(process)}
    return max(len(found - ours) - (0 if ours else 1), 0)


@cache
def _is_ours(process: int) -> bool:
    family = (os.getpid(), os.getppid())
    try:
        return process in family or psutil.Process(process).ppid() in family
    except psutil.Error:
        return False


def facts() -> dict[str, Any]:
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


def limits(tree: Path = Path("/sys/fs/cgroup")) -> tuple[int | None, float | None]:
    """Bytes of memory and number of processors that a container, or a batch job, may use; None without a limit."""
    memory = _text(tree / "memory.max") or _text(tree / "memory" / "memory.limit_in_bytes")
    share = (_text(tree / "cpu.max") or "").split()
    if not share:
        share = [_text(tree / "cpu" / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    cores = int(share[0]) / int(share[1]) if len(share) == 2 and share[0].isdigit() and share[1].isdigit() else None
    return int(memory) if memory and memory.isdigit() else None, cores


def storage(path: Path) -> dict[str, Any]:
    """The kind of file system that holds `path`, or that of its nearest folder that is there, and of its disk."""
    place = path.resolve()
    while not place.exists():
        place = place.parent
    mounts = [mount for mount in psutil.disk_partitions(all=True) if place.is_relative_to(mount.mountpoint)]
    if not mounts:
        return {"file_system": None, "rotational": None, "free_bytes": psutil.disk_usage(str(place)).free}
    mount = max(mounts, key=lambda mount: len(mount.mountpoint))
    disk = Path(mount.device).name
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


def cache_bytes() -> int | None:
    """The largest cache of the first processor, where the kernel tells."""
    told = (_text(path) or "" for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return max((int(size[:-1]) * 2**10 for size in told if size.endswith("K")), default=None)
