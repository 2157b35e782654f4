"""The kernel's energy counters, on a powercap tree of a machine with two sockets."""

import pytest

from timetrial.runner.hardware.rapl import Rapl


@pytest.fixture
def powercap(tmp_path):
    zones = {"0": "package-0", "0:0": "core", "0:1": "dram", "1": "package-1", "2": "psys"}
    for zone, name in zones.items():
        folder = tmp_path / f"intel-rapl:{zone}"
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy_uj").write_text("1000000\n")
        (folder / "max_energy_range_uj").write_text("10000000\n")
    return tmp_path


def test_packages_and_dram_are_summed_once(powercap):
    rapl = Rapl(powercap)
    assert rapl.joules() == 0
    for zone in powercap.iterdir():
        (zone / "energy_uj").write_text("3500000\n")
    assert rapl.joules() == pytest.approx(3 * 2.5)


def test_counter_wraps_around(powercap):
    rapl = Rapl(powercap)
    (powercap / "intel-rapl:0" / "energy_uj").write_text("500000\n")
    assert rapl.joules() == pytest.approx(9.5)


def test_unreadable_counters_give_none(tmp_path):
    assert Rapl(tmp_path).joules() is None
