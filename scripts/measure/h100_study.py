"""Write the tables of docs/studies/h100.md, and its rows of recipes.csv, from the runs in docs/studies/h100.tar.xz.

    .venv/bin/python -P scripts/measure/h100_study.py [--check]

The archive is unpacked to a temporary folder and read by `timetrial report --json` and `timetrial.read_runs`. With
--check nothing is written, and the exit code is 1 if the page or the rows differ.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import timetrial
from timetrial.runner.results.analysis import expectations, planning
from timetrial.scripts.measure import h100_expectations, study_page
from timetrial.scripts.measure.h100_expectations import spread_within_machines

PAGE, ARCHIVE = study_page.STUDIES / "h100.md", study_page.STUDIES / "h100.tar.xz"
NAMES = {
    "ncf": "NCF",
    "gpt": "GPT",
    "gnmt": "GNMT",
    "ssd": "SSD",
    "transformer": "Transformer",
    "resnet": "ResNet-50",
    "maskrcnn": "Mask R-CNN",
    "cifar10": "CIFAR-10",
}
LEAST_SECONDS = 10  # of a run whose energy is stated


def read_report(*words: str | Path) -> dict[str, Any]:
    """Return what `timetrial report --json` prints with these paths and options."""
    command = [sys.executable, "-P", "-m", "timetrial", "report", *map(str, words), "--json"]
    printed: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return printed


def tables(report: Mapping[str, Any], runs: pd.DataFrame) -> dict[str, str]:
    """Return the tables in Markdown by the name of their place on the page; `runs` are those of mini recipes."""
    return {
        "verdicts": _verdicts(report, runs),
        "luck": _luck(report, runs),
        "pairs": _equal_seeds(runs),
        "predictions": _predictions(runs),
    }


def _verdicts(report: Mapping[str, Any], runs: pd.DataFrame) -> str:
    rows = []
    for name, same in by_benchmark(runs):
        sides = [group(report, name, system) for system in "ab"]
        pair = next((each for each in report["comparisons"] if f"({name} " in each["baseline"]), None)
        times = [interval(side and side["time_to_train"], "estimate", " s") for side in sides]
        counts = [f"{(same.system == system).sum()}" for system in "ab"]
        failed = f" ({(~same.success).sum()} failed)" if not same.success.all() else ""
        verdict = [interval(pair, "ratio"), pair["verdict"]] if pair else ["", ""]
        rows.append([NAMES[name], f"{' + '.join(counts)}{failed}", *times, *verdict])
    header = ["workload", "runs, a + b", "time-to-train on a", "on b", "a over b", "verdict"]
    return study_page.markdown_table(header, rows)


def _luck(report: Mapping[str, Any], runs: pd.DataFrame) -> str:
    rows = []
    for name, same in by_benchmark(runs[runs.success]):
        pace = same.duration_s / same.epochs_to_converge
        spreads = [
            spread_within_machines(values, same.system) for values in (same.duration_s, same.epochs_to_converge, pace)
        ]
        epochs = f"{same.epochs_to_converge.min():.0f} to {same.epochs_to_converge.max():.0f}"
        long = same[same.duration_s >= LEAST_SECONDS]
        joules = (long.energy_j / 1000).agg(["median", "min", "max"])
        energy = "{:.1f} kJ ({:.1f} to {:.1f})".format(*joules) if len(long) == len(same) else ""
        evaluation = f"{(same.eval_s / same.duration_s).median():.0%}"
        plans_by_system = [group(report, name, system)["runs_needed"] for system in "ab"]
        needed = max(plans_by_system, key=lambda plan: plan["0.05"])
        plans = ["" if needed[share] is None else "{} to {}".format(*needed[share]) for share in ("0.1", "0.05")]
        sides = np.log(same.duration_s).groupby(same.system)
        found = planning.detectable_difference(sides.size().min(), sides.std().max())
        shares = [f"{share:.1%}" for share in (*spreads, found)]
        rows.append([NAMES[name], epochs, *shares[:3], evaluation, energy, *plans, shares[3]])
    header = [
        "workload",
        "epochs",
        "time-to-train",
        "epochs, spread",
        "time per epoch",
        "evaluation",
        "energy to target",
    ]
    return study_page.markdown_table([*header, "runs for 10%", "runs for 5%", "found by these runs"], rows)


def _equal_seeds(runs: pd.DataFrame) -> str:
    rows = []
    for name, same in by_benchmark(runs[runs.success]):
        pairs = same.pivot_table(index="seed", columns="system", values="epochs_to_converge").dropna()
        if len(pairs):
            listed = ", ".join(f"{a:.0f}/{b:.0f}" for a, b in zip(pairs.a, pairs.b, strict=True))
            rows.append([NAMES[name], f"{(pairs.a == pairs.b).sum()} of {len(pairs)}", listed])
    return study_page.markdown_table(["workload", "equal epochs", "epochs on a/b, seeds 1 to 5"], rows)


def _predictions(runs: pd.DataFrame) -> str:
    header = [
        "workload",
        "epochs, from the same machine",
        "from the other",
        "time-to-train, from the same machine",
        "from the other",
        "measured there too",
        "high over low",
    ]
    return study_page.markdown_table(
        header, h100_expectations.hit_rates(runs, NAMES, h100_expectations.predict_on_two_machines)
    )


def recipe_rows(runs: pd.DataFrame) -> str:
    """Return the text of recipes.csv with the rows of the study; a recipe without a run to the target has none."""
    reached = (same for _, same in runs.groupby("recipe") if same.success.any())
    return h100_expectations.write_rows(expectations.FILE.read_text(), map(h100_expectations.expect, reached))


def by_benchmark(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the runs of each benchmark, in the order of `NAMES`."""
    return [(name, same) for name in NAMES if len(same := runs[runs.benchmark == name])]


def group(report: Mapping[str, Any], benchmark: str, system: str) -> Any:
    """Return what the report says of the runs of a system, or None."""
    found = (group for group in report["groups"] if (group["benchmark"], group["system"]) == (benchmark, system))
    return next(found, None)


def interval(bounds: Mapping[str, float | None] | None, key: str, unit: str = "") -> str:
    """Return the cell of a value, which has the name `key`, and its interval; an empty one without a value."""
    if bounds is None or bounds[key] is None:
        return ""
    return f"{bounds[key]:.3g}{unit} ({bounds['low']:.3g} to {bounds['high']:.3g})"


def main() -> int:
    """Write the page and the rows, or compare them with what would be written."""
    check = study_page.only_checks(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        archived = study_page.unpack(ARCHIVE, Path(folder))
        runs = h100_expectations.read_mini_runs(archived, timetrial.read_runs(archived))
        written, rows = tables(read_report(archived), runs), recipe_rows(runs)
    page = study_page.fill(PAGE.read_text(), written)
    return study_page.write_or_compare({PAGE: page, expectations.FILE: rows}, check=check)


if __name__ == "__main__":
    sys.exit(main())
