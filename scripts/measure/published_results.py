"""Write `runner/results/reference_data/mlperf_results.csv`: a line for each published entry of MLPerf Training.

    .venv/bin/python -P scripts/measure/published_results.py --logs RESULTS... --entries ENTRIES.csv

RESULTS are folders of MLCommons' results repositories, which timetrial reads. Other entries, those of which a folder
lacks runs, and the accelerators where it lacks the descriptions of systems, come from ENTRIES.csv, which another
program computed from the same repositories; the column `source` says which. Prints how entries that both have differ.
"""

import argparse
import csv
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from timetrial.runner.record.published_results import COLUMNS, FILE
from timetrial.runner.results.analysis.groups import RunGroup, group_runs
from timetrial.runner.results.analysis.stats import coefficient_of_variation
from timetrial.runner.results.parse.sources import read_runs

Row = dict[str, str]
_COMPARED = ("runs", "converged", "minutes", "epochs", "samples", "cv_time", "cv_pace", "global_batch", "accelerators")
_ORDER = ("round", "benchmark", "submitter", "system")
_TOLERANCE = 2e-3  # the tables round coefficients of variation to five digits behind the point


def rows_of_logs(folders: Sequence[Path]) -> list[Row]:
    """Return the entries that timetrial reads in folders of results."""
    return [_row_of_group(group) for group in group_runs(read_runs(folders)) if group.round and group.submitter]


def _row_of_group(group: RunGroup) -> Row:
    num_converged, first, paces = len(group.converged_runs), group.runs[0], group.seconds_per_epoch
    middle = statistics.median(group.epochs) if group.epochs else None
    return _format(
        round=group.round,
        division=first.division or "",
        submitter=group.submitter,
        system=group.system,
        accelerator=first.accelerator or "",
        accelerators=first.num_accelerators,
        benchmark=group.benchmark,
        runs=len(group.runs),
        converged=num_converged,
        minutes=group.minutes_scaled if group.minutes_scaled is not None else group.minutes_olympic,
        epochs=middle if group.progress_unit == "epochs" else None,
        samples=middle if group.progress_unit == "samples" else None,
        cv_time=_variation(group.minutes),
        cv_pace=_variation(paces) if len(paces) == num_converged else None,
        global_batch=first.global_batch_size,
        source="logs",
    )


def rows_of_table(path: Path) -> list[Row]:
    """Return the entries of a table that another program made; its minutes lack MLPerf's factor."""
    with open(path, newline="", encoding="utf-8") as file:
        return [
            _format(
                **{key: entry[key] for key in COLUMNS if key in entry and key != "minutes"},
                minutes=float(entry["minutes"]) * float(entry["scaling"] or 1) if entry["minutes"] else None,
                epochs=entry["epochs_median"],
                samples=entry["samples_median"],
                source="table",
            )
            for entry in csv.DictReader(file)
        ]


def _format(**values: Any) -> Row:
    row = {key: "" if value is None else str(value) for key, value in _rounded(values).items()}
    row["global_batch"] = row["global_batch"] if row["global_batch"].isdecimal() else ""  # runs of several batches
    if row["benchmark"] == "ssd" and row["round"] >= "v2.0":
        row["benchmark"] = "retinanet"  # which the logs of v2.0 to v4.1 call by the name of its predecessor
    row["division"] = {"clos": "closed", "open": "open"}.get(row["division"].lower()[:4], "")
    return {key: row[key] for key in COLUMNS}


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    for key, digits in (("minutes", 6), ("epochs", 6), ("samples", 8), ("cv_time", 4), ("cv_pace", 4)):
        if values[key] not in (None, ""):
            values[key] = f"{float(values[key]):.{digits}g}"
    return values


def _variation(values: Sequence[float]) -> float | None:
    return coefficient_of_variation(values) if len(values) > 1 else None


def merge(own: Sequence[Row], other: Sequence[Row]) -> list[Row]:
    """Return each entry once: the own one with the accelerators of the other, unless the other has more runs."""
    rows = {_key(row): row for row in other}
    for row in own:
        twin = rows.get(_key(row), row)
        if int(twin["runs"]) <= int(row["runs"]):
            known = {key: row[key] or twin[key] for key in ("accelerator", "accelerators", "global_batch", "division")}
            rows[_key(row)] = row | known
    return sorted(rows.values(), key=lambda row: [row[key].lower() for key in _ORDER])


def differences(own: Sequence[Row], other: Sequence[Row]) -> Counter[str]:
    """Count by round and column the entries of both that are equal, differ, or are empty on one side."""
    others, counts = {_key(row): row for row in other}, Counter[str]()
    for row in own:
        if (twin := others.get(_key(row))) is None:
            counts[f"{row['round']} entries of the logs alone"] += 1
            continue
        for column in _COMPARED:
            one, two = row[column], twin[column]
            if bool(one) != bool(two):
                counts[f"{row['round']} {column}: empty in {'the table' if one else 'the logs'}"] += 1
            elif one and not math.isclose(float(one), float(two), rel_tol=_TOLERANCE, abs_tol=1e-5):
                counts[f"{row['round']} {column}: differs"] += 1
                print(f"{row['round']} {row['submitter']} {row['system']} {row['benchmark']} {column}: {one} {two}")
            else:
                counts[f"{row['round']} {column}: equal"] += 1
    return counts


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row[key].lower() for key in ("round", "submitter", "system", "benchmark"))


def write(rows: Iterable[Row], path: Path) -> None:
    """Write the file."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Write the file, and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", nargs="*", type=Path, default=[])
    parser.add_argument("--entries", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    own, other = rows_of_logs(options.logs), rows_of_table(options.entries)
    for name, count in sorted(differences(own, other).items()):
        print(f"{name} {count}")
    write(merge(own, other), options.out)
    print(f"wrote {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
