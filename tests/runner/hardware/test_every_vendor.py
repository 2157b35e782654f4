"""GPUs of every vendor in doctor, telemetry, estimates and the choice of the micro-batch."""

import json
import time
from dataclasses import dataclass
from types import SimpleNamespace

import pynvml
import pytest
from rich.console import Console

from timetrial.runner.benchmarks import doctor, estimate, gpu_checks
from timetrial.runner.callbacks.telemetry import TelemetrySampler
from timetrial.runner.config.validation import gradient_accumulation_steps, micro_batch_size, validate
from timetrial.runner.core.errors import Exit, OutOfMemory
from timetrial.runner.hardware import device_description, devices, sensors
from timetrial.runner.hardware.amd import AmdSmiSensors
from timetrial.runner.hardware.nvml import NvmlSensors
from timetrial.runner.hardware.pytorch_build import PyTorchBuild
from timetrial.runner.hardware.readings import GpuSensors
from timetrial.runner.hardware.xpu import XpuSmiSensors
from timetrial.runner.record import energy
from timetrial.runner.results.analysis.expectations import find_expectation
from timetrial.runner.training.events import RunStarted, RunStopped

CUDA = PyTorchBuild("2.14.1+cu130", "cuda", "13.0", ("sm_75", "sm_80", "sm_90", "sm_120"))
UNSUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
MEASURED = SimpleNamespace(
    train_size=1000,
    train_rates=(100.0,),
    eval_size=50,
    eval_rates=(10.0,),
    first_block_extra_seconds=3.0,
    opening_seconds=None,
)


@dataclass
class Machine:
    """A machine with one GPU that draws `watts`; `micro_batch` samples of 32 MiB fit into its memory."""

    accelerator: str
    build: PyTorchBuild
    gpu: dict[str, object]
    memory_gib: int
    micro_batch: int
    sensors: GpuSensors | None = None
    watts: float | None = None
    energy_source: str | None = None
    fails: bool = False


def intel_sensors():
    """Return the sensors of one Intel GPU, whose xpu-smi prints a line every 10 ms."""
    header = "Timestamp, DeviceId, GPU Utilization (%), GPU Power (W), GPU Frequency (MHz), GPU Energy Consumed (J)"
    terminated = []

    def lines():
        yield header
        while not terminated:
            yield f"10:00:01.000, 0, 99.00, 450.0, 1550, {time.time() * 450:.3f}"
            time.sleep(0.01)

    stream = SimpleNamespace(stdout=lines(), terminate=lambda: terminated.append(1), wait=lambda: None)
    gpu = {"device_id": 0, "device_name": "Max 1550", "pci_bdf_address": "0000:29:00.0"}
    opened = XpuSmiSensors(
        None,
        lambda *arguments: json.dumps(gpu if "-d" in arguments else {"device_list": [gpu]}),
        lambda *arguments: stream,
    )
    opened.read(0)
    time.sleep(0.05)  # until its first line has been read
    return opened


@pytest.fixture(params=["t4", "v100", "rocm", "xpu", "mps"])
def machine(request, nvml, smi):
    """A machine of each kind."""
    match request.param:
        case "t4":  # without an energy counter
            library = nvml(Name="Tesla T4", CudaComputeCapability=(7, 5), TotalEnergyConsumption=UNSUPPORTED)
            library.nvmlSystemGetCudaDriverVersion = lambda: 13000
            gpu = {"name": "Tesla T4", "capability": "7.5"}
            return Machine("t4", CUDA, gpu, 16, 512, NvmlSensors(library, ["one"]), 231, "integral of NVML power")
        case "v100":
            library = nvml(TotalEnergyConsumption=lambda: time.time() * 231_000)
            gpu = {"name": "Tesla V100-PCIE-32GB", "capability": "7.0"}
            opened = NvmlSensors(library, ["one"])
            return Machine("v100", CUDA, gpu, 32, 1024, opened, 231, "NVML energy counter", fails=True)
        case "rocm":
            counter = lambda: {"energy_accumulator": time.time() * 300e6, "counter_resolution": 1.0}  # noqa: E731
            gpu = {"name": "AMD Instinct MI250X", "capability": "gfx90a:sramecc+:xnack-"}
            build = PyTorchBuild("2.11.0+rocm7.0", "rocm", "7.0", ("gfx90a", "gfx942"))
            opened = AmdSmiSensors(smi(energy_count=counter, gpu_total_ecc_count={}), ["0000:C1:00.0"])
            return Machine("auto", build, gpu, 64, 2048, opened, 300, "amdsmi energy counter")
        case "xpu":
            build, gpu = PyTorchBuild("2.11.0+xpu", "xpu", "20250301"), {"name": "Intel Max 1550"}
            return Machine("auto", build, gpu, 128, 4096, intel_sensors(), 450, "xpu-smi energy counter")
    return Machine("auto", PyTorchBuild("2.11.0", "mps"), {"name": "Apple GPU"}, 8, 256)


def test_doctor_says_whether_the_gpu_is_usable(machine, monkeypatch):
    monkeypatch.setattr(device_description, "installed_build", lambda: machine.build)
    monkeypatch.setattr(device_description, "describe_gpus", lambda: [machine.gpu])
    monkeypatch.setattr(devices, "detect_accelerator", lambda: machine.accelerator)
    monkeypatch.setattr(devices, "device_count", lambda: 1)
    monkeypatch.setattr(sensors, "open_sensors", lambda count: machine.sensors)
    monkeypatch.setattr(sensors, "open_all_sensors", lambda: [machine.sensors] if machine.sensors else [])
    results = list(gpu_checks.check_gpus(gpu_checks.inspect_machine()))
    assert doctor.exit_code(results) == (Exit.DEVICE if machine.fails else 0)
    (build,) = (result for result in results if result.check == "GPU 0" and machine.gpu["name"] in result.message)
    assert (build.state == "FAIL") is machine.fails
    assert any(result.check == "sensors" for result in results) is (machine.sensors is None)


def test_energy_is_sampled_and_estimated(machine, compose, tmp_path):
    sampler = TelemetrySampler(tmp_path / "telemetry.csv", machine.sensors, 0.02)
    time.sleep(0.05)
    sampler(RunStarted(params={}))
    time.sleep(0.4)
    sampler(RunStopped(status="success"))
    sampler.close()
    telemetry = energy.summarize_telemetry(
        tmp_path, train_seconds=None, data_wait_seconds=0.0, active_seconds=0.4, samples=100, usd_per_hour=None
    ).telemetry
    assert telemetry.gpus == (1 if machine.sensors else 0)
    assert (telemetry.energy_source or "").startswith(machine.energy_source or "")
    config = validate(compose(f"accelerator={machine.accelerator}"))
    record = SimpleNamespace(throughput=MEASURED, telemetry=telemetry, peak_memory_bytes=None)
    reference = find_expectation("ncf/embedded", config.round.name)
    result = estimate.extrapolate(config, "ncf/embedded", (), record, reference)
    if machine.sensors is None:
        assert telemetry.energy_joules is None
        return
    assert telemetry.mean_watts == pytest.approx(machine.watts, rel=0.1)
    assert result.joules[1] == pytest.approx(machine.watts * result.seconds[1], rel=0.1)
    assert result.energy_source == telemetry.energy_source


def test_memory_determines_the_micro_batch_but_not_the_global_batch(machine, compose, monkeypatch):
    node = compose(f"accelerator={machine.accelerator}")
    record = SimpleNamespace(error="")

    def launch(node, console, pool):
        needed_bytes = micro_batch_size(validate(node)) * 2**25
        fits = needed_bytes <= machine.memory_gib * 2**30
        run_dir = SimpleNamespace(config=None, record=lambda: record)
        return SimpleNamespace(exit_code=Exit.TARGET_REACHED if fits else Exit.OUT_OF_MEMORY, run_dir=run_dir)

    monkeypatch.setattr(estimate, "launch", launch)
    monkeypatch.setattr(estimate, "load_config", lambda path: validate(node))
    config, _ = estimate.measure(node, Console(quiet=True))
    assert config.tuning.micro_batch_size == machine.micro_batch
    assert gradient_accumulation_steps(config) * machine.micro_batch == config.recipe.global_batch_size == 8192
    machine.memory_gib = 0
    with pytest.raises(OutOfMemory):
        estimate.measure(node, Console(quiet=True))
