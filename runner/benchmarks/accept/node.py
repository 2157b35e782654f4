"""`timetrial accept`: measure this node, each GPU apart and all together, and judge it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from ...config.compose import compose
from ...core.console import StatusLine
from ...core.errors import ConfigurationError, Exit, RunError
from ...core.found_files import read_json
from ...hardware import devices
from ...hardware.datasheets import accelerator_configs
from ...launch.overrides import with_accelerator
from ...record.record_file import decode
from ...training import all_reduce
from ..check_result import CheckResult
from ..check_result import State as CheckState
from ..gpu_checks import Machine, check_gpus, inspect_machine
from ..host_checks import check_disks, check_host
from . import device, judge
from .device import PEAKS, REPLAY, TRAINING, Request
from .expected import figures_of, together_figure
from .figures import ALL_GPUS, CPU, HOST, DeviceResult, Figure, Line, Problem, State
from .host import measure_host
from .links import judge_pcie, watch_links
from .training import common_overrides
from .workloads import read_workloads

_RESERVE_SECONDS = {1: 0.0, 2: 75.0}  # for what all GPUs do together
_CPU_RESERVE_SECONDS = 12.0
_REPLAY_SHARE = 0.3  # of what is left after the peaks
_GRACE_SECONDS = 900.0  # after its deadline, for a process whose GPU takes a minute for a step
_TOGETHER_STEPS, _TOGETHER_BLOCKS = 3, 3


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


def check_node(minutes: float, bought: str | None, data_dir: Path, out: Path, progress: StatusLine) -> Findings:
    """Measure and judge this node in about `minutes`; `bought` is the accelerator config that it should have.

    Raises `ConfigurationError` for an unknown accelerator config.
    """
    if bought is not None and bought not in accelerator_configs():
        names = ", ".join(accelerator_configs())
        raise ConfigurationError(f"--baseline {bought} is no accelerator config: choose from {names}.")
    deadline, findings, machine = time.time() + 60 * minutes, Findings(), inspect_machine()
    num_gpus = len(machine.gpus) if machine.accelerator != "cpu" else 0
    baseline = bought or machine.accelerator
    with findings.timed("doctor", progress):
        checks = [*check_gpus(machine), *check_host(), *check_disks(out)]
        findings.lines += [*_judge_doctor(checks), *judge.judge_model(bought, machine.accelerator)]
    with findings.timed("host", progress):
        host = measure_host(data_dir, num_gpus, baseline)
        findings.figures += host.figures
        findings.lines += judge.judge_host(host, num_gpus)
    with watch_links(num_gpus, findings.lines):
        results = _measure_devices(machine, baseline, deadline, findings, progress)
        findings.figures += [
            figure for name, result in results.items() for figure in figures_of(name, result, baseline)
        ]
        with findings.timed("together", progress):
            _measure_together(machine, findings)
    findings.lines += map(judge.judge_figure, findings.figures)
    findings.lines += judge.judge_stragglers(findings.figures)
    for name, result in results.items():
        findings.lines += [judge.judge_problem(name, problem) for problem in result.problems]
        if num_gpus:
            findings.lines.append(judge_pcie(name, result.links))
        if result.sustained:
            findings.lines += judge.judge_sustained(name, result.sustained)
    models = {str(gpu["name"]) for gpu in machine.gpus}
    replays = {name: result.replays for name, result in results.items()}
    findings.lines += judge.judge_replays(replays, are_equal=len(models) == 1)
    return findings


def _judge_doctor(checks: Sequence[CheckResult]) -> Iterator[Line]:
    """Yield a line for each check that is not OK, and one for all others."""
    passed = sum(check.state == CheckState.OK for check in checks)
    yield Line(State.PASS, "doctor", HOST, f"{passed} of {len(checks)} checks are OK")
    for check in checks:
        if check.state != CheckState.OK:
            remedy = f"Run: {check.remedy}" if check.remedy else "Change it, then repeat."
            is_gpu = check.check.startswith("GPU")
            part, name = ("doctor", check.check) if is_gpu else (f"doctor, {check.check}", HOST)
            yield Line(State(check.state.value), part, name, check.message, remedy)


def _measure_devices(
    machine: Machine, baseline: str, deadline: float, findings: Findings, progress: StatusLine
) -> dict[str, DeviceResult]:
    """Return what each device measured: the peaks apart, training and replays on all devices at the same time."""
    environments: dict[str, dict[str, str]] = {CPU: {}}
    reserve = _CPU_RESERVE_SECONDS
    if machine.accelerator != "cpu":
        names, variable = devices.visible_devices()
        environments = {f"GPU {index}": {variable: name} for index, name in enumerate(names)}
        reserve = _RESERVE_SECONDS[min(len(names), 2)]
    deadline -= reserve
    results = dict.fromkeys(environments, DeviceResult())

    def run(part: str, parts: tuple[str, ...], until: float, chosen: Mapping[str, dict[str, str]]) -> None:
        request = Request(parts, machine.accelerator, baseline, until, os.getpid())
        with findings.timed(part, progress):
            for name, result in _run_processes(request, chosen).items():
                results[name] = _merge(results[name], result)

    parts: tuple[str, ...] = (PEAKS, TRAINING)
    if len(environments) > 1:
        parts = (TRAINING,)
        for name, environment in environments.items():
            run(PEAKS, (PEAKS,), deadline, {name: environment})
    run(TRAINING, parts, deadline - _REPLAY_SHARE * (deadline - time.time()), environments)
    run(REPLAY, (REPLAY,), deadline, environments)
    return results


def _run_processes(request: Request, environments: Mapping[str, dict[str, str]]) -> dict[str, DeviceResult]:
    """Return the result of a process in each environment, all at the same time; a process that fails is a problem."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="timetrial_") as folder, ExitStack() as closing:
        processes = {}
        for number, (name, environment) in enumerate(environments.items()):
            path = Path(folder, f"{number}.json")
            command = [sys.executable, "-P", "-m", device.__name__, json.dumps(asdict(request)), str(path)]
            output = closing.enter_context(open(path.with_suffix(".txt"), "w+b"))
            process = subprocess.Popen(command, env=os.environ | environment, stdout=output, stderr=output)
            closing.callback(process.wait)
            closing.callback(process.kill)  # would keep the device busy
            processes[name] = (process, path)
        for name, (process, path) in processes.items():
            try:
                process.wait(max(request.deadline - time.time(), 0.0) + _GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                sentence = f"it did not end within {_GRACE_SECONDS:.0f} s of its time"
                results[name] = _failed(request, Exit.LOST_RANK, sentence)
                continue
            if process.returncode:
                text = path.with_suffix(".txt").read_text(errors="replace").strip()
                sentence = text.splitlines()[-1] if text else f"it ended with exit code {process.returncode}"
                results[name] = _failed(request, Exit.FAILURE, sentence)
            else:
                results[name] = decode(DeviceResult, read_json(path))
    return results


def _failed(request: Request, exit_code: Exit, sentence: str) -> DeviceResult:
    return DeviceResult(problems=(Problem(" and ".join(request.parts), exit_code, sentence),))


def _merge(first: DeviceResult, second: DeviceResult) -> DeviceResult:
    return DeviceResult(
        first.rows or second.rows,
        first.links or second.links,
        first.rates or second.rates,
        first.sustained or second.sustained,
        first.replays or second.replays,
        (*first.problems, *second.problems),
    )


def _measure_together(machine: Machine, findings: Findings) -> None:
    """Measure the all-reduce over all devices, and a training run on all GPUs."""
    accelerator, is_cpu = machine.accelerator, machine.accelerator == "cpu"
    ranks = 2 if is_cpu else len(machine.gpus)
    if ranks == 1:
        findings.lines.append(Line(State.NOT_TESTED, "all-reduce", ALL_GPUS, "there is one GPU", "Nothing to do."))
        return
    node = compose(with_accelerator([])).node
    try:
        mib = 16 if is_cpu else 256
        gb_s = all_reduce.measure(accelerator, ranks, mib=mib, peer_to_peer=node.peer_to_peer)
        through_host = None if is_cpu else all_reduce.measure(accelerator, ranks, mib=mib, peer_to_peer=False)
    except RunError as error:
        findings.lines.append(
            judge.judge_problem(CPU if is_cpu else ALL_GPUS, Problem("all-reduce", error.exit_code, str(error)))
        )
        return
    links = machine.links.values()
    findings.lines.append(judge.judge_all_reduce(gb_s, through_host, links, peer_to_peer=node.peer_to_peer))
    if not is_cpu:
        _train_together(ranks, findings)


def _train_together(ranks: int, findings: Findings) -> None:
    """Add the throughput of the last workload on all GPUs at their batch sizes apart."""
    workload = read_workloads()[-1]
    with tempfile.TemporaryDirectory(prefix="timetrial_") as folder:
        overrides = [*workload.gpu, *common_overrides(torch.device(devices.accelerator_type(), 0), Path(folder))]
        node = compose(with_accelerator(overrides)).node
        command = [sys.executable, "-P", "-m", "timetrial", "throughput", "--json", *overrides, f"gpus={ranks}"]
        command += [f"recipe.global_batch_size={ranks * node.recipe.global_batch_size}"]
        command += [f"throughput.steps={_TOGETHER_STEPS}", f"throughput.blocks={_TOGETHER_BLOCKS}"]
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
