"""What `timetrial run -m` adds to Hydra's sweeps: each run's exit code is kept, and the sweep ends with a table."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.table import Table

from ..callbacks.summary import figure
from ..core.atomic_files import to_json, write_atomically
from ..core.console import table_console
from ..core.errors import Exit

# Columns of the table: titles, and keys of a result.
_TRAINING = {"epochs": "epochs", "seconds": "seconds", "samples/s": "samples_per_second"}
_SPEEDS = {"samples/s": "samples_per_second", "training ms": "train_ms", "evaluation ms": "eval_ms"}

# The exit code of the sweep that this process has finished, for the command line.
finished: list[Exit] = []


def active() -> bool:
    """True inside a run of a sweep."""
    return bool(HydraConfig.get().mode == RunMode.MULTIRUN)


def keep(code: Exit, sentence: str, result: dict[str, Any] | None) -> None:
    """Leaves a run's exit code and numbers in the sweep's folder, whichever process ran it."""
    hydra = HydraConfig.get()
    number = int(hydra.job.num)
    folder = Path(hydra.sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    entry = {
        "job": number,
        "overrides": list(hydra.overrides.task),
        "exit_code": int(code),
        "error": sentence,
        "result": result,
    }
    write_atomically(folder / f"job_{number:05d}.json", to_json(entry))


class SweepSummary(Callback):
    """Named in conf/config.yaml; Hydra calls it."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Prints one line a run and settles the sweep's exit code: that of the first run that missed its target."""
        summarise(Path(config.hydra.sweep.dir), config.throughput.steps > 0)


def summarise(folder: Path, speeds: bool) -> None:
    """Prints what became of a sweep's runs so far, and keeps the fastest of a sweep of `speeds`."""
    entries = [json.loads(file.read_text()) for file in sorted(folder.glob("job_*.json"))]
    table = Table(title=f"sweep of {len(entries)} runs", title_justify="left", box=None, padding=(0, 2, 0, 0))
    columns = _SPEEDS if speeds else _TRAINING
    for name in ("run", "overrides", "ended", *columns):
        table.add_column(name, overflow="fold")
    shared = set.intersection(*(set(entry["overrides"]) for entry in entries)) if len(entries) > 1 else set()
    for entry in entries:
        own = " ".join(word for word in entry["overrides"] if word not in shared)
        done = "measured" if speeds and not entry["exit_code"] else None
        ended = done or Exit(entry["exit_code"]).name.lower().replace("_", " ")
        result = entry["result"] or {}
        numbers = [_written(key, result.get(key)) for key in columns.values()]
        table.add_row(str(entry["job"]), own, ended, *numbers)
    wide = table_console()
    wide.print(table)
    if speeds and (fastest := best(entries)):
        for line in fastest:
            words = " ".join(word for word in line["overrides"] if word not in shared)
            wide.print(f"best: {words}, {figure(line['samples_per_second'])} samples/s", highlight=False, markup=False)
        write_atomically(folder / "best.json", to_json({"best": fastest}))
    # A batch that does not fit is one of the values that a sweep of speeds is made for.
    fine = (Exit.TARGET_REACHED, Exit.OUT_OF_MEMORY) if speeds else (Exit.TARGET_REACHED,)
    codes = [Exit(entry["exit_code"]) for entry in entries]
    finished.append(next((code for code in codes if code not in fine), Exit.TARGET_REACHED))


def best(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The fastest run over the values that were swept, for each choice of groups: words without a dot are choices.

    `recipe.global_batch_size=16,32` are values of one thing; of `model=a,b` and `gpus=1,2` each has a best of its own.
    None for a choice of which fewer than two runs were asked for, or none could be measured.
    """
    choices: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for entry in entries:
        names = ((word, word.split("=")[0].lstrip("+")) for word in entry["overrides"])
        choice = tuple(word for word, name in names if "." not in name and name != "seed")
        choices.setdefault(choice, []).append(entry)
    found = []
    for same in choices.values():
        fit = [entry for entry in same if entry["result"] and not entry["exit_code"]]
        if len(same) > 1 and fit:
            first = max(fit, key=lambda entry: float(entry["result"]["samples_per_second"]))
            speed = first["result"]["samples_per_second"]
            found.append({"job": first["job"], "overrides": first["overrides"], "samples_per_second": speed})
    return found


def _written(name: str, value: float | None) -> str:
    if value is None or name == "samples_per_second":
        return figure(value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)
