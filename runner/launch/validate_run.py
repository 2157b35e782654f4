"""The stage that validates a run before anything is written: configuration, rules of its division, seed and devices."""

import os
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ..callbacks.installed import find_observers
from ..config.schema import Config
from ..config.validation import SEED_LIMIT, gradient_accumulation_steps, validate
from ..core.errors import ConfigurationError
from ..core.found_files import read_config
from ..hardware import devices, kernel_compilation
from ..mlperf import closed_division

_MANY_MICRO_BATCHES = 64  # per update and device; recipes of the reference scale need up to 16 on small GPUs
_SEED_BYTES = 4  # short enough for the name of a run directory
_PREPARE_KERNELS = f"{kernel_compilation.__name__}:{kernel_compilation.prepare_triton.__name__}"
# Of a job step; a batch script has other variables, and starts the command once.
_TASK_COUNTS = {"srun": "SLURM_STEP_NUM_TASKS", "mpirun": "OMPI_COMM_WORLD_SIZE", "torchrun": "WORLD_SIZE"}


def validate_run(node: DictConfig, console: Console) -> Config:
    """Return the composed `node` as the configuration of a run, with a seed; raise `RunError` if it cannot run here."""
    config = validate(node)
    if config.division == "closed":  # before a seed is drawn: the rules want it left open
        closed_division.check_config(config)
        closed_division.check_datasets(config)
    find_observers(config.observers.extra)
    _refuse_several_tasks(config)
    devices.require_devices(config.accelerator.name, config.gpus // config.launcher.nodes)
    _warn_of_small_micro_batches(config, console)
    return with_seed(config)


def with_seed(config: Config) -> Config:
    """Return `config` with a seed: its own, that of the run that it resumes, or one of the system's random numbers."""
    if config.seed is not None:
        return config
    saved = Path(config.run_dir or "") / "config.yaml"
    is_resumed = config.resume and config.run_dir and saved.exists()
    seed = read_config(saved).get("seed") if is_resumed else int.from_bytes(os.urandom(_SEED_BYTES), "big")
    if type(seed) is not int or not 0 <= seed < SEED_LIMIT:
        raise ConfigurationError(f"{saved} states no seed: start over in a new run directory.")
    return replace(config, seed=seed)


def modules_to_import(node: DictConfig) -> list[str]:
    """Return the modules that validating and running `node` imports lazily, and the preparation of its kernels."""
    loader, engine = OmegaConf.select(node, "data.loader"), OmegaConf.select(node, "engine.name")
    keys = ["workload.workload", f"workload.loaders.{loader}", f"workload.engines.{engine}"]
    classes = [str(path) for key in keys if (path := OmegaConf.select(node, key))]
    compiler = ["torch._dynamo"] if OmegaConf.select(node, "engine.compile") is not None else []
    modules = [*(path.rpartition(".")[0] for path in classes), *compiler, *OmegaConf.select(node, "workload.preload")]
    has_kernels = OmegaConf.select(node, "accelerator.name") != "cpu" and OmegaConf.select(node, "engine.kernels")
    return [*modules, _PREPARE_KERNELS] if has_kernels and engine == "torch" else modules


def _refuse_several_tasks(config: Config) -> None:
    """Raise `ConfigurationError` if a task launcher has started this command several times.

    Each would start a whole run. With `resume` they take turns in one run directory, as the tasks of a study do.
    """
    if config.launcher.name in ("slurm", "torchrun") or (config.run_dir and config.resume):
        return
    for launcher, variable in _TASK_COUNTS.items():
        count = os.environ.get(variable, "1")
        if count.isdecimal() and int(count) > 1:
            raise ConfigurationError(
                f"{launcher} has started this command {count} times, and each would be a run of its own: "
                "start it once, with gpus= for the number of ranks, or once per node with launcher=slurm or torchrun."
            )


def _warn_of_small_micro_batches(config: Config, console: Console) -> None:
    steps = gradient_accumulation_steps(config)
    if steps > _MANY_MICRO_BATCHES:
        console.print(
            f"tuning.micro_batch_size={config.tuning.micro_batch_size} takes {steps:,} forward passes per update, "
            "which is slow: choose the largest that fits into memory, or null.",
            style="yellow", soft_wrap=True, markup=False, highlight=False,
        )  # fmt: skip
