"""Sensors of AMD GPUs through amdsmi, the Python interface of ROCm's management library."""

import itertools
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any

from . import host
from .readings import GpuReading, LinkReading, PcieLink

_MAX_FAN_SPEED = 255
# Generations of PCI Express by the transfers of a lane in GT/s (PCI-SIG).
_PCIE_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_THERMAL_VIOLATIONS = ("active_socket_thrm", "active_vr_thrm", "active_hbm_thrm", "active_prochot_thrm")


class AmdSmiSensors:
    """The GPUs at the given PCI addresses, by default all; `library` is the module amdsmi.

    The processes `ranks` belong to this run.
    Raises the library's own error if there is no driver.
    """

    source = "amdsmi"

    def __init__(
        self, library: ModuleType | Any, addresses: Sequence[str] | None = None, ranks: Collection[int] = ()
    ) -> None:
        self._smi, self._ranks = library, ranks
        library.amdsmi_init(library.AmdSmiInitFlags.INIT_AMD_GPUS)
        self._handles = library.amdsmi_get_processor_handles()
        if addresses is not None:
            by_address = {library.amdsmi_get_gpu_device_bdf(gpu).lower(): gpu for gpu in self._handles}
            self._handles = [by_address[address.lower()] for address in addresses]
        self._xgmi_errors = [0] * len(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def read(self, index: int) -> GpuReading:
        """Return a sample of GPU `index`."""
        smi, gpu = self._smi, self._handles[index]
        energy, power = self._query_table("energy_count", gpu), self._query_table("power_info", gpu)
        errors, processes = self._query_table("gpu_total_ecc_count", gpu), self._query("gpu_process_list", gpu)
        pids = None if processes is None else [process["pid"] for process in processes]
        hotspot = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        # Data-center GPUs report the current power, others a mean.
        watts = _to_float(power.get("current_socket_power"))
        fan = _to_float(self._query("gpu_fan_speed", gpu, 0))
        ticks, tick = _to_float(energy.get("energy_accumulator")), _to_float(energy.get("counter_resolution"))
        return GpuReading(
            core_mhz=_to_float(self._query_table("clock_info", gpu, smi.AmdSmiClkType.GFX).get("clk")),
            memory_mhz=_to_float(self._query_table("clock_info", gpu, smi.AmdSmiClkType.MEM).get("clk")),
            utilization_percent=_to_float(self._query_table("gpu_activity", gpu).get("gfx_activity")),
            memory_mib=_to_float(self._query_table("gpu_vram_usage", gpu).get("vram_used")),
            temperature_c=_to_float(self._query("temp_metric", gpu, *hotspot)),
            fan_percent=None if fan is None else fan * 100 / _MAX_FAN_SPEED,
            power_watts=_to_float(power.get("average_socket_power")) if watts is None else watts,
            power_cap_watts=self._power_cap_watts(gpu, "power_cap"),
            throttle_reasons=_throttle_reasons(self._query_table("violation_status", gpu)),
            ecc_corrected=_to_int(errors.get("correctable_count")),
            ecc_uncorrected=_to_int(errors.get("uncorrectable_count")),
            other_processes=None if pids is None else host.count_other_processes(pids, self._ranks),
            energy_joules=None if ticks is None or tick is None else ticks * tick / 1e6,
        )

    def describe(self, index: int) -> dict[str, Any]:
        """Return constant facts of GPU `index`."""
        smi, gpu = self._smi, self._handles[index]
        asic, driver = self._query_table("gpu_asic_info", gpu), self._query_table("gpu_driver_info", gpu)
        pcie = self._query_table("pcie_info", gpu).get("pcie_metric", {})
        return {
            "name": asic.get("market_name"),
            "capability": asic.get("target_graphics_version"),
            "driver": driver.get("driver_version"),
            "power_cap_watts": self._power_cap_watts(gpu, "power_cap"),
            "default_power_cap_watts": self._power_cap_watts(gpu, "default_power_cap"),
            "max_core_mhz": _to_float(self._query_table("clock_info", gpu, smi.AmdSmiClkType.GFX).get("max_clk")),
            "max_memory_mhz": _to_float(self._query_table("clock_info", gpu, smi.AmdSmiClkType.MEM).get("max_clk")),
            "pcie": {"speed_mt_s": _to_float(pcie.get("pcie_speed")), "width": _to_float(pcie.get("pcie_width"))},
            "numa_node": _to_int(self._query("numa_node", gpu, prefix="amdsmi_topo_get_", suffix="_number")),
        }

    def read_links(self, index: int) -> LinkReading:
        """Return the links of GPU `index`."""
        gpu = self._handles[index]
        pcie = self._query_table("pcie_info", gpu)
        now, most = pcie.get("pcie_metric", {}), pcie.get("pcie_static", {})
        states = self._query_table("gpu_xgmi_link_status", gpu).get("status", ())
        states = [state for state in states if state in ("U", "D")]  # up and down; the others are switched off
        return LinkReading(
            pcie=PcieLink(_pcie_generation(now.get("pcie_speed")), _to_int(now.get("pcie_width"))),
            pcie_of_gpu=PcieLink(_pcie_generation(most.get("max_pcie_speed")), _to_int(most.get("max_pcie_width"))),
            pcie_replays=_to_int(now.get("pcie_replay_count")),
            peer_links=tuple(state == "U" for state in states) or None,
            peer_errors=self._count_xgmi_errors(index),
        )

    def _count_xgmi_errors(self, index: int) -> dict[str, int] | None:
        """Return the errors since this object was made: none, one or several (2), since the driver's last answer.

        The driver clears its status when it is read (amdgpu_xgmi_show_error of the Linux kernel).
        """
        status = _to_int(self._query("gpu_xgmi_error_status", self._handles[index], prefix="amdsmi_"))
        if status is None:
            return None
        self._xgmi_errors[index] += status
        return {"XGMI": self._xgmi_errors[index]}

    def links(self) -> dict[str, str]:
        """Return XGMI or PCIe for each pair of GPUs, and the number of hops."""
        links, kinds = {}, self._link_kinds()
        for first, second in itertools.combinations(range(len(self)), 2):
            link = (
                self._query("link_type", self._handles[first], self._handles[second], prefix="amdsmi_topo_get_") or {}
            )
            kind = kinds.get(link.get("type", -1), "unknown")
            links[f"{first}-{second}"] = f"{kind}, {link.get('hops', '?')} hops"
        return links

    def _link_kinds(self) -> dict[int, str]:
        """Return the library's numbers of link types; it uses the older of its two enumerations where it has both."""
        enums = (getattr(self._smi, name, None) for name in ("AmdSmiIoLinkType", "AmdSmiLinkType"))
        members = next((enum for enum in enums if enum is not None), ())
        return {int(member): kind for kind in ("XGMI", "PCIe") for member in members if kind.upper()[:3] in member.name}

    def close(self) -> None:
        """Shut amdsmi down."""
        self._smi.amdsmi_shut_down()

    def _query(self, name: str, *arguments: Any, prefix: str = "amdsmi_get_", suffix: str = "") -> Any:
        """Return the result of a function, or None if GPU, driver or version of the library does not support it."""
        try:
            return getattr(self._smi, f"{prefix}{name}{suffix}")(*arguments)
        except (self._smi.AmdSmiException, AttributeError):
            return None

    def _query_table(self, name: str, *arguments: Any) -> dict[str, Any]:
        return self._query(name, *arguments) or {}

    def _power_cap_watts(self, gpu: Any, key: str) -> float | None:
        """Return an entry of the power caps in watts; the library reports microwatts."""
        microwatts = _to_float(self._query_table("power_cap_info", gpu).get(key))
        return None if microwatts is None else microwatts / 1e6


def _throttle_reasons(violations: dict[str, Any]) -> str | None:
    keys_by_reason = {"power": ("active_ppt_pwr",), "thermal": _THERMAL_VIOLATIONS}
    if not any(isinstance(violations.get(key), bool) for keys in keys_by_reason.values() for key in keys):
        return None
    return "+".join(
        reason for reason, keys in keys_by_reason.items() if any(violations.get(key) is True for key in keys)
    )


def _pcie_generation(speed: Any) -> int | None:
    """Return the generation of a link by its MT/s or GT/s; versions of the library differ in the unit."""
    value = _to_float(speed) or 0.0
    return _PCIE_GENERATIONS.get(value / 1000 if value >= 1000 else value)


def _to_float(value: Any) -> float | None:
    """Return a float; None for "N/A" and for the largest value of an integer type, which mean unknown."""
    is_known = isinstance(value, int | float) and value not in (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
    return float(value) if is_known else None


def _to_int(value: Any) -> int | None:
    number = _to_float(value)
    return None if number is None else int(number)
