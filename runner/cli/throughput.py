"""The command `timetrial throughput`: a Hydra application over the configuration of `timetrial run`."""

import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import typer

from ..core.console import is_quiet
from ..core.errors import ConfigurationError
from .options import Overrides
from .run import run_hydra

if TYPE_CHECKING:
    from omegaconf import DictConfig

DEFAULT_STEPS = 20
_HELP = {"--help", "-h"}
_HEADER = """\
timetrial throughput: measure training and evaluation speed over a few blocks of
steps, without a target. The scale is embedded unless scale= or recipe= is
given. The data are synthetic unless data= is given. --json prints the results
as JSON.
"""
_FOOTER = """\
Examples
  timetrial throughput                    the default workload, in seconds
  timetrial throughput workload=NAME scale=reference precision=bf16
  timetrial throughput -m workload=NAME recipe.global_batch_size=64,128,256
  timetrial throughput throughput.steps=50 throughput.blocks=3
"""


def throughput(context: typer.Context, overrides: Overrides = None) -> None:
    """Measure training and evaluation speed, on synthetic data unless data= is given. Takes the overrides of `run`.

    The scale is embedded unless scale= is given. For instance:
    timetrial throughput -m workload=NAME recipe.global_batch_size=64,128,256 precision=bf16
    """
    arguments = list(overrides or [])
    if "throughput.steps=0" in arguments:
        raise ConfigurationError("throughput.steps must be 1 or more: 0 would train to the target.")
    if _HELP & set(arguments):
        header = [f'hydra.help.header="{_HEADER}"', f'hydra.help.footer="{_FOOTER}"']
        raise typer.Exit(int(run_hydra("timetrial throughput", [*header, *arguments], context.obj).exit_code))
    arguments = [*default_overrides(arguments), *arguments]
    if "--json" not in arguments:
        raise typer.Exit(int(run_hydra("timetrial throughput", arguments, context.obj, announce).exit_code))
    with _stdout_to_stderr() as stdout:
        arguments.remove("--json")
        outcome = run_hydra("timetrial throughput", arguments, context.obj, announce)
        print(json.dumps([job.to_json() for job in outcome.jobs], indent=2), file=stdout)
    raise typer.Exit(int(outcome.exit_code))


def default_overrides(arguments: Sequence[str]) -> list[str]:
    """Return the overrides of a measurement that the arguments leave open."""
    values = dict(argument.lstrip("+").split("=", 1) for argument in arguments if "=" in argument)
    defaults = [] if "throughput.steps" in values else [f"throughput.steps={DEFAULT_STEPS}"]
    if "data" not in values and values.get("engine", "torch") == "torch":  # other engines bring their loader
        defaults.append("data=synthetic")
    return defaults


def announce(node: "DictConfig") -> None:
    """Print what is about to be measured, and how long it takes by known runs."""
    from rich.console import Console

    steps, blocks = node.throughput.steps, node.throughput.blocks
    if is_quiet() or min(steps, blocks) < 1:  # which is refused next
        return
    text = (
        f"{node.workload.title}, scale {node.recipe.scale}, batch {node.recipe.global_batch_size}, {node.gpus} x "
        f"{node.accelerator.name}, {node.precision.name}, data={node.data.loader}: {blocks} blocks of {steps} steps, "
        f"each with an evaluation; {_expected_time(node)}"
    )
    Console(soft_wrap=True).print(text, markup=False, highlight=False)


def _expected_time(node: "DictConfig") -> str:
    """Return the time of as many epochs as there are blocks, because a block is at most one epoch."""
    from ..results.analysis.expectations import find_expectation

    known = find_expectation(f"{node.workload.name}/{node.recipe.scale}", node.round.name)
    if known is None or not known.seconds or not known.epochs or known.accelerator != node.accelerator.name:
        return "its time is unknown until the first block"
    seconds = known.seconds / statistics.mean(known.epochs) * node.throughput.blocks
    return f"about {seconds:.0f} s by known runs on {known.setting}"


@contextmanager
def _stdout_to_stderr() -> Iterator[TextIO]:
    """Send what this process and its ranks print to standard error; yield the standard output that they had."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w") as stdout:
        os.dup2(2, 1)
        try:
            yield stdout
        finally:
            sys.stdout.flush()
            stdout.flush()
            os.dup2(stdout.fileno(), 1)
