"""External measurements: published results of others, read from tables in CSV or JSON files.

A row is one value of one metric. A configuration that could not be measured also has a row: its `value` is empty and
`outcome` gives the reason. The columns are `schema` and the fields of `ExternalMeasurement`. CSV files without `schema`
are wide tables, which `wide_tables` brings into this form.
"""

import csv
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...core.found_files import (
    MAX_NUMBER,
    PassOver,
    UnreadableFile,
    as_name,
    decode,
    open_regular,
    read_csv,
    read_json,
    split_csv,
)
from . import wide_tables
from .sources import ignore

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
_NUMBERS = ("num_accelerators", "batch", "value")
_CSV_SUFFIXES = (".csv", ".tsv")
_SUFFIXES = (*_CSV_SUFFIXES, ".txt", ".json")  # a spreadsheet's "Unicode text" is a .txt file
_MAX_START = 4096  # bytes that tell a table from other files
# Numbers with a decimal point and with a decimal comma, thousands separated or not; "1,234" is either.
_NOTATIONS = {
    ".": re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+\.[0-9]*"),
    ",": re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{3})+(?:,[0-9]+)?|[0-9]+,[0-9]*"),
}


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


def find_tables(paths: Sequence[Path]) -> list[Path]:
    """Return the tables of external measurements at or below `paths`, each once.

    A .csv or .tsv file of `paths` is always taken for one; files in folders are, if they begin like one.
    """
    tables = [path for path in paths if path.is_file() and (path.suffix.lower() in _CSV_SUFFIXES or _is_table(path))]
    for path in paths:
        for folder, subfolders, names in os.walk(path):
            subfolders.sort()
            files = (Path(folder, name) for name in sorted(names))
            tables += [file for file in files if file.is_file() and _is_table(file)]
    unique: dict[Path, Path] = {}
    for table in tables:
        unique.setdefault(table.resolve(), table)
    return list(unique.values())


def read_measurements(path: Path, pass_over: PassOver = ignore) -> list[ExternalMeasurement]:
    """Read a table; raise `UnreadableFile` with the number of the row that is invalid.

    `pass_over` receives an error that names the columns of a wide table that are not read.
    """
    rows, separator = _read_rows(path, pass_over)
    if not rows:
        raise UnreadableFile(path, "it has no rows")
    mark = _find_decimal_mark(path, (str(row.get(name, "")) for _, row in rows for name in _NUMBERS), separator)
    try:
        return [_parse_row(row, location, mark) for location, row in rows]
    except ValueError as error:
        raise UnreadableFile(path, error) from error


def read_tables(paths: Iterable[Path], pass_over: PassOver = ignore) -> list[ExternalMeasurement]:
    """Read tables; `pass_over` also receives the errors of those that cannot be read."""
    measurements: list[ExternalMeasurement] = []
    for path in paths:
        try:
            measurements += read_measurements(path, pass_over)
        except UnreadableFile as error:
            pass_over(error)
    return measurements


def _read_rows(path: Path, pass_over: PassOver) -> tuple[list[wide_tables.LongRow], str]:
    """Return the rows of a table, each with its place, and the separator of its columns."""
    if path.suffix.lower() == ".json":
        entries, separator = read_json(path), ""
        entries = entries if isinstance(entries, list) else []
        if not all(isinstance(entry, dict) for entry in entries):
            raise UnreadableFile(path, "its rows are not objects")
    else:
        cells, separator = read_csv(path)
        if cells and "schema" not in cells[0]:
            wide = wide_tables.to_long_rows(path, cells, pass_over)
            return [(location, {"schema": SCHEMA, **row}) for location, row in wide], separator
        entries = [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]
    return [(f"row {number}", entry) for number, entry in enumerate(entries, start=1)], separator


def _is_table(path: Path) -> bool:
    """Return True for a file that begins like a table of external measurements."""
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        return False
    try:
        with open_regular(path) as file:
            start = decode(file.read(_MAX_START), errors="ignore")
        if suffix == ".json":
            return start.lstrip().startswith("[") and '"schema"' in start
        cells, _ = split_csv(start)
    except (OSError, UnreadableFile, csv.Error):
        return False
    return bool(cells) and ({"schema", "metric"} <= set(cells[0]) or wide_tables.is_wide(cells))


def select_metric(measurements: Iterable[ExternalMeasurement], metric: str) -> list[ExternalMeasurement]:
    """Return the measurements of `metric` that have a value."""
    return [entry for entry in measurements if entry.metric == metric and entry.value is not None]


def _parse_row(row: Mapping[str, Any], location: str, mark: str) -> ExternalMeasurement:
    columns = ["schema", *(entry.name for entry in fields(ExternalMeasurement))]
    if unknown := [as_name(name) for name in row if name not in columns]:
        raise ValueError(f"{location}: the columns must be among {','.join(columns)}, and not {','.join(unknown)}.")
    cells = {name: "" if row.get(name) is None else str(row[name]).strip() for name in columns}
    if cells["schema"] != str(SCHEMA):
        raise ValueError(f"{location}: schema {cells['schema']} is not supported; the supported schema is {SCHEMA}.")
    for key in ("study", "source", "workload", "accelerator", "metric"):
        if not cells[key]:
            raise ValueError(f"{location}: {key} must not be empty.")
    if cells["metric"] not in METRICS:
        raise ValueError(f"{location}: metric must be one of {', '.join(METRICS)}, not {cells['metric']}.")
    outcome = cells["outcome"] or "measured"
    if outcome not in OUTCOMES:
        raise ValueError(f"{location}: outcome must be one of {', '.join(OUTCOMES)}, not {outcome}.")
    value = _parse_number(cells["value"], mark, location, "value")
    if value == 0 and cells["metric"] != "accuracy":
        raise ValueError(f"{location}: {cells['metric']} must not be 0; give a failed run an outcome and no value.")
    if (value is None) == (outcome == "measured"):
        raise ValueError(f"{location}: value must be given if and only if outcome is measured.")
    count = _parse_number(cells["num_accelerators"] or "1", mark, location, "num_accelerators")
    batch = _parse_number(cells["batch"], mark, location, "batch")
    numeric = ("schema", "num_accelerators", "batch", "value", "outcome")
    return ExternalMeasurement(
        **{name: as_name(cells[name]) for name in columns if name not in numeric},
        num_accelerators=int(count or 1),
        batch=int(batch) if batch else None,
        value=value,
        outcome=outcome,
    )


def _find_decimal_mark(path: Path, cells: Iterable[str], separator: str) -> str:
    """Return the decimal mark of the numbers that have either, as the others tell; raise `UnreadableFile` otherwise.

    1.234 is such a number only in a table with semicolons, which spreadsheets write where the mark is a comma.
    """
    marks, either = set(), []
    for cell in cells:
        match [mark for mark, notation in _NOTATIONS.items() if notation.fullmatch(cell)]:
            case [mark]:
                marks.add(mark)
            case [_, _]:
                either.append(cell)
    unclear = [cell for cell in either if "," in (*cell, *marks) or separator == ";"]
    if unclear and len(marks) != 1:
        first = unclear[0].replace(",", ".")
        reason = f"{unclear[0]} may be {first} or {first.replace('.', '')}"
        raise UnreadableFile(path, reason, "write a decimal point, and no thousands separator")
    return marks.pop() if len(marks) == 1 else "."


def _parse_number(text: str, mark: str, location: str, column: str) -> float | None:
    if not text:
        return None
    notation = next((name for name in (mark, *_NOTATIONS) if _NOTATIONS[name].fullmatch(text)), None)
    digits = text.replace("." if notation == "," else ",", "").replace(",", ".") if notation else text
    try:
        value = float(digits)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{location}: {column} must be a number of 0 or more, not {text}.")
    return value
