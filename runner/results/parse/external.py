"""Borrowed figures: what others measured, each with where it comes from. The format is CSV or JSON, version 1.

One row is one figure: one metric of one cell of a study. A cell that could not be measured is a row as well: its
`value` is empty and `outcome` says why. The columns are those of `Figure`; `schema` holds the version in every row.
"""

import csv
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...core.errors import DataError

SCHEMA = 1
OWN = "own runs"  # the source of figures that nobody else has measured
KNOWN = Path(__file__).parents[1] / "known"  # tables that come with the package
METRICS = {
    "minutes": "time-to-train in minutes",
    "minutes_total": "time of a fixed number of epochs in minutes",
    "epochs": "epochs to converge",
    "samples_per_second": "throughput in samples a second",
    "milliseconds": "time of one pass over a batch in milliseconds",
    "speedup": "how many times faster than the cell that `against` names",
    "accuracy": "quality as a fraction",
    "peak_tflops": "peak of the card at the precision, in TFLOP/s (data sheet)",
    "bandwidth_gb_s": "memory bandwidth of the card, in GB/s (data sheet)",
    "watts": "power in watts",
    "usd_per_samples_per_second": "purchase price over training throughput",
}
OUTCOMES = ("measured", "out of memory", "not run", "failed")


@dataclass(frozen=True)
class Figure:
    """One figure. Empty text means that the source does not say; `value` is None where `outcome` is not "measured"."""

    study: str
    source: str
    published: str
    workload: str
    task: str
    card: str
    count: int
    precision: str
    interconnect: str
    batch: int | None
    metric: str
    value: float | None
    outcome: str
    against: str
    note: str

    @property
    def cell(self) -> str:
        """Names the cell in words."""
        parts = [self.workload, self.task, f"{self.count} x {self.card}", self.precision, self.interconnect]
        parts.append(f"batch {self.batch}" if self.batch else "")
        return ", ".join(part for part in parts if part)


def read_figures(path: Path) -> list[Figure]:
    """Figures of a .csv or .json file; raises `DataError` with the row that breaks the format."""
    try:
        if path.suffix.lower() == ".json":
            rows: list[dict[str, Any]] = json.loads(path.read_text())
        else:
            with open(path, newline="", encoding="utf-8-sig") as file:
                rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read ({error}): it must be CSV or JSON with the columns of schema {SCHEMA}."
        ) from error
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{path} holds no figure.")
    return [_figure(row, f"{path}, row {number}") for number, row in enumerate(rows, start=1)]


def is_borrowed(path: Path) -> bool:
    """True for a CSV or JSON file whose first row names the schema."""
    if path.suffix.lower() not in (".csv", ".json"):
        return False
    try:
        with open(path, errors="replace", encoding="utf-8-sig") as file:
            return '"schema"' in (start := file.read(4096)) or start.startswith("schema,")
    except OSError:
        return False


def _figure(row: Any, where: str) -> Figure:
    known = ["schema", *(entry.name for entry in fields(Figure))]
    if not isinstance(row, dict) or sorted(map(str, row)) != sorted(known):
        raise DataError(f"{where}: the columns must be {','.join(known)}.")
    if str(row["schema"]) != str(SCHEMA):
        raise DataError(f"{where}: schema {row['schema']} is not known, only {SCHEMA}.")
    texts = {key: str(value or "").strip() for key, value in row.items()}
    for key in ("study", "source", "workload", "card", "metric"):
        if not texts[key]:
            raise DataError(f"{where}: {key} must be given; a figure without its source is not borrowed but hearsay.")
    if texts["metric"] not in METRICS:
        raise DataError(f"{where}: metric must be one of {', '.join(METRICS)}, not {texts['metric']}.")
    outcome = texts["outcome"] or "measured"
    if outcome not in OUTCOMES:
        raise DataError(f"{where}: outcome must be one of {', '.join(OUTCOMES)}, not {outcome}.")
    value = _number(texts["value"], where, "value")
    if value == 0 and texts["metric"] != "accuracy":
        raise DataError(f"{where}: 0 is no {texts['metric']}; a run that failed has an outcome and no value.")
    if (value is None) == (outcome == "measured"):
        raise DataError(f"{where}: value must be given exactly where the outcome is measured.")
    count, batch = _number(texts["count"] or "1", where, "count"), _number(texts["batch"], where, "batch")
    chosen = {name: texts[name] for name in known if name not in ("schema", "count", "batch", "value", "outcome")}
    return Figure(**chosen, count=int(count or 1), batch=int(batch) if batch else None, value=value, outcome=outcome)


def _number(text: str, where: str, key: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise DataError(f"{where}: {key} must be a number of 0 or more, not {text}.")
    return value


def measured(figures: Iterable[Figure], metric: str) -> list[Figure]:
    """The figures of one metric that have a value."""
    return [figure for figure in figures if figure.metric == metric and figure.value is not None]
