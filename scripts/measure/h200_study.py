"""Write the tables of docs/studies/h100_h200.md from the runs in the archives of this and the other studies there.

    .venv/bin/python -P scripts/measure/h200_study.py [--check]

The archives are unpacked to a temporary folder. With --check nothing is written, and the exit code is 1 if the page
differs.
"""

import itertools
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

import timetrial
from timetrial.runner.results.analysis.intervals import Interval
from timetrial.scripts.measure import h100_expectations, seed_outcomes, study_page
from timetrial.scripts.measure.h100_study import ARCHIVE as H100_ARCHIVE
from timetrial.scripts.measure.h100_study import LEAST_SECONDS, NAMES, by_benchmark, group, interval, read_report
from timetrial.scripts.measure.multi_gpu_study import ARCHIVE as MULTI_GPU_ARCHIVE
from timetrial.scripts.measure.multi_gpu_study import reference_speeds
from timetrial.scripts.measure.seed_study import ARCHIVE as SEEDS_ARCHIVE

PAGE = study_page.STUDIES / "h100_h200.md"
H200_MACHINES = {"h200": "", "h200b": ", later H200"}  # by system, which also names the archive: the end of its labels
_H100_MACHINES = ("a", "b")
_LEAST_PAIRS = 5  # for a correlation


class Studies(NamedTuple):
    """What the tables are made of. The runs are those of mini recipes on one GPU.

    They have a column `per_epoch` of the seconds in training steps without those waiting for batches, the share
    `waiting` of these in both, and `per_evaluation`. For the epochs see `_read_epochs`.
    """

    reports: dict[str, dict[str, Any]]
    """What `timetrial report` says of the H100s and an H200, which is the baseline, by the system of the H200."""
    runs: pd.DataFrame
    second: pd.DataFrame
    """Runs on the second H200, whose machine is that of another study."""
    epochs: pd.DataFrame
    multi_gpu: Path
    """Folder of the runs of the study of several GPUs, among them throughput runs on four other H200s."""


def read_studies(folder: Path) -> Studies:
    """Unpack the archives and read their runs."""
    h100 = study_page.unpack(H100_ARCHIVE, folder)
    h200s = {system: study_page.unpack(study_page.STUDIES / f"{system}.tar.xz", folder) for system in H200_MACHINES}
    multi_gpu = study_page.unpack(MULTI_GPU_ARCHIVE, folder)
    second = multi_gpu / "training"
    seeds = sorted((study_page.unpack(SEEDS_ARCHIVE, folder) / "streams" / "gpu").glob("*/all"))
    return Studies(
        {system: read_report(h100, h200, "--baseline", "H200") for system, h200 in h200s.items()},
        pd.concat(map(_read, (h100, *h200s.values())), ignore_index=True),
        _read(second),
        _read_epochs(h100, *h200s.values(), second, *seeds),
        multi_gpu,
    )


def _read_epochs(*folders: Path) -> pd.DataFrame:
    """Return `fractional` epochs to the target by `benchmark`, `processor` and `seed`, of the first run of each.

    The runs are those of mini recipes on one GPU that reached their target, of recipes whose length is not fixed.
    """
    ended = itertools.chain.from_iterable(map(seed_outcomes.read_ended, folders))
    records = [
        record
        for record in sorted(ended, key=lambda record: record.attempts[0].started_at)
        if (record.config["gpus"], record.config["recipe"]["scale"]) == (1, "mini")
        and not seed_outcomes.has_fixed_length(record)
    ]
    runs = seed_outcomes.tabulate(records).assign(
        benchmark=[record.config["workload"]["benchmark"] for record in records],
        seed=[record.config["seed"] for record in records],
    )
    return runs.dropna(subset="fractional").drop_duplicates(["benchmark", "processor", "seed"])


def _read(folder: Path) -> pd.DataFrame:
    runs = h100_expectations.read_mini_runs(folder, timetrial.read_runs(folder))
    runs = runs[[record.config["gpus"] == 1 for record in runs.record]]
    training = [record.training for record in runs.record]
    return runs.assign(
        per_epoch=[(each.train_seconds - each.data_wait_seconds) / each.epochs for each in training],
        waiting=[each.data_wait_seconds / each.train_seconds for each in training],
        per_evaluation=[each.eval_seconds / len(each.blocks) for each in training],
    )


def tables(studies: Studies) -> dict[str, str]:
    """Return the tables in Markdown by the name of their place on the page."""
    reports, runs, second, epochs, multi_gpu = studies
    return {
        "verdicts": _verdicts(reports, runs),
        "scores": _scores(reports["h200"]),
        "parts": _parts(runs),
        "pairs": _equal_seeds(runs),
        "epochs": _epochs(epochs),
        "energy": _energy(runs),
        "prices": _prices(reports, runs),
        "predictions": _predictions(runs),
        "machines": _machines(runs, second),
        "reference": reference_speeds(multi_gpu),
    }


def by_h200(runs: pd.DataFrame) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """Yield each benchmark on each H200 that ran it: label, benchmark, system, and its runs with those of the H100s."""
    for name, same in by_benchmark(runs):
        for own, label in H200_MACHINES.items():
            if (same.system == own).any():
                yield NAMES[name] + label, name, own, same[same.system.isin([own, *_H100_MACHINES])]


def _verdicts(reports: Mapping[str, Mapping[str, Any]], runs: pd.DataFrame) -> str:
    rows = []
    for label, name, own, same in by_h200(runs):
        report = reports[own]
        times = group(report, name, own)
        counts = " + ".join(f"{(same.system == system).sum()}" for system in (own, *_H100_MACHINES))
        row = [label, counts, interval(times["time_to_train"], "estimate", " s")]
        for system in _H100_MACHINES:
            pair = _comparison(report, name, system)
            row += [interval(pair, "ratio"), pair["verdict"]] if pair else ["", ""]
        needed = times["runs_needed"]["0.1"]
        rows.append([*row, "" if needed is None else "{} to {}".format(*needed)])
    header = ["workload", "runs, H200 + a + b", "time-to-train on the H200"]
    header += [name for system in _H100_MACHINES for name in (f"H200 over {system}", f"{system} is")]
    return study_page.markdown_table([*header, "runs for 10%"], rows)


def _comparison(report: Mapping[str, Any], name: str, system: str) -> Mapping[str, Any] | None:
    """Return the comparison of the H200 with a machine, by the benchmark's name; None if they are not comparable."""
    pairs = (each for each in report["comparisons"] if each["other"].startswith(f"{system} ({name} "))
    return next(pairs, None)


def _scores(report: Mapping[str, Any]) -> str:
    rows = []
    for score in report["scores"]:
        speeds = (interval(score[key], "ratio") for key in ("speed", "speed_elsewhere"))
        rows.append([score["other"].split(",")[0], f"{len(score['workloads'])}", *speeds])
    header = ["machine", "workloads", "times as fast as the H200", "on further workloads"]
    return study_page.markdown_table(header, rows)


def _parts(runs: pd.DataFrame) -> str:
    """Return the seconds of an epoch's steps and of an evaluation, with ratios to those of the H100s, and waits."""
    rows = []
    for label, _, own, same in by_h200(runs):
        row = [label]
        for column in ("per_epoch", "per_evaluation"):
            sides = dict(iter(same.groupby("system")[column]))
            row.append(study_page.mean(sides[own], "{:.3g} s".format))
            row += [study_page.ratio(sides[own], sides.get(system, [])) for system in _H100_MACHINES]
        waiting = same.groupby("system").waiting.median().reindex([own, *_H100_MACHINES]).dropna()
        rows.append([*row, ", ".join(f"{share:.1%}" for share in waiting)])
    over = [f"H200 over {system}" for system in _H100_MACHINES]
    header = ["workload", "steps of an epoch", *over, "evaluation", *over, "waiting for batches, H200, a, b"]
    return study_page.markdown_table(header, rows)


def _equal_seeds(runs: pd.DataFrame) -> str:
    rows = []
    for name, same in by_benchmark(runs[runs.success]):
        epochs = same.pivot_table(index="seed", columns="system", values="epochs_to_converge")
        counts = []
        for system in _H100_MACHINES:
            pairs = epochs[["h200", system]].dropna() if system in epochs else epochs.iloc[:0]
            equal = (pairs.iloc[:, 0] == pairs.iloc[:, -1]).sum()
            counts.append(f"{equal} of {len(pairs)}" if len(pairs) else "")
        first = epochs.reindex(columns=["h200", *_H100_MACHINES]).loc[:5].to_numpy()
        listed = ", ".join("/".join(f"{count:.0f}" for count in row) for row in first)
        rows.append([NAMES[name], *counts, listed.replace("nan", "-")])
    header = ["workload", *(f"equal on the H200 and {system}" for system in _H100_MACHINES)]
    return study_page.markdown_table([*header, "epochs on H200/a/b, seeds 1 to 5"], rows)


def _epochs(epochs: pd.DataFrame) -> str:
    """Return the ratio of the epochs on the two GPUs, and how far those of equal seeds go together."""
    rows = []
    for name, same in by_benchmark(epochs):
        sides = [same[same.processor == gpu].fractional for gpu in ("H200", "H100")]
        logs = np.log(same.pivot(index="seed", columns="processor", values="fractional").dropna())
        correlation = ""
        if len(logs) >= _LEAST_PAIRS:
            found = stats.pearsonr(logs.H100, logs.H200)
            correlation = "{:.2f} ({:.2f} to {:.2f})".format(found.statistic, *found.confidence_interval())
        counts = [*(f"{len(side)}" for side in sides), f"{len(logs)}"]
        rows.append([NAMES[name], *counts[:2], study_page.ratio(*sides), counts[2], correlation])
    header = ["workload", "seeds, H200", "seeds, H100", "epochs, H200 over H100", "seeds on both", "correlation"]
    return study_page.markdown_table(header, rows)


def _energy(runs: pd.DataFrame) -> str:
    rows = []
    for label, _, own, same in by_h200(runs[runs.success]):
        if same.duration_s.min() < LEAST_SECONDS:
            continue
        sides = {system: side.energy_j for system, side in same.groupby("system")}
        watts = same.energy_j / same.duration_s
        row = [label, study_page.mean(sides[own], lambda joules: f"{joules / 1e3:.3g} kJ")]
        row += [study_page.ratio(sides[own], sides[system]) for system in _H100_MACHINES]
        row += [f"{watts[same.system == system].median():.0f} W" for system in (own, *_H100_MACHINES)]
        rows.append(row)
    header = ["workload", "energy to target on the H200", *(f"H200 over {system}" for system in _H100_MACHINES)]
    return study_page.markdown_table([*header, *(f"power, {system}" for system in ("H200", *_H100_MACHINES))], rows)


def _prices(reports: Mapping[str, Mapping[str, Any]], runs: pd.DataFrame) -> str:
    """Return how many times an H100's price per hour an H200 may cost for equal cost: the H100's time over its own."""
    rows = []
    for label, name, own, same in by_h200(runs):
        row = [label]
        for system in _H100_MACHINES:
            pair = _comparison(reports[own], name, system)
            if pair is None or pair["ratio"] is None:
                row.append("")
                continue
            times = Interval(pair["ratio"], pair["low"], pair["high"], min(pair["runs"].values()))
            row.append(f"{times.inverse}")
        sides = dict(iter(same.groupby("system").per_epoch))
        row += [study_page.ratio(sides.get(system, []), sides[own]) for system in _H100_MACHINES]
        rows.append(row)
    header = [f"{what}, against {system}" for what in ("to the target", "steps") for system in _H100_MACHINES]
    return study_page.markdown_table(["workload", *header], rows)


def _predictions(runs: pd.DataFrame) -> str:
    rows = h100_expectations.hit_rates(runs, NAMES, _predict)
    return study_page.markdown_table(["workload", "epochs", "time-to-train", "high over low"], rows)


def _predict(same: pd.DataFrame) -> Iterator[h100_expectations.Prediction]:
    """Predict the runs on each H200 from those on the H100s."""
    for _, _, own, sides in by_h200(same):
        yield from h100_expectations.predict_on(own, sides)


def _machines(runs: pd.DataFrame, second: pd.DataFrame) -> str:
    """Return the ratios of the runs on the other H200s to those on the first."""
    first, later = (runs[runs.system == system] for system in H200_MACHINES)
    rows = []
    for name, own in by_benchmark(first):
        for label, other in (("second", second), ("later", later)):
            same = other[other.benchmark == name]
            if not len(same):
                continue
            pairs = own.merge(same, on="seed")
            equal = (pairs.epochs_to_converge_x == pairs.epochs_to_converge_y).sum()
            columns = ("duration_s", "per_epoch", "per_evaluation")
            ratios = (study_page.ratio(same[column], own[column]) for column in columns)
            rows.append([f"{NAMES[name]}, {label}", f"{len(same)} + {len(own)}", *ratios, f"{equal} of {len(pairs)}"])
    header = ["workload, H200", "runs", "time-to-train over the first", "steps of an epoch", "an evaluation"]
    return study_page.markdown_table([*header, "equal epochs at equal seeds"], rows)


def main() -> int:
    """Write the page, or compare it with what would be written."""
    check = study_page.only_checks(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        page = study_page.fill(PAGE.read_text(), tables(read_studies(Path(folder))))
    return study_page.write_or_compare({PAGE: page}, check=check)


if __name__ == "__main__":
    sys.exit(main())
