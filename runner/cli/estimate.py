"""The command `timetrial estimate`."""

import typer
from rich.console import Console

from .options import ConfigDir, Overrides
from .run_arguments import check_arguments


def estimate(context: typer.Context, overrides: Overrides = None, config_dir: ConfigDir = None) -> None:
    """Estimate hours, energy, cost and memory of a run: a short measurement times the epochs of known runs.

    Takes the overrides of `run`, and measures on the run's own data unless data=synthetic is given. For instance:
    timetrial estimate workload=NAME scale=mini precision=bf16 gpus=2 usd_per_gpu_hour=2.5
    """
    from ..benchmarks import estimate as estimates
    from ..config import search_path
    from ..launch.overrides import with_accelerator

    overrides = list(overrides or [])
    check_arguments("timetrial estimate", overrides)
    if not any(override.startswith("throughput.steps=") for override in overrides):
        overrides.append(f"throughput.steps={estimates.DEFAULT_STEPS}")
    with search_path.config_dir(config_dir):
        estimates.run(with_accelerator(overrides), Console(), context.obj)
