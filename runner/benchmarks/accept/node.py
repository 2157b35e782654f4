"""`timetrial accept`: measure this node, each GPU apart and all together, and judge it."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ...config.compose import compose
from ...core.console import StatusLine
from ...core.errors import ConfigurationError, Exit, RunError
from ...hardware import devices
from ...hardware.datasheets import accelerator_configs, find_accelerator
from ...launch.overrides import with_accelerator
from ...training import all_reduce
from ..check_result import CheckResult
from ..check_result import State as CheckState
from ..gpu_checks import Machine, check_gpus, inspect_machine
from ..host_checks import check_disks, check_host
from . import judge
from .device import PEAKS, REPLAY, TRAINING
from .expected import figures_of, together_figure
from .figures import ALL_GPUS, CPU, HOST, DeviceResult, Figure, Line, Problem, State
from .host import measure_host
from .links import has_nvlink_ring, judge_pcie, watch_links
from .processes import MeasuredDevice, run_processes
from .training import common_overrides
from .workloads import read_workloads

_RESERVE_SECONDS = {1: 0.0, 2: 75.0}  # for what all GPUs do together
_CPU_RESERVE_SECONDS = 12.0
_REPLAY_SHARE = 0.3  # of what is left after the peaks
_TOGETHER_BLOCKS = 4


@dataclass
class Findings:
    """What is known of the node so far."""

    lines: list[Line] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str, progress: StatusLine) -> Iterator[None]:
        """Add the duration of the body to that of `part`."""
        progress(part)
        started = time.monotonic()
        yield
        self.seconds[part] = round(self.seconds.get(part, 0.0) + time.monotonic() - started, 1)


@dataclass(frozen=True)
class Bought:
    """What a node should have: GPUs of an accelerator config, and how many; None where that is open."""

    accelerator: str | None = None
    gpus: int | None = None


def check_node(minutes: float, bought: Bought, data_dir: Path, out: Path, progress: StatusLine) -> Findings:
    """Measure and judge this node in about `minutes`, beside what was bought.

    Raises `ConfigurationError` for an unknown accelerator config.
    """
    if bought.accelerator is not None and bought.accelerator not in accelerator_configs():
        names = ", ".join(accelerator_configs())
        raise ConfigurationError(f"--baseline {bought.accelerator} is no accelerator config: choose from {names}.")
    deadline, findings, machine = time.time() + 60 * minutes, Findings(), inspect_machine()
    measured = _find_devices(machine, bought)
    num_gpus = len(measured) if machine.accelerator != "cpu" else 0
    with findings.timed("doctor", progress):
        checks = [*check_gpus(machine), *check_host(), *check_disks(out)]
        findings.lines += [*_judge_doctor(checks, has_gpus=num_gpus > 0), *_judge_delivery(machine, measured, bought)]
    with findings.timed("host", progress):
        host = measure_host(data_dir, num_gpus, next(iter(measured.values())).baseline)
        findings.figures += host.figures
        findings.lines += judge.judge_host(host, num_gpus)
    with watch_links(num_gpus, findings.lines):
        results = _measure_devices(measured, deadline, findings, progress)
        findings.figures += [
            figure for name, result in results.items() for figure in figures_of(name, result, measured[name].baseline)
        ]
        with findings.timed("together", progress):
            _measure_together(machine, results, findings)
    findings.lines += map(judge.judge_figure, findings.figures)
    findings.lines += judge.judge_coverage(measured, findings.figures)
    models = {name: device.model for name, device in measured.items()}
    findings.lines += judge.judge_stragglers(findings.figures, models)
    for name, result in results.items():
        findings.lines += [judge.judge_problem(name, problem) for problem in result.problems]
        if num_gpus:
            findings.lines.append(judge_pcie(name, result.links))
        if result.sustained:
            findings.lines += judge.judge_sustained(name, result.sustained)
    replays = {name: result.replays for name, result in results.items()}
    findings.lines += judge.judge_replays(replays, are_equal=len(set(models.values())) == 1)
    return findings


def _find_devices(machine: Machine, bought: Bought) -> dict[str, MeasuredDevice]:
    """Return the GPUs by the names of their lines, or the CPU."""
    if machine.accelerator == "cpu":
        return {CPU: MeasuredDevice("", "cpu", bought.accelerator or "cpu", {})}
    visible, variable = devices.visible_devices()
    found = {}
    for index, (gpu, visible_name) in enumerate(zip(machine.gpus, visible, strict=False)):
        accelerator = find_accelerator(str(gpu["name"])) or "auto"
        environment = {variable: visible_name}
        baseline = bought.accelerator or accelerator
        found[f"GPU {index}"] = MeasuredDevice(str(gpu["name"]), accelerator, baseline, environment)
    return found


def _judge_delivery(machine: Machine, measured: Mapping[str, MeasuredDevice], bought: Bought) -> Iterator[Line]:
    """Yield a line for each GPU that is not what was bought."""
    yield from judge.judge_number(bought.gpus, len(machine.gpus))
    memory_gib = accelerator_configs()[bought.accelerator].get("memory_gib") if bought.accelerator else None
    for index, (name, found) in enumerate(measured.items()):
        yield from judge.judge_model(name, bought.accelerator, found.accelerator)
        if machine.gpus and (num_bytes := machine.gpus[index].get("memory_bytes")):
            yield from judge.judge_memory(name, memory_gib, num_bytes / 2**30)


def _judge_doctor(checks: Sequence[CheckResult], *, has_gpus: bool) -> Iterator[Line]:
    """Yield a line for each check that is not OK, and one for all others."""
    passed = sum(check.state == CheckState.OK for check in checks)
    yield Line(State.PASS, "doctor", HOST, f"{passed} of {len(checks)} checks are OK")
    for check in checks:
        if check.state != CheckState.OK:
            remedy = f"Run: {check.remedy}" if check.remedy else "Change it, then repeat."
            is_gpu = check.check.startswith("GPU")
            part, name = ("doctor", check.check) if is_gpu else (f"doctor, {check.check}", HOST)
            is_lost = part == "doctor" and not has_gpus  # the machine has GPUs that PyTorch does not see
            yield Line(State.FAIL if is_lost else State(check.state.value), part, name, check.message, remedy)


def _measure_devices(
    measured: Mapping[str, MeasuredDevice], deadline: float, findings: Findings, progress: StatusLine
) -> dict[str, DeviceResult]:
    """Return what each device measured: the peaks apart, training and replays on all devices at the same time.

    A device whose process had to be ended is not measured further.
    """
    deadline -= _CPU_RESERVE_SECONDS if CPU in measured else _RESERVE_SECONDS[min(len(measured), 2)]
    results = dict.fromkeys(measured, DeviceResult())

    def run(part: str, parts: tuple[str, ...], until: float, names: Iterable[str]) -> None:
        chosen = {name: measured[name] for name in names if not _is_lost(results[name])}
        with findings.timed(part, progress):
            for name, result in run_processes(parts, until, chosen).items():
                results[name] = _merge(results[name], result)

    parts: tuple[str, ...] = (PEAKS, TRAINING)
    if len(measured) > 1:
        parts = (TRAINING,)
        for name in measured:
            run(PEAKS, (PEAKS,), deadline, [name])
    run(TRAINING, parts, deadline - _REPLAY_SHARE * (deadline - time.time()), measured)
    run(REPLAY, (REPLAY,), deadline, measured)
    return results


def _is_lost(result: DeviceResult) -> bool:
    return any(problem.exit_code == Exit.LOST_RANK for problem in result.problems)


def _merge(first: DeviceResult, second: DeviceResult) -> DeviceResult:
    return DeviceResult(
        first.rows or second.rows,
        first.links or second.links,
        first.rates or second.rates,
        first.sustained or second.sustained,
        first.replays or second.replays,
        (*first.problems, *second.problems),
    )


def _measure_together(machine: Machine, results: Mapping[str, DeviceResult], findings: Findings) -> None:
    """Measure the all-reduce over all devices, and a training run on all GPUs."""
    accelerator, is_cpu = machine.accelerator, machine.accelerator == "cpu"
    ranks = 2 if is_cpu else len(machine.gpus)
    if ranks == 1:
        findings.lines.append(Line(State.NOT_TESTED, "all-reduce", ALL_GPUS, "there is one GPU", "Nothing to do."))
        return
    if any(map(_is_lost, results.values())):
        line = Line(State.NOT_TESTED, "all-reduce", ALL_GPUS, "a GPU does not answer", "Exclude it, then repeat.")
        findings.lines.append(line)
        return
    node = compose(with_accelerator([])).node
    try:
        mib = 16 if is_cpu else 256
        gb_s = all_reduce.measure(accelerator, ranks, mib=mib, peer_to_peer=node.peer_to_peer)
        can_compare = not is_cpu and devices.can_forbid_peer_to_peer(devices.accelerator_type())
        through_host = all_reduce.measure(accelerator, ranks, mib=mib, peer_to_peer=False) if can_compare else None
    except RunError as error:
        findings.lines.append(
            judge.judge_problem(CPU if is_cpu else ALL_GPUS, Problem("all-reduce", error.exit_code, str(error)))
        )
        return
    is_ring = has_nvlink_ring(machine.links, ranks)
    name = CPU if is_cpu else ALL_GPUS
    findings.lines.append(
        judge.judge_all_reduce(name, gb_s, through_host, is_ring=is_ring, peer_to_peer=node.peer_to_peer)
    )
    if not is_cpu:
        _train_together(ranks, results, findings)


def _train_together(ranks: int, results: Mapping[str, DeviceResult], findings: Findings) -> None:
    """Add the throughput of the last workload on all GPUs at their batch sizes and smallest micro-batch apart."""
    workload = read_workloads()[-1]
    with tempfile.TemporaryDirectory(prefix="timetrial_") as folder:
        overrides = [*workload.gpu, *common_overrides(torch.device(devices.accelerator_type(), 0), Path(folder))]
        node = compose(with_accelerator(overrides)).node
        command = [sys.executable, "-P", "-m", "timetrial", "throughput", "--json", *overrides, f"gpus={ranks}"]
        command += [f"recipe.global_batch_size={ranks * node.recipe.global_batch_size}"]
        command += [f"throughput.blocks={_TOGETHER_BLOCKS}"]
        fitting = [rates.micro_batch for result in results.values() for rates in result.rates[-1:]]
        command += [f"tuning.micro_batch_size={min(fitting)}"] if fitting else []
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sentence = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        known = done.returncode in set(Exit)
        problem = Problem("training together", Exit(done.returncode) if known else Exit.FAILURE, sentence)
        findings.lines.append(judge.judge_problem(ALL_GPUS, problem))
        return
    numbers = json.loads(done.stdout)[0]["numbers"]
    title = node.workload.title
    unit = next((figure.unit for figure in findings.figures if figure.name == f"training {title}"), "samples/s")
    rate = numbers["tokens_per_second" if unit == "tokens/s" else "samples_per_second"]
    findings.figures.append(together_figure(title, unit, rate, findings.figures))
