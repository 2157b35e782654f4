"""Each row of docs/vendors.md against the code, on a described device of each vendor."""

import json
import os
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity
from typer.testing import CliRunner

from timetrial.runner.cli.app import app
from timetrial.runner.config.compose import compose
from timetrial.runner.config.error_messages import format_error
from timetrial.runner.core import execution_paths
from timetrial.runner.core.errors import RunError
from timetrial.runner.hardware import device_graphs, devices, sensors
from timetrial.runner.hardware.device_timing import DeviceTimer
from timetrial.runner.hardware.vendor_paths import PATHS, VENDORS, Support
from timetrial.workloads.common.imagenet.torch_loader import TorchImageNetData
from timetrial.workloads.common.nn import packing, triton_support
from timetrial.workloads.common.translation.captured_search import CapturedSearches
from timetrial.workloads.common.vision import pipeline
from timetrial.workloads.maskrcnn import masks

USED, REPLACED, MISSING, REFUSED = Support.USED, Support.REPLACED, Support.MISSING, Support.REFUSED
VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_GRAPH_REGISTER")


@pytest.fixture(params=VENDORS)
def kind(request, monkeypatch):
    """A machine with one device of each vendor; the device's API answers as that vendor's build of PyTorch does.

    NVIDIA's is an H100.
    """
    type_ = {"rocm": "cuda"}.get(request.param, request.param)
    monkeypatch.setattr(torch.version, "hip", "7.0" if request.param == "rocm" else None)
    monkeypatch.setattr(devices, "accelerator_type", lambda: type_)
    monkeypatch.setattr(devices, "device_name", lambda device: VENDORS[request.param])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: SimpleNamespace(has_fp64=True))
    for module in (torch.cuda, torch.xpu):
        monkeypatch.setattr(module, "max_memory_allocated", lambda device: 1)
    monkeypatch.setattr(sensors, "_open", lambda tool, *_: SimpleNamespace(source=tool))
    monkeypatch.setattr(sensors.device_description, "pci_address", lambda index: "0000:01:00.0")
    # Triton has no wheels for macOS.
    has_triton = triton_support.has_triton() and type_ != "mps"
    monkeypatch.setattr(triton_support, "has_triton", lambda: has_triton)
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    return request.param


def device_of(kind):
    type_ = {"rocm": "cuda"}.get(kind, kind)
    return torch.device(type_) if type_ == "cpu" else torch.device(type_, 0)


def tensor_on(device, dtype=torch.float32):
    """A tensor of which only the device and the dtype are asked."""
    return SimpleNamespace(device=device, dtype=dtype)


def refusal(function, *arguments, **named):
    """Return the sentence with which a function refuses; fail if it does not."""
    with pytest.raises(RunError) as caught:
        function(*arguments, **named)
    return str(caught.value)


def captured_steps(device, path):
    assert device_graphs.supports_graphs(device) is (path.support == USED)


def captured_beam_search(device, path, monkeypatch):
    captured = []
    monkeypatch.setattr("timetrial.workloads.common.translation.captured_search.StaticInputs", captured.append)
    monkeypatch.setattr("timetrial.workloads.common.translation.captured_search.flatten_inputs",
                        lambda source: (0, [tensor_on(device)]))  # fmt: skip
    eager = SimpleNamespace(run=lambda: "translations")
    if path.support == USED:
        with pytest.raises(AttributeError):  # nothing to copy into: there is no GPU here
            CapturedSearches().run(lambda source: eager, "source")
    else:
        assert CapturedSearches().run(lambda source: eager, "source") == "translations"
    assert bool(captured) is (path.support == USED)


def custom_kernels(device, path):
    pytest.importorskip("triton")
    execution_paths.forget()
    assert triton_support.triton_available(tensor_on(device)) is (path.support == USED)
    assert execution_paths.taken() == {"kernels": "Triton" if path.support == USED else "PyTorch"}


def compiled_by_default(device, path):
    if device.type != "cpu":  # whose configuration has `compiles: false`
        assert devices.compiles_well() is (path.support == USED)
    else:
        assert compose(["accelerator=cpu", "workload=gpt", "scale=reference"]).node.engine.compile is None


def convolution_plans(device, path, monkeypatch):
    cudnn = SimpleNamespace()
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)
    devices.search_convolution_plans(True)
    assert vars(cudnn) == {"benchmark": True}  # which the libraries of the other vendors do not read
    assert (path.support == USED) is devices.is_nvidia_gpu(device)


def jpeg_decoding(device, path):
    data = SimpleNamespace(device=device, settings=SimpleNamespace(decoder="gpu"))
    if path.support == USED and triton_support.has_triton():
        assert not TorchImageNetData._workers_decode(data)
    else:
        assert "use workers" in refusal(TorchImageNetData._workers_decode, data)
    data.settings.decoder = None
    assert TorchImageNetData._workers_decode(data) is (path.support != USED or not triton_support.has_triton())


def pinned_memory(device, path, monkeypatch):
    pinned, of_images = [], []
    moved = SimpleNamespace(pin_memory=lambda: pinned.append(1) or moved, to=lambda device, non_blocking: moved)
    monkeypatch.setattr(packing.torch, "from_numpy", lambda array: moved)
    packing.copy_to_device("array", device)
    assert bool(pinned) is (path.support == USED)
    monkeypatch.setattr(pipeline, "BatchWorkers", lambda *arguments, pin_memory: of_images.append(pin_memory))
    pipeline.ImageLoader(workers=0, device=device)
    assert of_images == ["images" in path.text and "pageable" not in path.text]


def telemetry(device, path):
    opened = sensors.open_sensors(0 if device.type == "cpu" else 1)
    assert (opened is None) is (path.support == MISSING)
    assert opened is None or opened.source == path.text.lower()


def energy_counter(device, path):
    """The counters themselves are read in test_every_vendor.py."""
    opened = sensors.open_sensors(0 if device.type == "cpu" else 1)
    assert (opened is None) is (path.support == MISSING)
    assert opened is None or path.text.lower().startswith(opened.source)


def all_reduce(device, path):
    names = {"cuda": "nccl", "rocm": "nccl", "xpu": "xccl", "cpu": "gloo"}
    if path.support == REFUSED:
        assert path.text in refusal(devices.collective_backend, device)
    else:
        kind = "rocm" if torch.version.hip else device.type
        assert devices.collective_backend(device) == names[kind]
        assert path.text == {"rocm": "RCCL"}.get(kind, {"gloo": "Gloo"}.get(names[kind], names[kind].upper()))


def peer_to_peer(device, path):
    if device.type == "mps":
        assert path.text in refusal(devices.collective_backend, device)
    elif path.support == REFUSED:
        assert "leave peer_to_peer out" in refusal(devices.configure_collectives, device, peer_to_peer=False)
    else:
        devices.configure_collectives(device, peer_to_peer=False)
        assert os.environ["NCCL_P2P_DISABLE"] == "1"
    assert (path.support == USED) is (device.type == "cuda")


def precision(name):
    def check(device, path):
        if path.support == REFUSED:
            assert path.text in refusal(devices.require_precision, device, name)
        else:
            devices.require_precision(device, name)

    return check


def fp8(device, path):
    with pytest.raises(Exception) as caught:  # noqa: PT011 (an exception of Hydra)
        compose(["accelerator=cpu", "precision=fp8"])
    assert path.text in format_error(caught.value)


def float64(device, path, monkeypatch):
    launched = []
    monkeypatch.setattr(masks, "triton_available", lambda regions: True)
    monkeypatch.setattr(masks.kernels, "rasterize", lambda *arguments: launched.append(1))
    outlines = masks.Outlines(torch.zeros(1, 4), torch.ones(1, dtype=torch.bool), torch.tensor([0, 1]))
    regions = SimpleNamespace(device=device, cpu=lambda: torch.ones(0, 4), __len__=lambda: 0)
    if path.support == USED:
        masks.mask_targets(outlines, torch.tensor([0]), regions)
    assert bool(launched) is (path.support == USED)
    assert devices.has_float64(device) is (path.support == USED)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: SimpleNamespace(has_fp64=False))
    assert devices.has_float64(device) is (path.support == USED and device.type != "xpu")


def profiler(device, path):
    activities = devices.profiler_activities(device)
    assert activities[0] == ProfilerActivity.CPU
    assert len(activities) == (2 if path.support == USED else 1)


def timing(device, path):
    assert DeviceTimer(device).uses_device_clock is (path.support == USED)


def peak_memory(device, path):
    assert devices.peak_memory_bytes(device) == (1 if path.support == USED else None)


CHECKS = {
    "captured steps": captured_steps,
    "captured beam search": captured_beam_search,
    "custom kernels": custom_kernels,
    "torch.compile by default": compiled_by_default,
    "convolution plans": convolution_plans,
    "JPEG decoding on the device": jpeg_decoding,
    "pinned memory": pinned_memory,
    "power, clocks, temperature": telemetry,
    "energy counter": energy_counter,
    "all-reduce": all_reduce,
    "peer_to_peer=false": peer_to_peer,
    "precision=fp32": precision("fp32"),
    "precision=tf32": precision("tf32"),
    "precision=bf16": precision("bf16"),
    "precision=fp16": precision("fp16"),
    "precision=fp8": fp8,
    "float64 on the device": float64,
    "profiler": profiler,
    "timing of data waits": timing,
    "peak memory": peak_memory,
}


@pytest.mark.parametrize("name", CHECKS)
def test_row_describes_the_code(name, kind, monkeypatch):
    check = CHECKS[name]
    patches = [monkeypatch] if "monkeypatch" in check.__code__.co_varnames[: check.__code__.co_argcount] else []
    check(device_of(kind), PATHS[name][kind], *patches)


def test_every_row_is_checked():
    assert set(CHECKS) == set(PATHS)


def test_old_gpus_of_nvidia_are_refused_in_the_words_of_the_table(monkeypatch):
    monkeypatch.setattr(devices, "device_name", lambda device: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    for name in ("tf32", "bf16"):
        words = PATHS[f"precision={name}"]["cuda"].text.partition("before: ")[2]
        assert words in refusal(devices.require_precision, torch.device("cuda", 0), name)


def test_doctor_prints_every_path():
    printed = CliRunner().invoke(app, ["doctor", "--paths"]).output
    assert [line for line in printed.splitlines() if not line.startswith(" ")] == list(PATHS)
    assert "  AMD, Intel, Apple, CPU     replaced: Python submits every kernel" in printed
    rows = json.loads(CliRunner().invoke(app, ["doctor", "--paths", "--json"]).output)
    assert rows["all-reduce"]["mps"] == {"support": "refused", "text": "use gpus=1"}
