"""The processes of `timetrial accept` that measure one device each."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ...core.errors import Exit
from ...core.found_files import read_json
from ...record.record_file import decode
from . import device
from .device import Request
from .figures import DeviceResult, Problem

_GRACE_SECONDS = 900.0  # after its deadline, for a process whose GPU takes a minute for a step
_KILL_SECONDS = 30.0


@dataclass(frozen=True)
class MeasuredDevice:
    """A device that is measured: the driver's name, its accelerator config, and the one to compare it with.

    `environment` are the variables of a process that sees it alone.
    """

    model: str
    accelerator: str
    baseline: str
    environment: dict[str, str]


def run_processes(
    parts: tuple[str, ...], deadline: float, chosen: Mapping[str, MeasuredDevice]
) -> dict[str, DeviceResult]:
    """Return the result of a process for each device, all at the same time; a process that fails is a problem."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="timetrial_") as folder, ExitStack() as closing:
        processes = {}
        for number, (name, chosen_device) in enumerate(chosen.items()):
            path = Path(folder, f"{number}.json")
            request = Request(parts, chosen_device.accelerator, chosen_device.baseline, deadline, os.getpid())
            command = [sys.executable, "-P", "-m", device.__name__, json.dumps(asdict(request)), str(path)]
            output = closing.enter_context(open(path.with_suffix(".txt"), "w+b"))
            variables = os.environ | chosen_device.environment
            process = subprocess.Popen(command, env=variables, stdout=output, stderr=output)
            closing.callback(_end, process)  # would keep the device busy
            processes[name] = (process, path)
        end = max(deadline, time.time()) + _GRACE_SECONDS
        for name, (process, path) in processes.items():
            try:
                process.wait(max(end - time.time(), 0.0))
            except subprocess.TimeoutExpired:
                sentence = f"it did not end within {_GRACE_SECONDS:.0f} s of its time"
                results[name] = _failed(parts, Exit.LOST_RANK, sentence)
                continue
            if process.returncode:
                text = path.with_suffix(".txt").read_text(errors="replace").strip()
                sentence = text.splitlines()[-1] if text else f"it ended with exit code {process.returncode}"
                results[name] = _failed(parts, Exit.FAILURE, sentence)
            else:
                results[name] = decode(DeviceResult, read_json(path))
    return results


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process if it still runs; one that waits for a lost device does not end."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_SECONDS)


def _failed(parts: Sequence[str], exit_code: Exit, sentence: str) -> DeviceResult:
    return DeviceResult(problems=(Problem(" and ".join(parts), exit_code, sentence),))
