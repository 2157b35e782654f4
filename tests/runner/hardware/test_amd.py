"""AMD's cards, from what amdsmi 7.0.2 returns."""

import pytest

from timetrial.runner.hardware.amd import Amd


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
    assert cards.describe(0)["capability"] == "gfx90a"
    assert cards.describe(0)["numa_node"] == 1
    assert Amd(smi()).links() == {"0-1": "XGMI, 1 hops"}
    with pytest.raises(LookupError):
        Amd(smi(), ["0000:01:00.0"])


def test_a_fan_is_a_share_of_255(smi):
    library = smi()
    library.amdsmi_get_gpu_fan_speed = lambda card, sensor: 51
    assert Amd(library).read(0).fan_percent == pytest.approx(20)


def test_versions_that_lack_some_questions_answer_the_others(smi):
    library = smi()
    del library.amdsmi_get_violation_status, library.AmdSmiLinkType
    cards = Amd(library)
    assert cards.read(0).power_watts == 300
    assert cards.read(0).throttle is None
    assert cards.links() == {"0-1": "unknown, 1 hops"}
    library.amdsmi_get_violation_status = lambda card: {"active_ppt_pwr": "N/A", "active_socket_thrm": "N/A"}
    assert cards.read(0).throttle is None
