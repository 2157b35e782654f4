"""The machine-readable side of a report: one row a log, one row a cell."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.atomic_files import write_atomically, write_failure
from ..analysis.groups import Cell
from ..parse.runs import Run


def write_runs(path: Path, runs: Iterable[Run]) -> None:
    """One row a log; what a log does not tell is empty, qualities are fractions, several metrics parted by a slash."""
    write_csv(path, [_run_row(run) for run in runs])


def write_scores(path: Path, cells: Iterable[Cell]) -> None:
    """One row a cell; `minutes_olympic` is before any scaling and empty where too many runs failed for a score."""
    write_csv(path, [_score_row(cell) for cell in cells])


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows of equal keys whole or not at all; an empty list gives an empty file."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failure(path, error) from error
    write_atomically(path, text.getvalue())


def _run_row(run: Run) -> dict[str, Any]:
    drawn, cost = run.own.get("telemetry") or {}, run.own.get("cost") or {}
    return {
        "path": run.path.as_posix(),
        "round": run.round,
        "benchmark": run.benchmark,
        "submitter": run.submitter,
        "system": run.system,
        "duration_s": _rounded(run.duration, 6),
        "success": run.success,
        "target": quality_text(run.target),
        "last_quality": quality_text(run.last_quality),
        "epochs_to_converge": "" if run.epochs_to_converge is None else run.epochs_to_converge,
        "num_accelerators": "" if run.num_accelerators is None else run.num_accelerators,
        "global_batch_size": "" if run.global_batch_size is None else run.global_batch_size,
        "batch_unit": run.batch_unit,
        "seed": "" if run.seed is None else run.seed,
        "accelerator": run.accelerator,
        "precision": run.precision,
        "scale": run.scale,
        "observed_s": _rounded(run.observed, 6),
        "eval_s": _rounded(run.eval_seconds, 6),
        "epoch_offset": run.epoch_offset,
        "flags": "; ".join(run.flags),
        "inferred": "; ".join(run.inferred),
        "energy_j": _rounded(drawn.get("energy_joules"), 1),
        "host_energy_j": _rounded(drawn.get("host_energy_joules"), 1),
        "cost_usd": _rounded(cost.get("dollars"), 6),
    }


def _score_row(cell: Cell) -> dict[str, Any]:
    return {
        "round": cell.round,
        "submitter": cell.submitter,
        "system": cell.system,
        "benchmark": cell.benchmark,
        "setting": cell.setting,
        "runs": len(cell.runs),
        "converged": sum(run.success for run in cell.runs),
        "minutes_olympic": _rounded(cell.minutes_olympic, 9),
        "scaling_factor": "" if cell.scaling_factor is None else cell.scaling_factor,
        "minutes_scaled": _rounded(cell.minutes_scaled, 9),
        "epochs_olympic": _rounded(cell.epochs_olympic, 9),
    }


def quality_text(quality: Mapping[str, float]) -> str:
    """One number, or "box/mask" for Mask R-CNN; the shortest text that reads back as the same float."""
    return "/".join(repr(float(value)) for value in quality.values())


def _rounded(value: float | None, digits: int) -> Any:
    return "" if value is None else round(value, digits)
