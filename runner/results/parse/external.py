"""External measurements: published results of others, read from CSV or JSON files.

A row is one value of one metric. A configuration that could not be measured also has a row: its `value` is empty and
`outcome` gives the reason. The columns are `schema` and the fields of `ExternalMeasurement`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...core.found_files import MAX_NUMBER, UnreadableFile, as_name, open_regular, read_csv, read_json

SCHEMA = 2
OWN_RUNS = "own runs"  # the `source` of measurements made by timetrial
REFERENCE_DATA = Path(__file__).parents[1] / "reference_data"
METRICS = {
    "minutes": "time-to-train in minutes",
    "minutes_total": "time of a fixed number of epochs in minutes",
    "epochs": "epochs to converge",
    "samples_per_second": "throughput in samples per second",
    "milliseconds": "time of one pass over a batch in milliseconds",
    "speedup": "speedup over the configuration in `baseline`",
    "accuracy": "quality as a fraction",
    "peak_tflops": "data sheet peak of the accelerator at the precision, in TFLOP/s",
    "bandwidth_gb_s": "data sheet memory bandwidth of the accelerator, in GB/s",
    "watts": "power in watts",
    "usd_per_samples_per_second": "purchase price over training throughput",
}
OUTCOMES = ("measured", "out of memory", "not run", "failed")


@dataclass(frozen=True)
class ExternalMeasurement:
    """One measurement. Empty text means "not stated"; `value` is None unless `outcome` is "measured"."""

    study: str
    source: str
    published: str
    workload: str
    task: str
    accelerator: str
    num_accelerators: int
    precision: str
    interconnect: str
    batch: int | None
    metric: str
    value: float | None
    outcome: str
    baseline: str
    note: str

    @property
    def title(self) -> str:
        """Return what was measured, such as "gnmt, train, 2 x T4, fp16, batch 128"."""
        accelerators = f"{self.num_accelerators} x {self.accelerator}"
        parts = [self.workload, self.task, accelerators, self.precision, self.interconnect]
        parts.append(f"batch {self.batch}" if self.batch else "")
        return ", ".join(part for part in parts if part)


def read_measurements(path: Path) -> list[ExternalMeasurement]:
    """Read a .csv or .json file; raise `UnreadableFile` with the number of the row that is invalid."""
    rows = read_json(path) if path.suffix.lower() == ".json" else read_csv(path)
    if not isinstance(rows, list) or not rows:
        raise UnreadableFile(path, "it has no rows")
    try:
        return [_parse_row(row, f"row {number}") for number, row in enumerate(rows, start=1)]
    except ValueError as error:
        raise UnreadableFile(path, error) from error


def is_measurement_file(path: Path) -> bool:
    """Return True for a CSV or JSON file whose first row has the column `schema`."""
    if path.suffix.lower() not in (".csv", ".json"):
        return False
    try:
        with open_regular(path) as file:
            start = file.read(4096).removeprefix(b"\xef\xbb\xbf")
            return b'"schema"' in start or start.startswith(b"schema,")
    except (OSError, UnreadableFile):
        return False


def select_metric(measurements: Iterable[ExternalMeasurement], metric: str) -> list[ExternalMeasurement]:
    """Return the measurements of `metric` that have a value."""
    return [entry for entry in measurements if entry.metric == metric and entry.value is not None]


def _parse_row(row: Any, location: str) -> ExternalMeasurement:
    columns = ["schema", *(entry.name for entry in fields(ExternalMeasurement))]
    if not isinstance(row, dict) or sorted(map(str, row)) != sorted(columns):
        raise ValueError(f"{location}: the columns must be {','.join(columns)}.")
    if str(row["schema"]) != str(SCHEMA):
        raise ValueError(f"{location}: schema {row['schema']} is not supported; the supported schema is {SCHEMA}.")
    cells = {key: "" if value is None else str(value).strip() for key, value in row.items()}
    for key in ("study", "source", "workload", "accelerator", "metric"):
        if not cells[key]:
            raise ValueError(f"{location}: {key} must not be empty.")
    if cells["metric"] not in METRICS:
        raise ValueError(f"{location}: metric must be one of {', '.join(METRICS)}, not {cells['metric']}.")
    outcome = cells["outcome"] or "measured"
    if outcome not in OUTCOMES:
        raise ValueError(f"{location}: outcome must be one of {', '.join(OUTCOMES)}, not {outcome}.")
    value = _parse_number(cells["value"], location, "value")
    if value == 0 and cells["metric"] != "accuracy":
        raise ValueError(f"{location}: {cells['metric']} must not be 0; give a failed run an outcome and no value.")
    if (value is None) == (outcome == "measured"):
        raise ValueError(f"{location}: value must be given if and only if outcome is measured.")
    count = _parse_number(cells["num_accelerators"] or "1", location, "num_accelerators")
    batch = _parse_number(cells["batch"], location, "batch")
    numeric = ("schema", "num_accelerators", "batch", "value", "outcome")
    return ExternalMeasurement(
        **{name: as_name(cells[name]) for name in columns if name not in numeric},
        num_accelerators=int(count or 1),
        batch=int(batch) if batch else None,
        value=value,
        outcome=outcome,
    )


def _parse_number(text: str, location: str, column: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{location}: {column} must be a number of 0 or more, not {text}.")
    return value
