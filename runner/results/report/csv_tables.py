"""CSV tables of a report: one row per run, one row per run group."""

import csv
import io
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.atomic_files import write_atomically, write_failure
from ..analysis.groups import RunGroup
from ..parse.runs import Run

# https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_runs(path: Path, runs: Iterable[Run]) -> None:
    """Write one row per run. Unknown values are empty, qualities fractions or losses, several metrics joined by "/"."""
    write_csv(path, [run_row(run) for run in runs])


def write_scores(path: Path, groups: Iterable[RunGroup]) -> None:
    """Write one row per run group. `minutes_olympic` is unscaled, and empty where too many runs failed for a score.

    `epochs_olympic` is empty where logs count samples.
    """
    write_csv(path, [_score_row(group) for group in groups])


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of equal keys atomically; no rows give an empty file.

    Text that a spreadsheet would run as a formula, such as a system named "=1+1", gets a leading apostrophe.
    """
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(map(_disarm, rows[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows({_disarm(name): _disarm(cell) for name, cell in row.items()} for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failure(path, error) from error
    write_atomically(path, text.getvalue())


def _disarm(cell: Any) -> Any:
    """Return text that begins like a formula with a leading apostrophe; numbers and other text stay.

    So does text whose first character is the full-width form of one, which some spreadsheets read alike. A return is
    spelled out: Python's csv module does not quote it, so that it would begin a row.
    """
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r", "\\r")
    if not unicodedata.normalize("NFKC", cell[:1]).startswith(_FORMULA_STARTS):
        return text
    with suppress(ValueError):
        float(cell)
        return text
    return f"'{text}"


def run_row(run: Run) -> dict[str, Any]:
    """Return the cells of a run by column; None is unknown."""
    record = run.run_record
    telemetry, cost = (record.telemetry, record.cost) if record else (None, None)
    return {
        "path": run.path.as_posix(),
        "round": run.round,
        "benchmark": run.benchmark,
        "submitter": run.submitter,
        "system": run.system,
        "duration_s": _round(run.duration, 6),
        "success": run.success,
        "target": format_quality(run.target),
        "last_quality": format_quality(run.last_quality),
        "epochs_to_converge": run.epochs_to_converge,
        "samples_to_converge": run.samples_to_converge,
        "num_accelerators": run.num_accelerators,
        "global_batch_size": run.global_batch_size,
        "batch_unit": run.batch_unit,
        "seed": run.seed,
        "accelerator": run.accelerator,
        "precision": run.precision,
        "scale": run.scale,
        "observed_s": _round(run.observed, 6),
        "eval_s": _round(run.eval_seconds, 6),
        "epoch_offset": run.epoch_offset,
        "state": record.state.value if record else None,
        "exit_code": record.exit_code if record else None,
        "started_at": _round(run.started, 3) if math.isfinite(run.started) else None,
        "host": run.host,
        "flags": "; ".join(run.flags),
        "inferred": "; ".join(run.inferred),
        "energy_j": _round(telemetry.energy_joules if telemetry else None, 1),
        "host_energy_j": _round(telemetry.host_energy_joules if telemetry else None, 1),
        "cost_usd": _round(cost.usd if cost else None, 6),
    }


def _score_row(group: RunGroup) -> dict[str, Any]:
    return {
        "round": group.round,
        "submitter": group.submitter,
        "system": group.system,
        "benchmark": group.benchmark,
        "setting": group.setting,
        "runs": len(group.runs),
        "converged": sum(run.success for run in group.runs),
        "minutes_olympic": _round(group.minutes_olympic, 9),
        "scaling_factor": group.scaling_factor,
        "minutes_scaled": _round(group.minutes_scaled, 9),
        "epochs_olympic": _round(group.epochs_olympic if group.progress_unit == "epochs" else None, 9),
    }


def format_quality(quality: Mapping[str, float]) -> str:
    """Return the metrics joined by "/", each as the shortest text that reads back as the same float."""
    return "/".join(repr(float(value)) for value in quality.values())


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
