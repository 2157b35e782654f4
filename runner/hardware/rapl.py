"""Energy counters of CPU packages and DRAM: the kernel's powercap tree (Intel RAPL; AMD uses the same interface)."""

from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")


class Rapl:
    """Sum of the energy of all packages and their DRAM; on most systems only root may read the counters."""

    source = "RAPL"

    def __init__(self, powercap: Path = _POWERCAP) -> None:
        zones = [zone for zone in sorted(powercap.glob("intel-rapl:*")) if _read_int(zone / "energy_uj") is not None]
        # `psys` and `core` overlap with the packages.
        self._zones = [zone for zone in zones if (zone / "name").read_text().startswith(("package", "dram"))]
        self._previous = {zone: _read_int(zone / "energy_uj") or 0 for zone in self._zones}
        self._microjoules = 0

    def joules(self) -> float | None:
        """Return the joules since construction; None if no counter is readable."""
        if not self._zones:
            return None
        for zone in self._zones:
            counter = _read_int(zone / "energy_uj")
            if counter is None:
                continue
            delta = counter - self._previous[zone]
            # A counter wraps around after some minutes of full load.
            self._microjoules += delta if delta >= 0 else delta + (_read_int(zone / "max_energy_range_uj") or 0)
            self._previous[zone] = counter
        return self._microjoules / 1e6


def _read_int(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
