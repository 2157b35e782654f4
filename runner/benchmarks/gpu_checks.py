"""Checks of the GPUs: the installed PyTorch build against each GPU and its driver, and the state of each GPU."""

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from ..hardware import device_description, devices, host, pytorch_build, sensors
from ..hardware.device_description import VISIBILITY_VARIABLES
from ..hardware.pytorch_build import PyTorchBuild
from ..hardware.readings import GpuReading, GpuSensors
from .check_result import CheckResult, State

_GIB = 2**30
_IDLE_MIB = 2048  # the driver and a context use less: the driver of an H200 0.6 GiB


@dataclass(frozen=True)
class SensedGpu:
    """A GPU as its vendor's tool `source` reports it: constant facts and a sample."""

    facts: dict[str, Any]
    reading: GpuReading
    source: str


@dataclass(frozen=True)
class Machine:
    """The GPUs of a machine.

    `gpus` are those that PyTorch can use; `sensed_gpus` are the same in the same order as their vendor's tool reports
    them, or empty. `installed_gpus` are all GPUs that vendors' tools report, `pci_vendors` the vendors of the GPUs on
    the PCI bus.
    """

    build: PyTorchBuild
    gpus: Sequence[dict[str, Any]]
    sensed_gpus: Sequence[SensedGpu] = ()
    accelerator: str = "cpu"
    links: dict[str, str] = field(default_factory=dict)
    installed_gpus: Sequence[SensedGpu] = ()
    pci_vendors: Collection[str] = ()


def inspect_machine() -> Machine:
    """Return the GPUs of this machine."""
    installed_gpus = [gpu for opened in sensors.open_all_sensors() for gpu in _read_and_close(opened)]
    own = sensors.open_sensors(devices.device_count()) if devices.device_count() else None
    links = own.links() if own is not None else {}
    return Machine(
        build=device_description.installed_build(),
        gpus=device_description.describe_gpus(),
        sensed_gpus=_read_and_close(own) if own is not None else [],
        accelerator=devices.detect_accelerator(),
        links=links,
        installed_gpus=installed_gpus,
        pci_vendors=host.pci_gpu_vendors(),
    )


def _read_and_close(gpus: GpuSensors) -> list[SensedGpu]:
    sensed = [SensedGpu(gpus.describe(index), gpus.read(index), gpus.source) for index in range(len(gpus))]
    gpus.close()
    return sensed


def check_gpus(machine: Machine) -> Iterator[CheckResult]:
    """Check the installed PyTorch against the GPUs, and the state of the GPUs."""
    build = machine.build
    architectures = f", built for {', '.join(build.architectures)}" if build.architectures else ""
    yield CheckResult(State.OK, "PyTorch", build.version + architectures)
    yield from _check_visibility(machine)
    for index, gpu in enumerate(machine.gpus):
        yield _check_build(build, index, gpu, machine.sensed_gpus[index].facts if machine.sensed_gpus else {})
    for index, sensed in enumerate(machine.sensed_gpus):
        yield from _check_state(index, sensed)
    if machine.gpus and not machine.sensed_gpus:
        message = f"no vendor's tool is installed, telemetry.csv will lack the GPUs: {sensors.INSTALL_HINT}"
        yield CheckResult(State.WARN, "sensors", message)
    if machine.gpus and find_spec("triton") and not _has_c_compiler():
        message = "Triton compiles the launchers of its kernels with gcc or clang, and there is none"
        yield CheckResult(State.FAIL, "C compiler", message, "sudo apt install gcc libc6-dev")
    for pair, link in machine.links.items():
        yield CheckResult(State.OK, f"GPUs {pair}", link)


def _has_c_compiler() -> bool:
    """Return whether Triton finds a C compiler."""
    return bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"))


def _check_visibility(machine: Machine) -> Iterator[CheckResult]:
    """Compare the GPUs that are installed with those that PyTorch can use."""
    tool, vendor = machine.build.sensors
    # GPUs of another vendor, such as integrated graphics, matter only if there are no usable ones.
    installed = [gpu for gpu in machine.installed_gpus if gpu.source == tool or not machine.gpus]
    if len(installed) > len(machine.gpus):
        yield _check_unusable_gpus(machine, installed)
    elif not machine.gpus and vendor in machine.pci_vendors:
        message = (
            f"a GPU of {vendor} is on the PCI bus and PyTorch sees none: it is not assigned to this job or container, "
            f"or its driver is missing or older than this PyTorch ({pytorch_build.DRIVER_COMMANDS[vendor]})"
        )
        yield CheckResult(State.WARN, "GPUs", message)
    elif not machine.gpus:
        others = f" (on the PCI bus: {', '.join(sorted(machine.pci_vendors))})" if machine.pci_vendors else ""
        yield CheckResult(State.OK, "GPUs", f"none: runs use the CPU, with accelerator=cpu{others}")


def _check_unusable_gpus(machine: Machine, installed: Sequence[SensedGpu]) -> CheckResult:
    """Say why PyTorch cannot use all installed GPUs: hidden, or unsupported by build or driver."""
    variable = next((name for name in VISIBILITY_VARIABLES if os.environ.get(name) is not None), None)
    counts = f"{len(installed)} GPUs are installed, PyTorch sees {len(machine.gpus)}"
    if variable and machine.gpus:
        return CheckResult(State.WARN, "GPUs", f"{counts}: {variable}={os.environ[variable]} hides the others")
    facts, (tool, vendor) = installed[0].facts, machine.build.sensors
    runtime, reason = facts.get("driver_runtime"), ""
    if not machine.build.is_supported_by_driver(runtime):
        reason = (
            f": driver {facts.get('driver')} supports runtimes up to {runtime}, "
            f"this PyTorch needs {machine.build.runtime}"
        )
    elif variable:
        return CheckResult(State.FAIL, "GPUs", f"{counts}: {variable} hides them", f"unset {variable}")
    elif installed[0].source == tool and machine.build.has_kernels_for(facts.get("capability")):
        message = f"{counts}, though driver and build match: the device files are not accessible"
        return CheckResult(State.FAIL, "GPUs", message, pytorch_build.DEVICE_FILE_COMMANDS[vendor])
    remedy = pytorch_build.install_command(facts.get("capability"), runtime)
    return CheckResult(State.FAIL, "GPUs", counts + reason, remedy)


def _check_build(build: PyTorchBuild, index: int, gpu: dict[str, Any], facts: dict[str, Any]) -> CheckResult:
    """Check whether the build has kernels for a GPU."""
    capability = gpu.get("capability")
    memory = f", {gpu['memory_bytes'] / _GIB:.0f} GiB" if gpu.get("memory_bytes") else ""
    description = f"{gpu['name']}{memory}" + (f", {capability}" if capability else "")
    if build.has_kernels_for(capability):
        driver = f", driver {facts['driver']}" if facts.get("driver") else ""
        return CheckResult(State.OK, f"GPU {index}", description + driver)
    message = f"{description}: the installed PyTorch {build.version} has no kernels for it"
    remedy = pytorch_build.install_command(capability, facts.get("driver_runtime"))
    return CheckResult(State.FAIL, f"GPU {index}", message, remedy)


def _check_state(index: int, gpu: SensedGpu) -> Iterator[CheckResult]:
    """Check a GPU for conditions that spoil a measurement."""
    facts, reading, name = gpu.facts, gpu.reading, f"GPU {index}"
    if reading.ecc_uncorrected:
        message = f"{reading.ecc_uncorrected} uncorrected memory errors: exclude the GPU, or reboot the machine"
        yield CheckResult(State.FAIL, name, message, "sudo reboot")
    if reading.other_processes:
        yield CheckResult(State.WARN, name, f"{reading.other_processes} other processes use it and affect timings")
    elif (reading.memory_mib or 0.0) > _IDLE_MIB:
        message = f"{(reading.memory_mib or 0.0) / 1024:.1f} GiB of its memory are in use, though no process is visible"
        yield CheckResult(State.WARN, name, f"{message}: another container may use it and affect timings")
    reasons = [reason for reason in (reading.throttle_reasons or "").split("+") if reason in ("thermal", "hardware")]
    if reasons:
        message = f"clocks are lowered ({', '.join(reasons)}) at {reading.temperature_c or 0:.0f} degrees C"
        yield CheckResult(State.WARN, name, message)
    cap, default_cap = facts.get("power_cap_watts"), facts.get("default_power_cap_watts")
    if cap and default_cap and cap < default_cap:
        yield CheckResult(State.WARN, name, f"the power cap is {cap:.0f} W, the default is {default_cap:.0f} W")
    if facts.get("persistence_mode") is False:
        yield CheckResult(State.WARN, name, "persistence mode is off: the first start after a pause is slow")
    if reading.core_mhz and facts.get("max_core_mhz"):
        clock = f"{reading.core_mhz:.0f} of {facts['max_core_mhz']:.0f} MHz"
        temperature = f", {reading.temperature_c:.0f} degrees C" if reading.temperature_c is not None else ""
        yield CheckResult(State.OK, f"{name} clock", f"{clock}{temperature} ({gpu.source})")
