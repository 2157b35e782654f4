"""AMD's cards, from what amdsmi 7.0.2 returns."""

from enum import IntEnum
from types import SimpleNamespace

import pytest

from timetrial.runner.hardware.amd import Amd


class AmdSmiException(Exception):
    """As the library's."""


class Link(IntEnum):
    AMDSMI_LINK_TYPE_PCIE = 1
    AMDSMI_LINK_TYPE_XGMI = 2


@pytest.fixture
def smi():
    """smi(**answers) -> a module like amdsmi for two MI250X."""

    def make(**answers):
        def missing(*about):
            raise AmdSmiException

        told = {
            "energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.3, "timestamp": 1},
            "power_info": {"current_socket_power": "N/A", "average_socket_power": 300, "power_limit": 560_000_000},
            "clock_info": {"clk": 1700, "max_clk": 1700},
            "gpu_activity": {"gfx_activity": 99},
            "gpu_vram_usage": {"vram_total": 65520, "vram_used": 1234},
            "temp_metric": 55,
            "power_cap_info": {"power_cap": 500_000_000, "default_power_cap": 560_000_000},
            "gpu_total_ecc_count": {"correctable_count": 0, "uncorrectable_count": 2},
            "violation_status": {"active_ppt_pwr": False, "active_socket_thrm": True, "active_vr_thrm": "N/A"},
            "gpu_process_list": [],
            "gpu_asic_info": {"market_name": "AMD Instinct MI250X", "target_graphics_version": "gfx90a"},
            "gpu_driver_info": {"driver_version": "6.12"},
            "pcie_info": {"pcie_metric": {"pcie_speed": 16000, "pcie_width": 16}},
            "gpu_device_bdf": None,
        } | answers
        library = SimpleNamespace(
            AmdSmiException=AmdSmiException,
            AmdSmiInitFlags=SimpleNamespace(INIT_AMD_GPUS=2),
            AmdSmiClkType=SimpleNamespace(GFX=1, MEM=4),
            AmdSmiTemperatureType=SimpleNamespace(HOTSPOT=1),
            AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
            AmdSmiLinkType=Link,
            amdsmi_init=lambda flags: None,
            amdsmi_shut_down=lambda: None,
            amdsmi_get_processor_handles=lambda: ["one", "two"],
            amdsmi_get_gpu_fan_speed=missing,
            amdsmi_topo_get_link_type=lambda *pair: {"hops": 1, "type": 2},
            amdsmi_topo_get_numa_node_number=lambda card: 1,
        )
        for name, answer in told.items():
            setattr(library, f"amdsmi_get_{name}", lambda *about, answer=answer: answer)
        library.amdsmi_get_gpu_device_bdf = {"one": "0000:C1:00.0", "two": "0000:C6:00.0"}.get
        return library

    return make


def test_a_look_has_our_units(smi):
    now = Amd(smi()).read(0)
    assert (now.power_watts, now.power_cap_watts) == (300, 500)  # the mean, where the present is not known
    assert now.energy_joules == pytest.approx(30.6)
    assert (now.core_mhz, now.load_percent, now.memory_mib, now.temperature_c) == (1700, 99, 1234, 55)
    assert (now.throttle, now.ecc_uncorrected, now.fan_percent, now.neighbours) == ("thermal", 2, None, 0)


def test_unknown_is_none_and_not_a_great_number(smi):
    now = Amd(smi(gpu_activity={"gfx_activity": 0xFFFF}, violation_status={}, clock_info={"clk": "N/A"})).read(0)
    assert (now.load_percent, now.throttle, now.core_mhz) == (None, None, None)


def test_cards_are_found_by_their_place_on_the_bus(smi):
    cards = Amd(smi(), ["0000:c6:00.0"])
    assert len(cards) == 1
    assert cards.facts(0)["capability"] == "gfx90a"
    assert cards.facts(0)["numa_node"] == 1
    assert Amd(smi()).links() == {"0-1": "XGMI, 1 hops"}
    with pytest.raises(LookupError):
        Amd(smi(), ["0000:01:00.0"])
