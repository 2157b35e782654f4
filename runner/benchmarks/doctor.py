"""`timetrial doctor`: check whether this machine is fit to run, and name the command that mends each fault."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..core.console import print_text
from ..core.errors import Exit, RunError
from ..training import all_reduce
from .check_result import CheckResult, State
from .gpu_checks import Machine, check_gpus
from .host_checks import check_datasets, check_disks, check_host

_COLORS = {State.OK: "green", State.WARN: "yellow", State.FAIL: "red"}
_STATE_WIDTH, _CHECK_WIDTH = 4, 15
_INDENT = _STATE_WIDTH + _CHECK_WIDTH + 2  # columns before the message


def run_checks(
    machine: Machine, runs_dir: Path, data_dir: Path, *, with_all_reduce: bool = True
) -> Iterator[CheckResult]:
    """Yield the results of all checks, the quick ones first; the all-reduce over all ranks takes seconds."""
    gpu_results = list(check_gpus(machine))
    yield from gpu_results
    yield from check_host()
    yield from check_disks(runs_dir, data_dir)
    yield from check_datasets(data_dir)
    if with_all_reduce and not any(result.state == State.FAIL for result in gpu_results):
        yield check_ranks(machine)


def check_ranks(machine: Machine) -> CheckResult:
    """Check that the ranks of this machine can communicate."""
    ranks = max(len(machine.gpus), 2 if machine.accelerator == "cpu" else 1)
    if ranks == 1:
        return CheckResult(State.OK, "ranks", "one GPU: no all-reduce needed")
    try:
        bandwidth = all_reduce.measure(machine.accelerator, ranks)
    except RunError as error:
        if machine.accelerator != "cpu" and _works_through_host(machine.accelerator, ranks):
            message = f"{error} It works through host memory, which is slower and is recorded with each result."
            return CheckResult(State.FAIL, "ranks", message, "export NCCL_P2P_DISABLE=1")
        remedy = (
            "NCCL_DEBUG=INFO python -P -m torch.distributed.run --standalone "
            f"--nproc-per-node {ranks} -m {all_reduce.__name__} {machine.accelerator}"
        )
        return CheckResult(State.FAIL, "ranks", str(error), remedy)
    return CheckResult(State.OK, "ranks", f"all-reduce over {ranks} ranks at {bandwidth:.1f} GB/s bus bandwidth")


def _works_through_host(accelerator: str, ranks: int) -> bool:
    try:
        return all_reduce.measure(accelerator, ranks, peer_to_peer=False) > 0
    except RunError:
        return False


def show(console: Console, results: Iterable[CheckResult]) -> list[CheckResult]:
    """Print state, check and message of each result as it arrives, and the remedy of failures; return all results."""
    shown = []
    width = max(console.width - _INDENT, _INDENT) if console.is_terminal else None  # no line breaks in files
    for result in results:
        shown.append(result)
        state = f"[{_COLORS[result.state]}]{result.state:<{_STATE_WIDTH}}[/]"
        lines = textwrap.wrap(result.message, width, break_long_words=False) if width else [result.message]
        message = escape(f"\n{'':{_INDENT}}".join(lines))
        check = f"[bold]{escape(result.check):<{_CHECK_WIDTH}}[/bold]"
        print_text(console, f"{state} {check} {message}", highlight=False)
        if result.state == State.FAIL:
            remedy = f"{'':{_INDENT}}remedy: [bold]{escape(result.remedy)}[/bold]"
            print_text(console, remedy, highlight=False)
    return shown


def to_json(results: Sequence[CheckResult]) -> list[dict[str, Any]]:
    """Return the results as JSON objects; only failures have a remedy and an exit code other than 0."""
    passed: dict[str, Any] = {"remedy": "", "exit_code": 0}
    return [asdict(result) | ({} if result.state == State.FAIL else passed) for result in results]


def exit_code(results: Sequence[CheckResult]) -> Exit:
    """Return 0 without failures, else the exit code for devices before that for data."""
    codes = {result.exit_code for result in results if result.state == State.FAIL}
    return Exit.TARGET_REACHED if not codes else Exit.DEVICE if Exit.DEVICE in codes else Exit.DATA
