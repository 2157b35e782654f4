"""The process that measures one device for `timetrial accept`; it sees no other device."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ...core.atomic_files import to_json, write_atomically
from ...core.errors import Exit, RunError
from ...hardware import devices
from ...hardware.error_translation import to_run_error
from ...hardware.readings import LinkReading
from ...hardware.sensors import open_sensors
from .. import peaks
from ..microbenchmarks import Case
from .figures import DeviceResult, Problem
from .replay import flip_requested_bit, replay
from .training import common_overrides, measure_rates, open_engine, sustain
from .workloads import read_workloads

PEAKS, TRAINING, REPLAY = "peaks", "training", "replay"
_KINDS = ("gemm", "copy", "transfer")
_SHARE = 0.2  # of the time for training, for each workload
_MIN_SECONDS = 10.0  # of measuring a workload, and of the sustained load
_REPLAYED = (
    "engine.deterministic=true",
    "engine.kernels=false",
    "engine.capture=false",
    "engine.compile=null",
    "throughput.steps=4",
)
_GPU_GEMM_OPERATIONS = 2.0 * 4096**3  # smaller products do not fill a GPU


@dataclass(frozen=True)
class Request:
    """What a process measures, until `deadline` in wall time; `baseline` is the accelerator config to compare with.

    `launcher_pid` is the process whose descendants do not count as other processes.
    """

    parts: tuple[str, ...]
    accelerator: str
    baseline: str
    deadline: float
    launcher_pid: int


class DeviceMeasurement:
    """Measures parts on the first visible device, with files in `folder`; what fails is among the problems."""

    def __init__(self, request: Request, folder: Path) -> None:
        self._request, self._folder = request, folder
        self._device = devices.select_device(request.accelerator, 0)
        if threads := peaks.accelerator_config(request.accelerator).get("threads"):
            torch.set_num_threads(threads)
        self._common = common_overrides(self._device, folder)
        self._result = DeviceResult()

    def run(self) -> DeviceResult:
        """Measure all parts of the request."""
        for part in self._request.parts:
            {PEAKS: self._measure_peaks, TRAINING: self._measure_training, REPLAY: self._replay_all}[part]()
        return self._result

    @contextmanager
    def _noting_problem(self, part: str) -> Iterator[None]:
        try:
            yield
        except (RunError, RuntimeError, MemoryError) as error:
            known = to_run_error(error)
            sentence = str(known or error).splitlines()[0]
            problem = Problem(part, known.exit_code if known else Exit.FAILURE, sentence)
            self._result = replace(self._result, problems=(*self._result.problems, problem))

    def _measure_peaks(self) -> None:
        is_cpu = self._device.type == "cpu"

        def is_wanted(case: Case) -> bool:
            is_native = case.compute in ("", case.storage, "tf32")
            return is_native and (is_cpu or not 0 < case.operations < _GPU_GEMM_OPERATIONS)

        with self._noting_problem("peaks"):
            accelerator, threads = self._request.accelerator, torch.get_num_threads()
            rows = peaks.measure_kinds(_KINDS, accelerator, quick=is_cpu, threads=threads, keep=is_wanted)
            self._result = replace(self._result, rows=tuple(rows), links=self._read_links())

    def _read_links(self) -> LinkReading | None:
        """Return the links right after transfers, before an idle GPU lowers them."""
        sensors = None if self._device.type == "cpu" else open_sensors(1)
        if sensors is None:
            return None
        links = sensors.read_links(0)
        sensors.close()
        return links

    def _measure_training(self) -> None:
        """Measure each workload, then go on with the last one until the deadline."""
        share = _SHARE * (self._request.deadline - time.time())
        engine = rates = blocks = None
        for workload in read_workloads():
            engine = rates = blocks = None  # frees the memory
            with self._noting_problem(workload.limit):
                until = time.time() + share
                config, engine = open_engine([*workload.overrides(self._device.type), *self._common], self._device)
                until = max(until, time.time() + _MIN_SECONDS)
                rates, blocks = measure_rates(config, engine, self._request.baseline, until)
                self._result = replace(self._result, rates=(*self._result.rates, rates))
        if rates is not None and blocks is not None:
            with self._noting_problem("sustained load"):
                deadline = max(self._request.deadline, time.time() + _MIN_SECONDS)
                num_gpus, launcher_pid = int(self._device.type != "cpu"), self._request.launcher_pid
                sustained = sustain(rates, blocks, deadline, self._folder, num_gpus, launcher_pid)
                self._result = replace(self._result, sustained=sustained)

    def _replay_all(self) -> None:
        """Replay each workload; nothing else may have run in this process."""
        workloads = read_workloads()
        for number, workload in enumerate(workloads):
            with self._noting_problem(f"replay, {workload.limit}"):
                until = time.time() + (self._request.deadline - time.time()) / (len(workloads) - number)
                overrides = [*workload.overrides(self._device.type), *workload.replay, *self._common, *_REPLAYED]
                config, engine = open_engine(overrides, self._device, can_repeat_bits=True)
                batches = list(engine.data.train_batches(1))
                done = replay(config.workload.title, engine, batches, until, flip_requested_bit)
                self._result = replace(self._result, replays=(*self._result.replays, done))


def main() -> None:
    """Measure what the request in the first argument says, and write the result to the file of the second."""
    values = json.loads(sys.argv[1])
    request = Request(**values | {"parts": tuple(values["parts"])})
    with tempfile.TemporaryDirectory(prefix="timetrial_") as folder:
        write_atomically(
            Path(sys.argv[2]), to_json(asdict(DeviceMeasurement(request, Path(folder)).run())), durable=False
        )
    sys.stdout.flush()
    os._exit(0)  # at once: what is queued on the device does not matter


if __name__ == "__main__":
    main()
