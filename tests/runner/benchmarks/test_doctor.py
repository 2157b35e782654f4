"""timetrial doctor, on this machine and on described ones."""

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from timetrial.datasets.registry import catalog
from timetrial.runner.benchmarks import doctor, gpu_checks, host_checks
from timetrial.runner.benchmarks.check_result import CheckResult
from timetrial.runner.benchmarks.gpu_checks import Machine, SensedGpu, check_gpus
from timetrial.runner.core.errors import Exit, LostRank
from timetrial.runner.hardware.pytorch_build import PyTorchBuild
from timetrial.runner.hardware.readings import GpuReading
from timetrial.runner.training import all_reduce

CUDA_13 = PyTorchBuild("2.14.1+cu130", "cuda", "13.0", ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"))
ROCM = PyTorchBuild("2.11.0+rocm7.0", "rocm", "7.0", ("gfx90a", "gfx942"))
GIB = 2**30


def sensed(name, capability, runtime="13.0", *, driver="580.1", reading=None, **facts):
    facts |= {"name": name, "capability": capability, "driver": driver, "driver_runtime": runtime}
    return SensedGpu(facts, reading or GpuReading(other_processes=0, ecc_uncorrected=0, throttle_reasons=""), "NVML")


def gpu(name, capability, memory=16):
    return {"name": name, "capability": capability, "memory_bytes": memory * GIB}


T4 = Machine(CUDA_13, [gpu("Tesla T4", "7.5")], [sensed("Tesla T4", "7.5")], "t4")
V100 = Machine(CUDA_13, [gpu("Tesla V100-PCIE-32GB", "7.0", 32)], [sensed("Tesla V100", "7.0")], "v100")
MI250 = Machine(ROCM, [gpu("AMD Instinct MI250X", "gfx90a:sramecc+:xnack-")], [], "auto")
RADEON = Machine(ROCM, [gpu("AMD Radeon RX 7900", "gfx1100")], [sensed("Radeon", "gfx1100", None)], "auto")
MAX = Machine(
    PyTorchBuild("2.11.0+xpu", "xpu", "20250301"), [{"name": "Intel Max 1550"}], [sensed("Max", None, None)], "auto"
)
APPLE = Machine(PyTorchBuild("2.11.0", "mps"), [{"name": "Apple GPU"}], [], "auto")
NONE = Machine(CUDA_13, [], [], "cpu")


def failures(results):
    return [result for result in results if result.state == "FAIL"]


@pytest.mark.parametrize("machine", [T4, MI250, MAX, APPLE, NONE], ids=["t4", "mi250", "max", "apple", "none"])
def test_gpus_that_the_build_supports_pass(machine):
    assert not failures(check_gpus(machine))


def test_gpu_without_a_c_compiler_fails_where_triton_would_call_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(gpu_checks, "find_spec", lambda name: name)
    (failure,) = failures(check_gpus(T4))
    assert failure.remedy == "sudo apt install gcc libc6-dev"
    monkeypatch.setattr(gpu_checks, "find_spec", lambda name: None)
    assert not failures(check_gpus(T4))
    monkeypatch.setattr(gpu_checks, "find_spec", lambda name: name)
    monkeypatch.setenv("CC", "cc")
    assert not failures(check_gpus(T4))
    assert not failures(check_gpus(NONE))


def test_v100_with_cuda_13_fails_with_the_build_to_install():
    (failure,) = failures(check_gpus(V100))
    assert "Tesla V100-PCIE-32GB, 32 GiB, 7.0" in failure.message
    assert "has no kernels for it" in failure.message
    assert "--torch-backend=cu126 torch torchvision" in failure.remedy
    assert doctor.exit_code([failure]) == Exit.DEVICE


def test_radeon_with_a_build_for_instinct_fails():
    (failure,) = failures(check_gpus(RADEON))
    assert "--torch-backend=auto" in failure.remedy


def test_old_driver_is_named(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = Machine(CUDA_13, [], installed_gpus=[sensed("Tesla T4", "7.5", "12.2", driver="535.104")])
    (failure,) = failures(check_gpus(machine))
    assert "driver 535.104 supports runtimes up to 12.2, this PyTorch needs 13.0" in failure.message
    assert "--torch-backend=cu126" in failure.remedy


def test_hidden_gpus_are_distinguished_from_inaccessible_ones(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    two = [sensed("Tesla T4", "7.5")] * 2
    assert not failures(check_gpus(Machine(CUDA_13, [gpu("Tesla T4", "7.5")], two[:1], "t4", installed_gpus=two)))
    (failure,) = failures(check_gpus(Machine(CUDA_13, [], installed_gpus=two)))
    assert failure.remedy == "unset CUDA_VISIBLE_DEVICES"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (failure,) = failures(check_gpus(Machine(CUDA_13, [], installed_gpus=two)))
    assert "though driver and build match" in failure.message
    assert failure.remedy.startswith("sudo modprobe nvidia-uvm")


def test_faults_of_hidden_gpus_do_not_fail(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    broken = sensed("Tesla T4", "7.5", reading=GpuReading(ecc_uncorrected=3))
    healthy = sensed("Tesla T4", "7.5")
    assert not failures(check_gpus(Machine(CUDA_13, T4.gpus, [healthy], "t4", installed_gpus=[broken, healthy])))


def test_integrated_graphics_are_not_a_missing_gpu():
    graphics = SensedGpu({"name": "UHD"}, GpuReading(), "xpu-smi")
    assert not failures(
        check_gpus(Machine(CUDA_13, T4.gpus, T4.sensed_gpus, "t4", installed_gpus=[*T4.sensed_gpus, graphics]))
    )


@pytest.mark.parametrize(("vendors", "state"), [({"NVIDIA"}, "WARN"), ({"Intel"}, "OK"), ((), "OK")])
def test_gpu_without_driver_is_found_on_the_pci_bus(vendors, state):
    (result,) = (result for result in check_gpus(Machine(CUDA_13, [], pci_vendors=vendors)) if result.check == "GPUs")
    assert result.state == state
    assert state == "OK" or "nvidia-driver" in result.message


@pytest.mark.parametrize(("memory_mib", "is_reported"), [(None, False), (618.0, False), (30_720.0, True)])
def test_memory_that_no_visible_process_uses_is_reported(memory_mib, is_reported):
    reading = GpuReading(other_processes=0, memory_mib=memory_mib)
    results = check_gpus(Machine(CUDA_13, T4.gpus, [sensed("Tesla T4", "7.5", reading=reading)], "t4"))
    warnings = [result.message for result in results if result.state == "WARN"]
    assert any("30.0 GiB of its memory are in use" in message for message in warnings) == is_reported
    assert len(warnings) == is_reported


def test_conditions_that_spoil_measurements_are_reported():
    reading = GpuReading(
        other_processes=2, throttle_reasons="power+thermal", temperature_c=88.0, core_mhz=585.0, ecc_uncorrected=1
    )
    facts = {"power_cap_watts": 60, "default_power_cap_watts": 70, "persistence_mode": False, "max_core_mhz": 1590}
    machine = Machine(CUDA_13, T4.gpus, [sensed("Tesla T4", "7.5", reading=reading, **facts)], "t4")
    results = list(check_gpus(machine))
    messages = "\n".join(result.message for result in results)
    for text in (
        "2 other processes", "lowered (thermal) at 88 degrees", "power cap is 60 W, the default is 70 W",
        "persistence mode is off", "585 of 1590 MHz, 88 degrees C (NVML)", "1 uncorrected memory errors",
    ):  # fmt: skip
        assert text in messages
    assert [failure.remedy for failure in failures(results)] == ["sudo reboot"]


def test_damaged_dataset_fails_and_missing_one_does_not(tmp_path, monkeypatch):
    name, data = next(iter(catalog.read())), tmp_path / "my data"
    (data / name).mkdir(parents=True)
    results = list(doctor.run_checks(NONE, tmp_path, data, with_all_reduce=False))
    assert not [failure for failure in failures(results) if failure.exit_code == Exit.DATA]
    monkeypatch.setattr(
        host_checks.DatasetStore, "state", lambda self, source: "damaged" if source.name == name else "missing"
    )
    results = list(doctor.run_checks(NONE, tmp_path, data, with_all_reduce=False))
    damaged = [result for result in results if result.exit_code == Exit.DATA]
    assert damaged[0].remedy.startswith(f"rm -r '{data / name}' && timetrial data fetch {name} --data-dir '{data}'")
    assert doctor.exit_code(damaged) == Exit.DATA
    assert doctor.exit_code([*damaged, CheckResult("FAIL", "GPU 0", "", "", Exit.DEVICE)]) == Exit.DEVICE


def test_every_failure_is_followed_by_its_remedy():
    out = io.StringIO()
    doctor.show(Console(file=out, width=80), check_gpus(V100))
    lines = [line for line in out.getvalue().splitlines() if line.strip()]
    assert lines[1].startswith("FAIL GPU 0")
    assert lines[2].strip().startswith("remedy: pip install uv && uv pip install")


@pytest.mark.integration
def test_all_reduce_over_two_ranks():
    assert all_reduce.measure("cpu", 2) > 0


@pytest.mark.integration
def test_failing_all_reduce_is_one_sentence():
    with pytest.raises(LostRank, match="2 ranks could not run an all-reduce"):
        all_reduce.measure("nonsense", 2)


@pytest.mark.integration
def test_json_output_on_this_machine(tmp_path):
    command = [sys.executable, "-P", "-m", "timetrial", "doctor", "--json", "--quick"]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    report = json.loads(completed.stdout)
    assert completed.returncode == report["exit_code"]
    names = [result["check"] for result in report["checks"]]
    assert {"PyTorch", "host", "open files", "disk for runs", "data"} <= set(names)
    assert not any(result["state"] == "FAIL" and not result["remedy"] for result in report["checks"])
    assert not list(Path(tmp_path).iterdir())


@pytest.mark.parametrize(("limit", "state"), [(4096, "OK"), (2048, "WARN"), (512, "FAIL")])
def test_limit_of_open_files(monkeypatch, limit, state):
    monkeypatch.setattr(host_checks.resource, "getrlimit", lambda resource: (limit, 65536))
    (result,) = (result for result in host_checks.check_host() if result.check == "open files")
    assert result.state == state


@pytest.mark.parametrize(("free", "shared", "disk"), [(0.5, "FAIL", "FAIL"), (2, "OK", "WARN"), (20, "OK", "OK")])
def test_free_space(monkeypatch, tmp_path, free, shared, disk):
    monkeypatch.setattr(
        host_checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=free * 2**30, total=64 * 2**30)
    )
    monkeypatch.setattr(
        host_checks.host, "describe_storage", lambda path: {"free_bytes": free * 2**30, "file_system": "xfs"}
    )
    results = (*host_checks.check_host(), *host_checks.check_disks(tmp_path))
    states = {result.check: result.state for result in results}
    assert (states["shared memory"], states["disk for runs"]) == (shared, disk)


def test_cgroup_limits_are_reported(monkeypatch):
    monkeypatch.setattr(host_checks.host, "cgroup_limits", lambda: (2**30, 0.5))
    messages = " ".join(result.message for result in host_checks.check_host() if result.check == "cgroup")
    assert "1.0 GiB of" in messages
    assert "0.5 may be used" in messages


def test_failing_all_reduce_fails_the_check(monkeypatch):
    def fail(accelerator, ranks, peer_to_peer=True):
        raise LostRank("no")

    monkeypatch.setattr(all_reduce, "measure", fail)
    assert doctor.check_ranks(Machine(PyTorchBuild("2", "cpu"), [])).state == "FAIL"


def test_all_reduce_that_works_through_the_host_only_has_a_remedy(monkeypatch):
    def measure(accelerator, ranks, peer_to_peer=True):
        if peer_to_peer:
            raise LostRank("2 ranks did not finish an all-reduce within 120 s.")
        return 10.0

    monkeypatch.setattr(all_reduce, "measure", measure)
    result = doctor.check_ranks(Machine(CUDA_13, T4.gpus * 2, accelerator="t4"))
    assert (result.state, result.remedy) == ("FAIL", "export NCCL_P2P_DISABLE=1")


def test_unwritable_folder_fails_for_runs_and_warns_for_data(tmp_path):
    (tmp_path / "file").write_text("")
    results = list(host_checks.check_disks(tmp_path / "file", tmp_path / "file"))
    assert [result.state for result in results] == ["FAIL", "WARN"]
