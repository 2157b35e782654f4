"""The result of a run on a GPU without a data sheet, as a block of text that its owner can send."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.execution_paths import format_paths
from ..core.formatting import format_number
from ..hardware.datasheets import find_datasheet
from .record_file import FILE_NAME
from .reference_throughput import look_up
from .run_record import RunRecord

_GIB = 2**30
_DIGEST_CHARACTERS = 16
_PACKAGES = ("torch", "triton")


def gpu_report(record: RunRecord, run_dir: Path) -> str | None:
    """Return figures, hardware, software and the digest of the record of a run on a GPU without a data sheet.

    None for other GPUs, for the CPU, and without a result. Nothing in it names the host, a user or a path.
    """
    gpus = record.environment.get("gpus") or []
    if record.training is None and record.throughput is None:
        return None
    if not gpus or look_up(record.config, "accelerator.name") == "cpu" or find_datasheet(str(gpus[0].get("name"))):
        return None
    digest = hashlib.sha256((run_dir / FILE_NAME).read_bytes()).hexdigest()[:_DIGEST_CHARACTERS]
    version = record.environment["timetrial"]
    rows = {
        "run": _setting(record, str(gpus[0].get("name"))),
        "result": ", ".join(_figures(record)),
        "executed": format_paths(record.execution_paths),
        "hardware": ", ".join(_hardware(gpus[0], record.environment)),
        "software": ", ".join(_software(record.environment)),
        "version": " ".join(filter(None, (version.get("version"), version.get("revision")))),
        "digest": f"sha256 {digest} of {FILE_NAME}",
    }
    return "\n".join(f"{name:<9} {text}" for name, text in rows.items())


def _setting(record: RunRecord, gpu: str) -> str:
    def value(key: str) -> Any:
        return look_up(record.config, key)

    work = f"{value('workload.name')}/{value('recipe.scale')}, batch {value('recipe.global_batch_size')}"
    return f"{work}, {value('gpus')} x {gpu}, {value('precision.name')}, seed {value('seed')}"


def _figures(record: RunRecord) -> Iterator[str]:
    if training := record.training:
        yield "target reached" if training.reached else "target not reached"
        yield f"{training.epochs} epochs"
        yield f"{training.seconds:.1f} s"
    result = record.throughput or record.training
    if result is not None and result.samples_per_second:
        yield f"{format_number(result.samples_per_second)} samples/s"
    if record.peak_memory_bytes:
        yield f"{record.peak_memory_bytes / _GIB:.1f} GiB"
    if record.telemetry is not None and record.telemetry.mean_watts:
        yield f"{record.telemetry.mean_watts:,.0f} W"
    if record.flags:
        yield f"flags: {', '.join(record.flags)}"


def _hardware(gpu: dict[str, Any], environment: dict[str, Any]) -> Iterator[str]:
    yield str(gpu.get("name"))
    if gpu.get("capability"):
        yield str(gpu["capability"])
    if gpu.get("memory_bytes"):
        yield f"{gpu['memory_bytes'] / _GIB:.0f} GiB"
    if gpu.get("driver"):
        yield f"driver {gpu['driver']}"
    if gpu.get("power_cap_watts"):
        yield f"{gpu['power_cap_watts']:.0f} W at most"
    if model := look_up(environment, "cpu.model"):
        yield str(model)


def _software(environment: dict[str, Any]) -> Iterator[str]:
    for name in _PACKAGES:
        if version := look_up(environment, f"packages.{name}"):
            yield f"{name} {version}"
    for name, version in (environment.get("libraries") or {}).items():
        if version:
            yield f"{name} {version}"
    yield f"Python {environment.get('python')}"
