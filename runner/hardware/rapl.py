"""Energy of processors and their memory as the kernel's powercap tree counts it (Intel's RAPL, and AMD's alike)."""

from pathlib import Path

_TREE = Path("/sys/class/powercap")


class Rapl:
    """Adds up packages and the memory beside them; most systems let only root read them."""

    source = "RAPL"

    def __init__(self, tree: Path = _TREE) -> None:
        zones = [zone for zone in sorted(tree.glob("intel-rapl:*")) if _reads(zone / "energy_uj") is not None]
        # `psys` and `core` count again what packages count.
        self._zones = [zone for zone in zones if (zone / "name").read_text().startswith(("package", "dram"))]
        self._before = {zone: _reads(zone / "energy_uj") or 0 for zone in self._zones}
        self._sum = 0

    def joules(self) -> float | None:
        """Joules since this object was made; None where nothing can be read."""
        if not self._zones:
            return None
        for zone in self._zones:
            now = _reads(zone / "energy_uj")
            if now is None:
                continue
            past = now - self._before[zone]
            # A counter begins again at zero when it is full, some minutes of full load on.
            self._sum += past if past >= 0 else past + (_reads(zone / "max_energy_range_uj") or 0)
            self._before[zone] = now
        return self._sum / 1e6


def _reads(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
