"""The kernel's energy counters, on a tree like that of a machine with two sockets."""

import pytest

from timetrial.runner.hardware.rapl import Rapl


@pytest.fixture
def tree(tmp_path):
    zones = {"0": "package-0", "0:0": "core", "0:1": "dram", "1": "package-1", "2": "psys"}
    for zone, name in zones.items():
        folder = tmp_path / f"intel-rapl:{zone}"
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy_uj").write_text("1000000\n")
        (folder / "max_energy_range_uj").write_text("10000000\n")
    return tmp_path


def test_packages_and_their_memory_add_up_and_nothing_twice(tree):
    rapl = Rapl(tree)
    assert rapl.joules() == 0
    for zone in tree.iterdir():
        (zone / "energy_uj").write_text("3500000\n")
    assert rapl.joules() == pytest.approx(3 * 2.5)


def test_a_full_counter_begins_anew(tree):
    rapl = Rapl(tree)
    (tree / "intel-rapl:0" / "energy_uj").write_text("500000\n")
    assert rapl.joules() == pytest.approx(9.5)


def test_what_may_not_be_read_is_not_known(tmp_path):
    assert Rapl(tmp_path).joules() is None
