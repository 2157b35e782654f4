"""The commands `timetrial run` and `timetrial throughput`: Hydra applications over the same configuration."""

import argparse
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import typer

from ..core.errors import ConfigurationError, Exit

THROUGHPUT_DEFAULTS = {"scale": "reference", "data": "synthetic", "throughput.steps": "20"}


def run(context: typer.Context) -> None:
    """Train one workload to its target. Takes Hydra overrides: workload=NAME scale=mini seed=1 gpus=1 ...

    `timetrial run --help` lists every group and key, `-m` sweeps, `--cfg job` only prints the configuration.
    """
    raise typer.Exit(int(run_hydra("timetrial run", context.args)))


def throughput(context: typer.Context) -> None:
    """Measure training and evaluation speed, on synthetic data unless data= is given. Takes the overrides of `run`.

    For instance: timetrial throughput -m workload=NAME recipe.global_batch_size=64,128,256 precision=bf16
    """
    arguments = list(context.args)
    keys = {argument.split("=")[0].lstrip("+") for argument in arguments}
    if "recipe" in keys:
        keys.add("scale")  # a recipe has its own
    if "throughput.steps=0" in arguments:
        raise ConfigurationError("throughput.steps must be 1 or more: 0 would train to the target.")
    if not {"--help", "-h"} & set(arguments):
        defaults = [f"{key}={value}" for key, value in THROUGHPUT_DEFAULTS.items() if key not in keys]
        arguments = [*defaults, *arguments]
    raise typer.Exit(int(run_hydra("timetrial throughput", arguments)))


def run_hydra(program: str, arguments: Sequence[str]) -> Exit:
    """Run the Hydra application with these arguments; return the exit code of the run or of the whole sweep.

    `hydra.main` reads sys.argv and discards what jobs return, so its pieces are called here.
    """
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path, get_args_parser
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra

    from ..config.compose import CONFIG_MODULE, register_schema
    from ..launch.overrides import overrides_first, with_accelerator

    version.setbase("1.3")
    register_schema()
    parser = get_args_parser()
    parser.prog = program
    if not {"--help", "-h", "--hydra-help", "--version"} & set(arguments):
        arguments = with_accelerator(arguments)
    options = parser.parse_args(overrides_first(arguments))
    search_path = create_config_search_path(f"pkg://{CONFIG_MODULE}")
    if options.config_dir is not None:
        if not os.path.isdir(options.config_dir):
            raise ConfigurationError(f"--config-dir {options.config_dir} is no folder: name one with more YAML files.")
        folder = f"file://{os.path.abspath(options.config_dir)}"
        search_path.prepend("command-line", folder, SearchPathQuery(provider="schema"))  # the schema stays last
    hydra = Hydra.create_main_hydra2(task_name="timetrial", config_search_path=search_path)
    try:
        return _dispatch(hydra, parser, options)
    finally:
        GlobalHydra.instance().clear()


def _dispatch(hydra: Any, parser: argparse.ArgumentParser, options: argparse.Namespace) -> Exit:
    """Do what the options ask for: print help or the configuration, run once, or sweep."""
    from ..config.compose import CONFIG_NAME

    if options.help:
        hydra.app_help(config_name=CONFIG_NAME, args_parser=parser, args=options)
    elif options.hydra_help:
        hydra.hydra_help(config_name=CONFIG_NAME, args_parser=parser, args=options)
    elif options.info:
        hydra.show_info(options.info, config_name=CONFIG_NAME, overrides=options.overrides)
    elif options.cfg:
        hydra.show_cfg(
            config_name=CONFIG_NAME,
            overrides=options.overrides,
            cfg_type=options.cfg,
            package=options.package,
            resolve=options.resolve,
        )
    elif options.multirun:
        return _sweep(hydra, CONFIG_NAME, options.overrides)
    else:
        from ..core.signals import StopSignal
        from ..launch.sweep import exit_code_of_run, run_job

        job = hydra.run(CONFIG_NAME, partial(run_job, StopSignal()), options.overrides)
        return exit_code_of_run(job.return_value)
    return Exit.TARGET_REACHED


def _sweep(hydra: Any, config_name: str, overrides: list[str]) -> Exit:
    """Run a sweep, print its table and return its exit code."""
    from ..core.signals import StopSignal
    from ..launch.sweep import run_job, summarize_sweep

    with StopSignal().listen_for_children() as stop:
        batches = hydra.multirun(config_name, partial(run_job, stop), ["hydra.mode=MULTIRUN", *overrides])
    jobs = [job for batch in batches for job in batch]
    results = [job.return_value for job in jobs]
    return summarize_sweep(results[0].sweep_dir, [job.overrides for job in jobs], results)
