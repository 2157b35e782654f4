"""The only file that knows CUDA, ROCm, XPU, MPS and CPU apart; `hardware/` holds what each vendor's tools tell."""

import importlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

from ..core.errors import DeviceError, HardwareError, LostRank, OutOfMemory, RunError
from . import host
from .amd import Amd
from .nvml import Nvml
from .readings import Cards
from .wheels import Wheel
from .xpu import Xpu

# Names of conf/accelerator/*.yaml by what a driver calls the card.
_CARDS = {"t4": r"\bT4\b", "v100": r"\bV100\b", "a100": r"\bA100\b", "h100": r"\bH100\b", "h200": r"\bH200\b"}
# Environment variables by which cards are chosen for a process, and the others hidden from it.
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
# What brings the tools that `sensors` asks.
TOOLS = "pip install 'timetrial[nvidia]', ROCm's amdsmi, or Intel's xpu-smi"
_COLLECTIVES = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


def detect() -> str:
    """The accelerator group of this machine: a known card, `cpu` where there is none, else `auto`."""
    if not torch.accelerator.is_available():
        return "cpu"
    name = card_name(torch.device(_kind(), 0))
    return next((group for group, pattern in _CARDS.items() if re.search(pattern, name)), "auto")


def card_name(device: torch.device) -> str:
    """What the driver calls the card, or the processor's architecture for the CPU."""
    if device.type == "cpu":
        return f"CPU ({platform.machine()})"
    if device.type == "mps":
        return "Apple GPU"
    return str(getattr(torch, device.type).get_device_name(device))


def label(name: str) -> str:
    """What a run's folder and title call the card: the accelerator group, or the driver's word where it has none."""
    return card_name(torch.device(_kind(), 0)) if name == "auto" else name


def available() -> int:
    """Accelerators that this process can see."""
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def require(name: str, count: int) -> None:
    """Raises `DeviceError` unless `count` devices of the accelerator group `name` can be had; CPU ranks always can."""
    if name == "cpu":
        return
    if not torch.accelerator.is_available():
        raise DeviceError(
            f"accelerator={name} was asked for but PyTorch sees none here: use accelerator=cpu, or check the driver."
        )
    if count > available():
        raise DeviceError(f"gpus={count} was asked for but this machine shows {available()}: use gpus={available()}.")


def device(name: str, local_rank: int) -> torch.device:
    """The device of a local rank, made current."""
    if name == "cpu":
        return torch.device("cpu")
    # Streams beyond a card's connections (8 unless told) wait for one another: JPEG decoders for the training step.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    torch.accelerator.set_device_index(local_rank)
    return torch.device(_kind(), local_rank)


def collectives(device: torch.device) -> str:
    """The process-group backend that moves this device's tensors."""
    if device.type not in _COLLECTIVES:
        raise DeviceError(f"{card_name(device)} has no collectives in PyTorch: use gpus=1.")
    return _COLLECTIVES[device.type]


def link_peers(allowed: bool) -> None:
    """Lets this process's collectives use NVLink and PCIe between cards, or only the host; before they are set up.

    ROCm's collectives obey the same variable. Both values are said, so that a run is what its configuration says.
    """
    os.environ["NCCL_P2P_DISABLE"] = "0" if allowed else "1"


def require_precision(device: torch.device, precision: str) -> None:
    """Raises `DeviceError` where the device has no units for `precision`."""
    if precision == "tf32" and not _capability(device) >= (8, 0):
        raise DeviceError(f"{card_name(device)} has no TF32 units: use precision=fp32 or precision=fp16.")
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise DeviceError(f"{card_name(device)} has no BF16 units: use precision=fp16.")


def allow_tf32(allowed: bool) -> None:
    """Lets float32 matrix products and convolutions run in TF32, or forbids it."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def search_convolutions() -> None:
    """Lets cuDNN time its algorithms for every new shape and keep the fastest, which differs from run to run."""
    torch.backends.cudnn.benchmark = True


class Stopwatch:
    """Adds up spans between work handed to `device`: what the device itself spent idle, where it keeps the time."""

    def __init__(self, device: torch.device) -> None:
        self.keeps_time = device.type in ("cuda", "xpu")
        self._device = device
        self._spans: list[tuple[Any, Any]] = []
        self._started: Any = None

    def start(self) -> None:
        """All work so far has been handed over: from its end on, the device waits."""
        self._started = self._now()

    def stop(self) -> None:
        """More work follows."""
        self._spans.append((self._started, self._now()))

    def seconds(self) -> float:
        """The sum since the last call; the device must have finished."""
        spans, self._spans = self._spans, []
        if self.keeps_time:
            return sum(start.elapsed_time(end) for start, end in spans) / 1000
        return sum(end - start for start, end in spans)

    def _now(self) -> Any:
        if not self.keeps_time:
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event


def timed(device: torch.device, work: Callable[[], object]) -> tuple[float, float]:
    """Seconds that the idle device takes for what `work` hands over to it, and seconds of the handing over."""
    watch = Stopwatch(device)
    wait(device)
    watch.start()
    began = time.perf_counter()
    work()
    handed_over = time.perf_counter() - began
    if not watch.keeps_time:  # then the host must see the end before it looks at its clock
        wait(device)
    watch.stop()
    wait(device)
    return watch.seconds(), handed_over


def wait(device: torch.device) -> None:
    """Returns when the device has done all that it was told."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def cache_bytes(device: torch.device) -> int:
    """The last cache before the device's memory; 64 MiB where nobody tells."""
    if device.type == "cpu":
        return host.cache_bytes() or 2**26
    properties = getattr(torch, device.type).get_device_properties(device) if device.type in ("cuda", "xpu") else None
    return int(getattr(properties, "L2_cache_size", 0) or getattr(properties, "last_level_cache_size", 0) or 2**26)


def start_memory_watch(device: torch.device) -> None:
    """Restarts the record of `peak_memory_bytes`."""
    if device.type in ("cuda", "xpu"):
        getattr(torch, device.type).reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> int | None:
    """The most memory that tensors have held on the device, where its allocator tells."""
    if device.type in ("cuda", "xpu"):
        return int(getattr(torch, device.type).max_memory_allocated(device))
    return None


def random_state(device: torch.device) -> torch.Tensor | None:
    """The state of the device's default generator; None for the CPU, whose state torch keeps itself."""
    return None if device.type == "cpu" else getattr(torch, device.type).get_rng_state(device)


def set_random_state(device: torch.device, state: torch.Tensor | None) -> None:
    """Takes up a `random_state`."""
    if state is not None:
        getattr(torch, device.type).set_rng_state(state, device)


def versions() -> dict[str, str | None]:
    """Versions of the vendor libraries in the installed wheel."""
    cudnn = torch.backends.cudnn.version()
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() and torch.distributed.is_nccl_available() else None
    return {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": str(cudnn) if cudnn else None,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
    }


def compiled_architectures() -> list[str]:
    """What the installed wheel was compiled for."""
    return torch.cuda.get_arch_list() if torch.cuda.is_available() else []


def selection() -> dict[str, str]:
    """What a scheduler or a person has chosen devices by; the framework obeys it, since nothing here sets it."""
    return {name: os.environ[name] for name in HIDING if name in os.environ}


def wheel() -> Wheel:
    """The installed PyTorch, whatever this machine has."""
    version = torch.version
    if version.hip:
        return Wheel(torch.__version__, "rocm", version.hip, tuple(torch.cuda.get_arch_list()))
    if version.cuda:
        return Wheel(torch.__version__, "cuda", version.cuda, tuple(torch.cuda.get_arch_list()))
    kind = torch.accelerator.current_accelerator()
    return Wheel(torch.__version__, kind.type if kind else "cpu", getattr(version, "xpu", None))


def cards() -> list[dict[str, object]]:
    """Name, memory in bytes, compute capability and identity of every visible card, or part of one (MIG)."""
    found: list[dict[str, object]] = []
    for index in range(available()):
        card = torch.device(_kind(), index)
        entry: dict[str, object] = {"name": card_name(card)}
        if card.type == "cuda":
            properties = torch.cuda.get_device_properties(card)
            capability = f"{properties.major}.{properties.minor}"
            architecture = properties.gcnArchName if torch.version.hip else capability
            entry |= {"memory_bytes": properties.total_memory, "capability": architecture}
            entry["uuid"] = str(properties.uuid)
        found.append(entry)
    return found


def sensors(count: int) -> Cards | None:
    """The first `count` cards of this process as their vendor's tool sees them.

    None for the CPU and Apple's GPUs, which tell nobody but root, and where tool or driver is missing.
    """
    if not count or _kind() not in ("cuda", "xpu"):
        return None
    tool = "xpu" if _kind() == "xpu" else "amd" if torch.version.hip else "nvml"
    addresses = [_address(index) for index in range(count)]
    if None not in addresses:
        return _open(tool, addresses)
    # Where the framework names no addresses, all cards in their order will do, unless some are hidden.
    found = _open(tool, None)
    if found is not None and len(found) != count:
        found.close()
        return None
    return found


def all_sensors() -> list[Cards]:
    """Every card of this machine that a vendor's tool sees, whether the installed PyTorch can use it or not."""
    found = (_open(tool, None) for tool in ("nvml", "amd", "xpu"))
    return [cards for cards in found if cards is not None]


def _open(tool: str, addresses: list[Any] | None) -> Cards | None:
    """A vendor's tool, or None where it is not installed, has no driver, or does not know the cards."""
    try:
        match tool:
            case "nvml":
                return Nvml(importlib.import_module("pynvml"), addresses)
            case "amd":
                return Amd(importlib.import_module("amdsmi"), addresses)
        return Xpu(addresses)
    except (ImportError, OSError, LookupError, ValueError, subprocess.SubprocessError):
        return None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pynvml", "amdsmi"):  # whose errors have no common class
            raise
        return None


def _address(index: int) -> str | None:
    """Where a visible card sits on the PCI bus, which is how a vendor's tool tells it from those that are hidden."""
    card = getattr(torch, _kind()).get_device_properties(index)
    if not hasattr(card, "pci_bus_id"):
        return None
    return f"{getattr(card, 'pci_domain_id', 0):04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"


def explain(error: BaseException) -> RunError | None:
    """The run error behind a framework's exception, or None if it is none of the known ones."""
    text = str(error)
    if isinstance(error, RunError):
        return error
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in text:
        return OutOfMemory(
            "The micro-batch does not fit into memory: halve it with tuning.micro_batch_size, which keeps the global batch."
        )
    if isinstance(error, torch.distributed.DistError) or re.search(
        r"gloo|nccl|connection (closed|reset)|timed out waiting", text, re.I
    ):
        return LostRank(
            "A rank died or stopped answering, so the others were ended: see stderr_*.txt in the run folder."
        )
    if "no kernel image is available" in text:
        return DeviceError(
            "The installed PyTorch wheel holds no code for this card: install a wheel built for its compute capability."
        )
    if re.search(
        r"uncorrectable|unspecified launch failure|hardware|NVLink|fallen off", text, re.I
    ) and _is_device_error(error):
        return HardwareError(f"The device reported a fault ({text.splitlines()[0]}): exclude this node and run again.")
    return None


def _is_device_error(error: BaseException) -> bool:
    return type(error).__name__ in ("AcceleratorError", "RuntimeError")


def _kind() -> str:
    current = torch.accelerator.current_accelerator()
    assert current is not None
    return current.type


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" and not torch.version.hip else (0, 0)
