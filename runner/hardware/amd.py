"""AMD's cards through amdsmi, the Python side of ROCm's management library."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from . import host
from .readings import CardReading

_FAN_FULL = 255
_THERMAL = ("active_socket_thrm", "active_vr_thrm", "active_hbm_thrm", "active_prochot_thrm")


class Amd:
    """The cards at these PCI addresses, all where none are named; `library` is the module amdsmi.

    Raises what the library raises where there is no driver.
    """

    source = "amdsmi"

    def __init__(self, library: ModuleType | Any, addresses: Sequence[str] | None = None) -> None:
        self._smi = library
        library.amdsmi_init(library.AmdSmiInitFlags.INIT_AMD_GPUS)
        self._handles = library.amdsmi_get_processor_handles()
        if addresses is not None:
            at = {library.amdsmi_get_gpu_device_bdf(card).lower(): card for card in self._handles}
            self._handles = [at[address.lower()] for address in addresses]

    def __len__(self) -> int:
        return len(self._handles)

    def read(self, index: int) -> CardReading:
        """What the card of this index shows now."""
        smi, card = self._smi, self._handles[index]
        energy, power = self._table("energy_count", card), self._table("power_info", card)
        errors, running = self._table("gpu_total_ecc_count", card), self._ask("gpu_process_list", card)
        hot = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        # Cards of the data centre tell the present power, others a mean.
        watts = _number(power.get("current_socket_power"))
        fan = _number(self._ask("gpu_fan_speed", card, 0))
        ticks, tick = _number(energy.get("energy_accumulator")), _number(energy.get("counter_resolution"))
        return CardReading(
            core_mhz=_number(self._table("clock_info", card, smi.AmdSmiClkType.GFX).get("clk")),
            memory_mhz=_number(self._table("clock_info", card, smi.AmdSmiClkType.MEM).get("clk")),
            load_percent=_number(self._table("gpu_activity", card).get("gfx_activity")),
            memory_mib=_number(self._table("gpu_vram_usage", card).get("vram_used")),
            temperature_c=_number(self._ask("temp_metric", card, *hot)),
            fan_percent=None if fan is None else fan * 100 / _FAN_FULL,
            power_watts=_number(power.get("average_socket_power")) if watts is None else watts,
            power_cap_watts=self._cap(card, "power_cap"),
            throttle=_words(self._table("violation_status", card)),
            ecc_corrected=_whole(errors.get("correctable_count")),
            ecc_uncorrected=_whole(errors.get("uncorrectable_count")),
            neighbours=None if running is None else host.others(entry["pid"] for entry in running),
            energy_joules=None if ticks is None or tick is None else ticks * tick / 1e6,
        )

    def describe(self, index: int) -> dict[str, Any]:
        """What stays of the card of this index."""
        smi, card = self._smi, self._handles[index]
        chip, driver = self._table("gpu_asic_info", card), self._table("gpu_driver_info", card)
        bus = self._table("pcie_info", card).get("pcie_metric", {})
        return {
            "name": chip.get("market_name"),
            "capability": chip.get("target_graphics_version"),
            "driver": driver.get("driver_version"),
            "power_cap_watts": self._cap(card, "power_cap"),
            "default_power_cap_watts": self._cap(card, "default_power_cap"),
            "highest_core_mhz": _number(self._table("clock_info", card, smi.AmdSmiClkType.GFX).get("max_clk")),
            "highest_memory_mhz": _number(self._table("clock_info", card, smi.AmdSmiClkType.MEM).get("max_clk")),
            "bus": {"speed_mt_s": _number(bus.get("pcie_speed")), "width": _number(bus.get("pcie_width"))},
            "numa_node": _whole(self._ask("numa_node", card, prefix="amdsmi_topo_get_", suffix="_number")),
        }

    def links(self) -> dict[str, str]:
        """XGMI where two cards have it, else PCIe, and the hops between them."""
        found, kinds = {}, self._link_kinds()
        for one in range(len(self)):
            for other in range(one + 1, len(self)):
                pair = self._handles[one], self._handles[other]
                link = self._ask("link_type", *pair, prefix="amdsmi_topo_get_") or {}
                found[f"{one}-{other}"] = f"{kinds.get(link.get('type', -1), 'unknown')}, {link.get('hops', '?')} hops"
        return found

    def _link_kinds(self) -> dict[int, str]:
        """The library's numbers for links; of its two lists of them it speaks by the older one as long as it has it."""
        lists = (getattr(self._smi, name, None) for name in ("AmdSmiIoLinkType", "AmdSmiLinkType"))
        members = next((kinds for kinds in lists if kinds is not None), ())
        return {int(one): word for word in ("XGMI", "PCIe") for one in members if word.upper()[:3] in one.name}

    def close(self) -> None:
        """Lets go of the library."""
        self._smi.amdsmi_shut_down()

    def _ask(self, what: str, *arguments: Any, prefix: str = "amdsmi_get_", suffix: str = "") -> Any:
        """The answer, or None where card or driver has none."""
        try:
            return getattr(self._smi, f"{prefix}{what}{suffix}")(*arguments)
        except (self._smi.AmdSmiException, AttributeError):  # which versions of the library lack some questions
            return None

    def _table(self, what: str, *arguments: Any) -> dict[str, Any]:
        return self._ask(what, *arguments) or {}

    def _cap(self, card: Any, which: str) -> float | None:
        """Watts; the library speaks of microwatts."""
        cap = _number(self._table("power_cap_info", card).get(which))
        return None if cap is None else cap / 1e6


def _words(violations: dict[str, Any]) -> str | None:
    reasons = {"power": ("active_ppt_pwr",), "thermal": _THERMAL}
    if not any(isinstance(violations.get(key), bool) for keys in reasons.values() for key in keys):
        return None
    return "+".join(word for word, keys in reasons.items() if any(violations.get(key) is True for key in keys))


def _number(value: Any) -> float | None:
    """The library writes "N/A", or its type's greatest value, for what it does not know."""
    known = isinstance(value, int | float) and value not in (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
    return float(value) if known else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
