"""The jobs of `timetrial run` and `timetrial throughput`, and the table that ends a sweep."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..config.compose import Composition
from ..config.error_messages import format_error
from ..core.atomic_files import file_errors_as_run_errors, to_json, write_atomically
from ..core.console import table_console
from ..core.errors import Exit, RunError, error_of
from ..core.formatting import format_number
from ..core.signals import StoppedEarly, StopSignal, stop_early
from .rank_pool import RankPool
from .run import launch

_TRAINING_COLUMNS = {"epochs": "epochs", "seconds": "seconds", "samples/s": "samples_per_second"}
_THROUGHPUT_COLUMNS = {"samples/s": "samples_per_second", "training ms": "train_ms", "evaluation ms": "eval_ms"}
_STOPPED_FILE = "stopped"  # in the sweep's folder: the jobs that follow are not started


@dataclass(frozen=True)
class JobResult:
    """How one run ended: its exit code, the sentence of an error, the numbers of its result, and its folders."""

    exit_code: Exit
    error: str = ""
    numbers: Mapping[str, Any] | None = None
    run_dir: Path | None = None
    sweep_dir: Path | None = None
    overrides: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the run as the object that sweep.json and `timetrial throughput --json` show."""
        return {
            "overrides": list(self.overrides),
            "exit_code": int(self.exit_code),
            "error": self.error,
            "run_dir": str(self.run_dir) if self.run_dir else None,
            "numbers": self.numbers,
        }


def run_job(
    stop: StopSignal,
    pool: RankPool,
    announce: Callable[[DictConfig], None] | None,
    sweep: Sequence[str],
    node: DictConfig,
) -> JobResult:
    """Launch one run that Hydra composed, in whichever process Hydra puts it. In a sweep, a run that fails is noted.

    `stop` says whether the sweep was stopped before this job began; `announce` is called with `node` first. Where the
    last sweep with the overrides `sweep` was stopped, this one goes on: its runs are resumed, and ended ones returned.
    """
    hydra = HydraConfig.get()
    sweep_dir = Path(hydra.sweep.dir) if hydra.mode == RunMode.MULTIRUN else None
    if stop.name or (sweep_dir and (sweep_dir / _STOPPED_FILE).exists()):
        return JobResult(Exit.STOPPED, "Not started, because the sweep was stopped.", sweep_dir=sweep_dir)
    earlier = _earlier_job(sweep_dir, sweep, hydra.overrides.task) if sweep_dir else None
    if earlier and earlier.exit_code != Exit.STOPPED:
        Console(soft_wrap=True).print(f"ended before: {earlier.run_dir or earlier.error}", markup=False)
        return replace(earlier, sweep_dir=sweep_dir)
    try:
        with stop_early(), file_errors_as_run_errors():
            if earlier and earlier.run_dir:
                node.run_dir, node.resume = str(earlier.run_dir), True
            node = Composition.of_hydra(node, hydra).node
            if announce:
                announce(node)
            result = launch(node, Console(), pool, hydra.overrides.task)
    except (RunError, OmegaConfBaseException, StoppedEarly) as error:
        sentence = str(error) if isinstance(error, StoppedEarly) else format_error(error)
        job = JobResult(getattr(error, "exit_code", Exit.CONFIGURATION), sentence)
        if sweep_dir and job.exit_code != Exit.STOPPED:
            Console(stderr=True, soft_wrap=True).print(f"timetrial: {job.error}", markup=False, highlight=False)
    else:
        record = result.run_dir.record()
        numbers = record.throughput or record.training
        job = JobResult(result.exit_code, record.error, asdict(numbers) if numbers else None, result.run_dir.path)
    if sweep_dir and job.exit_code == Exit.STOPPED:
        sweep_dir.mkdir(parents=True, exist_ok=True)
        (sweep_dir / _STOPPED_FILE).touch()
    return replace(job, sweep_dir=sweep_dir, overrides=tuple(hydra.overrides.task))


def _find_stopped(sweeps: Path, command: Sequence[str]) -> Path | None:
    """Return the last sweep below `sweeps` with the overrides `command`, if it was stopped before its end."""
    for folder in sorted(sweeps.glob("*/"), reverse=True):
        if _read(folder).get("command") == list(command):
            return folder if (folder / _STOPPED_FILE).exists() else None
    return None


def _earlier_job(sweep_dir: Path, command: Sequence[str], overrides: Sequence[str]) -> JobResult | None:
    """Return how the run with these overrides ended in the stopped sweep that goes on in `sweep_dir`."""
    folder = _find_stopped(sweep_dir.parent, command)
    jobs = _read(folder).get("runs", []) if folder else []
    job = next((job for job in jobs if job["overrides"] == list(overrides)), None)
    if job is None or (job["run_dir"] and not Path(job["run_dir"]).exists()):
        return None
    run_dir = Path(job["run_dir"]) if job["run_dir"] else None
    return JobResult(Exit(job["exit_code"]), job["error"], job["numbers"], run_dir, overrides=tuple(overrides))


def _read(sweep_dir: Path) -> dict[str, Any]:
    try:
        found = json.loads((sweep_dir / "sweep.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def exit_code_of_run(job: JobResult) -> Exit:
    """Return the exit code of a single run; raise the error of a run that never began."""
    if job.error and job.numbers is None and job.exit_code != Exit.STOPPED:
        raise error_of(job.exit_code, job.error)
    return job.exit_code


def summarize_sweep(
    folder: Path, command: Sequence[str], overrides: Sequence[Sequence[str]], jobs: Sequence[JobResult]
) -> Exit:
    """Print one line per run, write `sweep.json`, and return the exit code of the first run that missed its target.

    `command` are the overrides of the whole sweep, `overrides` those of each run.
    """
    is_throughput = any(job.numbers and "train_ms" in job.numbers for job in jobs)
    columns = _THROUGHPUT_COLUMNS if is_throughput else _TRAINING_COLUMNS
    table = Table(title=f"sweep of {len(jobs)} runs", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("run", "overrides", "state", *columns):
        table.add_column(name, overflow="fold")
    shared = set.intersection(*map(set, overrides)) if len(overrides) > 1 else set()
    for number, (words, job) in enumerate(zip(overrides, jobs, strict=True)):
        state = job.exit_code.name.lower().replace("_", " ")
        if is_throughput and job.exit_code == Exit.TARGET_REACHED:
            state = "measured"
        values = [_format(key, (job.numbers or {}).get(key)) for key in columns.values()]
        table.add_row(str(number), Text(" ".join(word for word in words if word not in shared)), state, *values)
    console = table_console()
    console.print(table)
    runs = [replace(job, overrides=words).to_json() for words, job in zip(overrides, jobs, strict=True)]
    fastest = best_runs(overrides, jobs) if is_throughput else []
    for words, rate in fastest:
        chosen = " ".join(word for word in words if word not in shared)
        console.print(f"best: {chosen}, {format_number(rate)} samples/s", highlight=False, markup=False)
    best = [{"overrides": list(words), "samples_per_second": rate} for words, rate in fastest]
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "sweep.json", to_json({"command": list(command), "runs": runs, "best": best}))
    # A batch that does not fit is one of the values of a throughput sweep.
    fine = (Exit.TARGET_REACHED, Exit.OUT_OF_MEMORY) if is_throughput else (Exit.TARGET_REACHED,)
    if any(job.exit_code == Exit.STOPPED for job in jobs):
        (folder / _STOPPED_FILE).touch()
        console.print("Repeat the command to go on with this sweep.", highlight=False)
        return Exit.STOPPED
    return next((job.exit_code for job in jobs if job.exit_code not in fine), Exit.TARGET_REACHED)


def best_runs(overrides: Sequence[Sequence[str]], jobs: Sequence[JobResult]) -> list[tuple[Sequence[str], float]]:
    """Return the fastest run over the swept values, for each choice of groups: overrides without a dot are choices.

    `recipe.global_batch_size=16,32` are values of one setting; `model=a,b` and `gpus=1,2` each have a best of their
    own. A choice with fewer than two runs, or without a measured one, has none.
    """
    runs_of_choice: dict[tuple[str, ...], list[tuple[Sequence[str], JobResult]]] = {}
    for words, job in zip(overrides, jobs, strict=True):
        names = ((word, word.split("=")[0].lstrip("+")) for word in words)
        choice = tuple(word for word, name in names if "." not in name and name != "seed")
        runs_of_choice.setdefault(choice, []).append((words, job))
    best: list[tuple[Sequence[str], float]] = []
    for runs in runs_of_choice.values():
        rates = [
            (words, float(job.numbers["samples_per_second"]))
            for words, job in runs
            if job.numbers and job.exit_code == Exit.TARGET_REACHED
        ]
        if len(runs) > 1 and rates:
            best.append(max(rates, key=lambda run: run[1]))
    return best


def _format(key: str, value: float | None) -> str:
    if value is None or key == "samples_per_second":
        return format_number(value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)
