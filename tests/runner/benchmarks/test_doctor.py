"""The doctor, on this machine and on others that are described to it."""

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from timetrial.datasets.registry import catalog
from timetrial.runner.benchmarks import doctor
from timetrial.runner.benchmarks.doctor import Check, Machine, Seen
from timetrial.runner.core.errors import Exit, LostRank
from timetrial.runner.hardware.readings import GpuReading
from timetrial.runner.hardware.wheels import Wheel
from timetrial.runner.training import all_reduce

CUDA_13 = Wheel("2.14.1+cu130", "cuda", "13.0", ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"))
ROCM = Wheel("2.11.0+rocm7.0", "rocm", "7.0", ("gfx90a", "gfx942"))
GIB = 2**30


def seen(name, capability, runtime="13.0", *, driver="580.1", now=None, **facts):
    facts |= {"name": name, "capability": capability, "driver": driver, "driver_runtime": runtime}
    return Seen(facts, now or GpuReading(neighbours=0, ecc_uncorrected=0, throttle=""), "NVML")


def card(name, capability, memory=16):
    return {"name": name, "capability": capability, "memory_bytes": memory * GIB}


T4 = Machine(CUDA_13, [card("Tesla T4", "7.5")], [seen("Tesla T4", "7.5")], "t4")
V100 = Machine(CUDA_13, [card("Tesla V100-PCIE-32GB", "7.0", 32)], [seen("Tesla V100", "7.0")], "v100")
MI250 = Machine(ROCM, [card("AMD Instinct MI250X", "gfx90a:sramecc+:xnack-")], [], "auto")
RADEON = Machine(ROCM, [card("AMD Radeon RX 7900", "gfx1100")], [seen("Radeon", "gfx1100", None)], "auto")
MAX = Machine(Wheel("2.11.0+xpu", "xpu", "20250301"), [{"name": "Intel Max 1550"}], [seen("Max", None, None)], "auto")
APPLE = Machine(Wheel("2.11.0", "mps"), [{"name": "Apple GPU"}], [], "auto")
NONE = Machine(CUDA_13, [], [], "cpu")


def bad(checks):
    return [check for check in checks if check.state == "bad"]


@pytest.mark.parametrize("machine", [T4, MI250, MAX, APPLE, NONE], ids=["t4", "mi250", "max", "apple", "none"])
def test_cards_that_the_wheel_was_made_for_are_fine(machine):
    assert not bad(doctor.of_cards(machine))


def test_a_v100_on_cuda_13_is_refused_with_the_wheel_to_install():
    (found,) = bad(doctor.of_cards(V100))
    assert "Tesla V100-PCIE-32GB, 32 GiB, 7.0" in found.found
    assert "holds no code for it" in found.found
    assert "--torch-backend=cu126 torch torchvision" in found.remedy
    assert doctor.verdict([found]) == Exit.DEVICE


def test_a_radeon_on_a_wheel_for_instincts_is_refused():
    (found,) = bad(doctor.of_cards(RADEON))
    assert "--torch-backend=auto" in found.remedy


def test_an_old_driver_is_named(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = Machine(CUDA_13, [], there=[seen("Tesla T4", "7.5", "12.2", driver="535.104")])
    (found,) = bad(doctor.of_cards(machine))
    assert "driver 535.104 runs programs up to 12.2, this PyTorch is of 13.0" in found.found
    assert "--torch-backend=cu126" in found.remedy


def test_hidden_cards_are_told_from_broken_ones(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    two = [seen("Tesla T4", "7.5")] * 2
    assert not bad(doctor.of_cards(Machine(CUDA_13, [card("Tesla T4", "7.5")], two[:1], "t4", there=two)))
    (found,) = bad(doctor.of_cards(Machine(CUDA_13, [], there=two)))
    assert found.remedy == "unset CUDA_VISIBLE_DEVICES"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (found,) = bad(doctor.of_cards(Machine(CUDA_13, [], there=two)))
    assert "though driver and build fit" in found.found
    assert found.remedy.startswith("sudo modprobe nvidia-uvm")


def test_a_hidden_cards_faults_are_not_mine(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    broken = seen("Tesla T4", "7.5", now=GpuReading(ecc_uncorrected=3))
    fine = seen("Tesla T4", "7.5")
    assert not bad(doctor.of_cards(Machine(CUDA_13, T4.usable, [fine], "t4", there=[broken, fine])))


def test_a_processors_graphics_are_no_card_that_is_missing():
    graphics = Seen({"name": "UHD"}, GpuReading(), "xpu-smi")
    assert not bad(doctor.of_cards(Machine(CUDA_13, T4.usable, T4.seen, "t4", there=[*T4.seen, graphics])))


@pytest.mark.parametrize(("vendors", "state"), [({"NVIDIA"}, "note"), ({"Intel"}, "ok"), ((), "ok")])
def test_a_card_without_a_driver_is_found_on_the_bus(vendors, state):
    (found,) = (check for check in doctor.of_cards(Machine(CUDA_13, [], vendors=vendors)) if check.name == "cards")
    assert found.state == state
    assert state == "ok" or "nvidia-driver" in found.found


def test_what_a_card_shows_now_is_noted():
    now = GpuReading(neighbours=2, throttle="power+thermal", temperature_c=88.0, core_mhz=585.0, ecc_uncorrected=1)
    facts = {"power_cap_watts": 60, "default_power_cap_watts": 70, "persistence": False, "highest_core_mhz": 1590}
    machine = Machine(CUDA_13, T4.usable, [seen("Tesla T4", "7.5", now=now, **facts)], "t4")
    checks = list(doctor.of_cards(machine))
    told = "\n".join(check.found for check in checks)
    for words in (
        "2 other processes", "lowered (thermal) at 88 degrees", "capped at 60 W, 70 W are usual",
        "persistence mode is off", "585 of 1590 MHz, 88 degrees (NVML)", "1 memory errors",
    ):  # fmt: skip
        assert words in told
    assert [check.remedy for check in bad(checks)] == ["sudo reboot"]


def test_a_damaged_set_is_bad_and_an_absent_one_is_not(tmp_path, monkeypatch):
    name, data = next(iter(catalog.read())), tmp_path / "my data"
    (data / name).mkdir(parents=True)
    checks = list(doctor.examine(NONE, tmp_path, data, sum_up=False))
    assert not [check for check in checks if check.code == Exit.DATA and check.state == "bad"]
    monkeypatch.setattr(doctor.DatasetStore, "state", lambda self, source: "damaged" if source.name == name else "missing")
    found = [check for check in doctor.examine(NONE, tmp_path, data, sum_up=False) if check.code == Exit.DATA]
    assert found[0].remedy.startswith(f"rm -r '{data / name}' && timetrial data fetch {name} --data-dir '{data}'")
    assert doctor.verdict(found) == Exit.DATA
    assert doctor.verdict([*found, Check("card 0", "bad", "", "", Exit.DEVICE)]) == Exit.DEVICE


def test_every_bad_line_ends_in_its_command():
    out = io.StringIO()
    doctor.show(Console(file=out, width=80), doctor.of_cards(V100))
    lines = [line for line in out.getvalue().splitlines() if line.strip()]
    assert lines[1].startswith("BAD")
    assert lines[2].strip().startswith("mend it: pip install uv && uv pip install")


def test_ranks_that_exist_add_up():
    assert all_reduce.measure("cpu", 2) > 0


def test_ranks_that_cannot_meet_are_one_sentence():
    with pytest.raises(LostRank, match="2 ranks could not add up a tensor"):
        all_reduce.measure("nonsense", 2)


def test_this_machine_as_a_script_asks(tmp_path):
    command = [sys.executable, "-P", "-m", "timetrial", "doctor", "--json", "--quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    told = json.loads(done.stdout)
    assert done.returncode == told["exit_code"]
    names = [check["name"] for check in told["checks"]]
    assert {"PyTorch", "host", "open files", "disk for runs", "data"} <= set(names)
    assert not any(check["state"] == "bad" and not check["remedy"] for check in told["checks"])
    assert not list(Path(tmp_path).iterdir())


@pytest.mark.parametrize(("files", "state"), [(4096, "ok"), (2048, "note"), (512, "bad")])
def test_open_files(monkeypatch, files, state):
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda what: (files, 65536))
    (found,) = (check for check in doctor._of_host() if check.name == "open files")
    assert found.state == state


@pytest.mark.parametrize(("free", "shared", "disk"), [(0.5, "bad", "bad"), (2, "ok", "note"), (20, "ok", "ok")])
def test_room(monkeypatch, tmp_path, free, shared, disk):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=free * 2**30, total=64 * 2**30))
    monkeypatch.setattr(doctor.host, "describe_storage", lambda path: {"free_bytes": free * 2**30, "file_system": "xfs"})
    states = {check.name: check.state for check in (*doctor._of_host(), *doctor._of_disks(runs=tmp_path))}
    assert (states["shared memory"], states["disk for runs"]) == (shared, disk)


def test_a_containers_memory_is_noted(monkeypatch):
    monkeypatch.setattr(doctor.host, "cgroup_limits", lambda: (2**30, 0.5))
    told = " ".join(check.found for check in doctor._of_host() if check.name == "cgroup")
    assert "1.0 GiB of" in told
    assert "0.5 may be used" in told


def test_ranks_that_do_not_add_up_are_bad(monkeypatch):
    def fail(name, ranks, peer_to_peer=True):
        raise LostRank("no")

    monkeypatch.setattr(all_reduce, "measure", fail)
    assert doctor._of_ranks(Machine(Wheel("2", "cpu"), [])).state == "bad"


def test_ranks_that_add_up_through_the_host_alone_are_told_how(monkeypatch):
    def measure(name, ranks, peer_to_peer=True):
        if peer_to_peer:
            raise LostRank("2 ranks did not add up a tensor within 120 s.")
        return 10.0

    monkeypatch.setattr(all_reduce, "measure", measure)
    found = doctor._of_ranks(Machine(CUDA_13, T4.usable * 2, name="t4"))
    assert (found.state, found.remedy) == ("bad", "export NCCL_P2P_DISABLE=1")


def test_a_folder_that_is_none_is_bad_for_runs_and_noted_for_data(tmp_path):
    (tmp_path / "file").write_text("")
    checks = list(doctor._of_disks(runs=tmp_path / "file", data=tmp_path / "file"))
    assert [check.state for check in checks] == ["bad", "note"]
