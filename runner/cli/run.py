"""The command `timetrial run`: a Hydra application."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from ..core.errors import ConfigurationError, Exit
from .options import Overrides
from .run_arguments import check_arguments

if TYPE_CHECKING:
    from ..launch.rank_pool import RankPool
    from ..launch.sweep import JobResult


@dataclass(frozen=True)
class HydraOutcome:
    """The exit code of the run or of the whole sweep, and its jobs; no jobs if the command only printed."""

    exit_code: Exit
    jobs: "Sequence[JobResult]" = ()


def run(context: typer.Context, overrides: Overrides = None) -> None:
    """Train one workload to its target. Takes Hydra overrides: workload=NAME scale=mini seed=1 gpus=1 ...

    `timetrial run --help` lists every group and key, `-m` sweeps, `--cfg job` only prints the configuration.
    """
    raise typer.Exit(int(run_hydra("timetrial run", overrides or [], context.obj).exit_code))


def run_hydra(
    program: str, arguments: Sequence[str], pool: "RankPool", announce: Callable[[Any], None] | None = None
) -> HydraOutcome:
    """Run the Hydra application with these arguments, and return how it ended.

    `pool` has the ranks that started with the command; `announce` is called with the composed configuration before
    each run.

    `hydra.main` reads sys.argv and discards what jobs return, so its pieces are called here.
    """
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.global_hydra import GlobalHydra

    from ..config import override_rules
    from ..config.compose import CONFIG_MODULE, VERSION_BASE, register_schema
    from ..config.composer import SweepConfigLoader
    from ..config.search_path import config_dir
    from ..launch.overrides import overrides_first, with_accelerator

    for base in VERSION_BASE.values():
        version.setbase(base)
    register_schema()
    parser = _make_hydra_parser()
    check_arguments(program, arguments, [name for action in parser._actions for name in action.option_strings])
    parser.prog = program
    parser.error = _refuse  # type: ignore[assignment]
    if not {"--help", "-h", "--hydra-help", "--version"} & set(arguments):
        arguments = with_accelerator(arguments)
    options = parser.parse_args(overrides_first(arguments))
    options.overrides = override_rules.complete(options.overrides)
    with config_dir(options.config_dir):
        search_path = create_config_search_path(f"pkg://{CONFIG_MODULE}")
        hydra = Hydra("timetrial", SweepConfigLoader(config_search_path=search_path))
        GlobalHydra.instance().initialize(hydra)
        try:
            return _dispatch(hydra, parser, options, pool, announce)
        finally:
            GlobalHydra.instance().clear()


def _make_hydra_parser() -> argparse.ArgumentParser:
    """Return Hydra's parser of arguments.

    From 3.14 on, Python checks that the help of an option is a string; that of Hydra 1.3's --shell-completion is not,
    since it is only made where it is printed. So the check is replaced meanwhile.
    """
    from hydra._internal.utils import get_args_parser

    argparse.ArgumentParser._check_help = lambda parser, action: None  # type: ignore[attr-defined]
    try:
        return get_args_parser()
    finally:
        del argparse.ArgumentParser._check_help  # type: ignore[attr-defined]  # that of the superclass is back


def _refuse(problem: str) -> NoReturn:
    raise ConfigurationError(f"{problem[:1].upper()}{problem[1:]}: see timetrial run --help.")


def _dispatch(
    hydra: Any,
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    pool: "RankPool",
    announce: Callable[[Any], None] | None,
) -> HydraOutcome:
    """Do what the options ask for: print help or the configuration, run once, or sweep."""
    from hydra.types import RunMode

    from ..config.compose import CONFIG_NAME

    if options.help:
        # Hydra's own help composes every group to list them all, which takes seconds; the template does without.
        node = hydra.compose_config(CONFIG_NAME, options.overrides, RunMode.RUN, with_log_configuration=False)
        print(node.hydra.help.template)
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
        return _sweep(hydra, options.overrides, pool, announce)
    else:
        from ..core.signals import StopSignal
        from ..launch.sweep import exit_code_of_run, run_job

        job = hydra.run(CONFIG_NAME, partial(run_job, StopSignal(), pool, announce, ()), options.overrides)
        return HydraOutcome(exit_code_of_run(job.return_value), [job.return_value])
    return HydraOutcome(Exit.TARGET_REACHED)


def _sweep(hydra: Any, overrides: list[str], pool: "RankPool", announce: Callable[[Any], None] | None) -> HydraOutcome:
    """Run a sweep, print its table, and write its page."""
    from ..config.compose import CONFIG_NAME, as_sweep
    from ..core.signals import StopSignal
    from ..launch.sweep import run_job, summarize_sweep

    sweep = as_sweep(overrides)
    with StopSignal().listen_for_children() as stop:
        job_function = partial(run_job, stop, pool, announce, sweep)
        batches = hydra.multirun(CONFIG_NAME, job_function, ["hydra.mode=MULTIRUN", *sweep])
    jobs = [job for batch in batches for job in batch]
    results = [job.return_value for job in jobs]
    exit_code = summarize_sweep(results[0].sweep_dir, sweep, [job.overrides for job in jobs], results)
    if exit_code != Exit.STOPPED:
        _write_page(results)
    return HydraOutcome(exit_code, results)


def _write_page(jobs: "Sequence[JobResult]") -> None:
    """Write the report on the runs of a sweep beside its sweep.json, and print its path."""
    from rich.console import Console

    from ..results.report import build, page

    run_dirs = [job.run_dir for job in jobs if job.run_dir and job.numbers]
    if run_dirs and jobs[0].sweep_dir:
        path = page.write_page(build.build_report(run_dirs), jobs[0].sweep_dir / "report")
        Console(soft_wrap=True).print(f"report: {path}", markup=False, highlight=False)
