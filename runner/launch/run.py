"""One run, stage by stage; docs/architecture.md lists the stages."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from ..config.schema import Config
from ..config.validation import run_seed
from ..core.console import StatusLine
from ..core.errors import Exit
from ..core.private_caches import use_private_caches
from ..core.signals import StopSignal
from ..record.run_dir import RunDir
from . import rendezvous
from .finalize import finalize, finish_if_trained
from .open_run_dir import open_run_dir, recorded_attempt
from .prepare_data import clear_caches, prepare_data, stage_data
from .rank_pool import RankPool
from .start_ranks import run_processes, start_ranks
from .validate_run import modules_to_import, validate_run


@dataclass(frozen=True)
class RunResult:
    """How a run ended, and its directory."""

    exit_code: Exit
    run_dir: RunDir


def launch(
    node: DictConfig, console: Console, pool: RankPool | None = None, overrides: Sequence[str] = ()
) -> RunResult:
    """Run the composed configuration once; raise `RunError` for a run that never began.

    `pool` has the ranks that started with the command; without it, all start here. `overrides` are recorded.
    """
    pool = pool or RankPool()
    try:
        pool.import_modules(modules_to_import(node))  # while this process imports them to validate
        config = validate_run(node, console)
        use_private_caches()
        if config.launcher.nodes > 1 and not rendezvous.is_first_node():
            return _join_run(config, console, pool)
        with open_run_dir(config, console) as run:
            exit_code = finish_if_trained(run)
            if exit_code is None:
                with recorded_attempt(run, pool.seconds(), overrides):
                    prepare_data(run)
                    is_inline = config.launcher.name == "inline"
                    with StopSignal().listen_at_terminal(raises=is_inline) as stop:  # also while it is finalized
                        exit_code = finalize(run, start_ranks(run, stop, pool))
            return RunResult(exit_code, run.run_dir)
    finally:
        pool.restart_clock()


def _join_run(config: Config, console: Console, pool: RankPool) -> RunResult:
    """Run this node's ranks of a run that the first node manages."""
    assert config.run_dir
    run_dir = RunDir(Path(config.run_dir).resolve(), run_seed(config))
    stage_data(config, console)
    with StatusLine(console) as status_line:
        clear_caches(config, status_line)
    meeting_point = rendezvous.wait(run_dir)
    with StopSignal().listen() as stop:
        # The first node reports how the ranks ended.
        run_processes(config, run_dir, stop, pool, meeting_point.endpoint)
        rendezvous.leave(meeting_point)
        record = rendezvous.wait_for_final_record(run_dir, meeting_point)
    return RunResult(Exit(Exit.FAILURE if record.exit_code is None else record.exit_code), run_dir)
