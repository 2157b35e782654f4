"""Cards of every vendor, as their tools describe them, before the doctor, telemetry, estimates and the micro-batch."""

import json
import time
from dataclasses import dataclass
from types import SimpleNamespace

import pynvml
import pytest
from rich.console import Console

from timetrial.runner.benchmarks import doctor, estimate
from timetrial.runner.callbacks.telemetry import Telemetry
from timetrial.runner.config import schema
from timetrial.runner.core.errors import Exit, OutOfMemory
from timetrial.runner.hardware import devices
from timetrial.runner.hardware.amd import Amd
from timetrial.runner.hardware.nvml import Nvml
from timetrial.runner.hardware.readings import Cards
from timetrial.runner.hardware.wheels import Wheel
from timetrial.runner.hardware.xpu import Xpu
from timetrial.runner.record import energy
from timetrial.runner.training.events import RunStarted, RunStopped

CUDA = Wheel("2.14.1+cu130", "cuda", "13.0", ("sm_75", "sm_80", "sm_90", "sm_120"))
UNSUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
MEASURED = {"train_size": 1000, "train_rates": [100.0], "eval_size": 50, "eval_rates": [10.0], "first_seconds": 3.0}


@dataclass
class Machine:
    """A card at `watts`, and what PyTorch says of it; `fits` is a micro-batch, at 32 MiB a sample."""

    group: str
    wheel: Wheel
    card: dict[str, object]
    memory_gib: int
    fits: int
    cards: Cards | None = None
    watts: float | None = None
    energy_source: str | None = None
    bad: bool = False


def intels():
    """xpu-smi for one card, which prints a line every hundredth of a second."""
    titles = "Timestamp, DeviceId, GPU Utilization (%), GPU Power (W), GPU Frequency (MHz), GPU Energy Consumed (J)"
    over = []

    def printed():
        yield titles
        while not over:
            yield f"10:00:01.000, 0, 99.00, 450.0, 1550, {time.time() * 450:.3f}"
            time.sleep(0.01)

    stream = SimpleNamespace(stdout=printed(), terminate=lambda: over.append(1), wait=lambda: None)
    card = {"device_id": 0, "device_name": "Max 1550", "pci_bdf_address": "0000:29:00.0"}
    found = Xpu(None, lambda *words: json.dumps(card if "-d" in words else {"device_list": [card]}), lambda *_: stream)
    found.read(0)
    time.sleep(0.05)  # its first line is there
    return found


@pytest.fixture(params=["t4", "v100", "rocm", "xpu", "mps"])
def machine(request, nvml, smi):
    """A machine of each kind."""
    match request.param:
        case "t4":  # of which NVML tells watts alone here
            told = nvml(Name="Tesla T4", CudaComputeCapability=(7, 5), TotalEnergyConsumption=UNSUPPORTED)
            told.nvmlSystemGetCudaDriverVersion = lambda: 13000
            card = {"name": "Tesla T4", "capability": "7.5"}
            return Machine("t4", CUDA, card, 16, 512, Nvml(told, ["one"]), 231, "integral of NVML's watts")
        case "v100":
            told = nvml(TotalEnergyConsumption=lambda: time.time() * 231_000)
            card = {"name": "Tesla V100-PCIE-32GB", "capability": "7.0"}
            return Machine("v100", CUDA, card, 32, 1024, Nvml(told, ["one"]), 231, "NVML's counter", bad=True)
        case "rocm":
            counter = lambda: {"energy_accumulator": time.time() * 300e6, "counter_resolution": 1.0}  # noqa: E731
            card = {"name": "AMD Instinct MI250X", "capability": "gfx90a:sramecc+:xnack-"}
            wheel = Wheel("2.11.0+rocm7.0", "rocm", "7.0", ("gfx90a", "gfx942"))
            cards = Amd(smi(energy_count=counter, gpu_total_ecc_count={}), ["0000:C1:00.0"])
            return Machine("auto", wheel, card, 64, 2048, cards, 300, "amdsmi's counter")
        case "xpu":
            wheel, card = Wheel("2.11.0+xpu", "xpu", "20250301"), {"name": "Intel Max 1550"}
            return Machine("auto", wheel, card, 128, 4096, intels(), 450, "xpu-smi's counter")
    return Machine("auto", Wheel("2.11.0", "mps"), {"name": "Apple GPU"}, 8, 256)


def test_the_doctor_says_whether_it_can_be_used(machine, monkeypatch):
    monkeypatch.setattr(devices, "installed_build", lambda: machine.wheel)
    monkeypatch.setattr(devices, "describe_gpus", lambda: [machine.card])
    monkeypatch.setattr(devices, "detect_accelerator", lambda: machine.group)
    monkeypatch.setattr(devices, "device_count", lambda: 1)
    monkeypatch.setattr(sensors, "open_sensors", lambda count: machine.cards)
    monkeypatch.setattr(sensors, "open_all_sensors", lambda: [machine.cards] if machine.cards else [])
    checks = list(doctor.of_cards(doctor.look()))
    assert doctor.verdict(checks) == (Exit.DEVICE if machine.bad else 0)
    (card,) = (check for check in checks if check.name == "card 0" and machine.card["name"] in check.found)
    assert (card.state == "bad") is machine.bad
    assert any(check.name == "sensors" for check in checks) is (machine.cards is None)


def test_its_energy_is_sampled_and_estimated(machine, compose, tmp_path):
    sampler = Telemetry(tmp_path / "telemetry.csv", machine.cards, 0.02)
    time.sleep(0.05)
    sampler(RunStarted(params={}))
    time.sleep(0.4)
    sampler(RunStopped(status="success"))
    sampler.close()
    told = energy.judge(tmp_path, {"active_seconds": 0.4}, 100, None)["telemetry"]
    assert told["cards"] == (1 if machine.cards else 0)
    assert (told["energy_source"] or "").startswith(machine.energy_source or "")
    settings = schema.check(compose(f"accelerator={machine.group}"))
    status = {"result": MEASURED, "telemetry": told, "peak_memory_bytes": None}
    found = estimate.from_measurement(settings, "ncf/embedded", (), status)
    if machine.cards is None:
        assert told["energy_joules"] is None
        return
    assert told["mean_watts"] == pytest.approx(machine.watts, rel=0.1)
    assert found.joules[1] == pytest.approx(machine.watts * found.seconds[1], rel=0.1)
    assert found.energy_source == told["energy_source"]


def test_its_memory_chooses_the_micro_batch_and_not_the_recipe(machine, compose, monkeypatch):
    node = compose(f"accelerator={machine.group}")

    def launch(node, console):
        held = schema.micro_batch(schema.check(node)) * 2**25
        return (Exit.TARGET_REACHED if held <= machine.memory_gib * 2**30 else Exit.OUT_OF_MEMORY), folder

    folder = SimpleNamespace(config=None, status=dict)
    monkeypatch.setattr(estimate, "launch", launch)
    monkeypatch.setattr(schema, "load", lambda path: schema.check(node))
    settings, _ = estimate.measure(node, Console(quiet=True))
    assert settings.tuning.micro_batch_size == machine.fits
    assert schema.accumulation(settings) * machine.fits == settings.recipe.global_batch_size == 8192
    machine.memory_gib = 0
    with pytest.raises(OutOfMemory):
        estimate.measure(node, Console(quiet=True))
