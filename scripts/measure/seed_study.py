"""Write the tables and the picture of docs/studies/seeds.md from the runs in docs/studies/seeds.tar.xz.

    .venv/bin/python -P scripts/measure/seed_study.py [--check]

The archive is unpacked to a temporary folder. With --check nothing is written, and the exit code is 1 if the page
differs.
"""

import itertools
import json
import math
import statistics
import string
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from timetrial.runner.core.errors import Exit
from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.results.analysis.intervals import Interval
from timetrial.scripts.measure import seed_outcomes, study_page
from timetrial.scripts.measure.seed_outcomes import STREAMS, Variance
from timetrial.scripts.measure.seed_picture import picture

PAGE, ARCHIVE = study_page.STUDIES / "seeds.md", study_page.STUDIES / "seeds.tar.xz"
PICTURE = study_page.STUDIES.parent / "images" / "seeds.svg"
_NAMES = {
    "ncf": "NCF",
    "cifar10": "CIFAR-10",
    "cnn": "CNN",
    "resnet50": "ResNet-50",
    "transformer": "Transformer",
    "gpt": "GPT",
    "gnmt": "GNMT",
    "ssd": "SSD",
    "maskrcnn": "Mask R-CNN",
}
_ARMS = {name: name.replace("_", " ") for name in (*STREAMS, "all")}
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_PLAIN, _DETERMINISTIC = False, True  # engine.deterministic

Replays = Mapping[tuple[str, str, bool], Mapping[str, Any]]
"""The lines of first_difference.jsonl by processor, recipe and engine.deterministic."""


def tables(root: Path) -> dict[str, str]:
    """Return the tables in Markdown by the name of their place on the page."""
    replays = read_replays(root / "first_difference.jsonl")
    return {
        "streams": _streams(root / "streams" / "gpu", root / "repeats"),
        "streams_cpu": _streams(root / "streams" / "cpu", root / "repeats" / "cpu"),
        "repeats": _repeats(root / "repeats", replays),
        "repeats_without_search": _repeats(root / "repeats_without_search", {}),
        "search": _search(root / "search"),
        "deterministic": _deterministic(root / "deterministic", root / "repeats", replays),
        "precision": _precision(root / "precision"),
    }


def read_replays(path: Path) -> Replays:
    """Return what first_difference.py printed; of several lines for one setting, the last."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        replay = json.loads(line)
        overrides = dict(word.partition("=")[::2] for word in replay["run"].split())
        deterministic = overrides.get("engine.deterministic") == "true"
        found[replay["accelerator"].upper(), overrides["recipe"], deterministic] = replay
    return found


def _streams(folder: Path, repeats: Path) -> str:
    rows = [row for place, name in _workloads(folder) for row in _stream_rows(place, repeats / place.name, name)]
    header = ["workload", "varied", "runs", "epochs", "spread", "share of the variance", "smallest ratio detected"]
    return study_page.markdown_table([*header, "variance over that of repeats"], rows)


def _stream_rows(place: Path, repeats: Path, name: str) -> Iterator[list[str]]:
    """Yield a row for each arm, one for repeats and one for the sum of the streams' shares."""
    runs = _read_arms(place, repeats)
    variances = {arm: variance for arm, same in runs.items() if (variance := Variance.of(same))}
    whole = variances.get("all")
    repeat = variances.get("none")
    for arm, same in runs.items():
        part, cells = variances.get(arm), ["", "", ""]
        if part and whole and arm != "all":
            least = f"{seed_outcomes.least_ratio(part, whole):.1f}" if part.value else ""
            cells[:2] = _interval(seed_outcomes.share(part, whole)), least
        if part and repeat and repeat.value and arm != "none":
            cells[2] = f"{seed_outcomes.share(part, repeat)}"
        yield [name, _ARMS.get(arm, arm), _count(same), _range(same.epochs), _spread(part), *cells]
    streams = [variances[stream] for stream in STREAMS if stream in variances]
    if whole and repeat and len(streams) > 1:
        total = seed_outcomes.sum_of_shares(streams, repeat, whole)
        yield [name, f"sum of {len(streams)} streams", "", "", "", _interval(total), "", ""]


def _read_arms(place: Path, repeats: Path) -> dict[str, pd.DataFrame]:
    """Return the runs of each arm that has some; "none" are the repeats."""
    arms = {arm: seed_outcomes.read_arm(place / arm, arm) for arm in _ARMS}
    arms["none"] = seed_outcomes.read_ended(repeats)
    return {arm: seed_outcomes.tabulate(records) for arm, records in arms.items() if records}


def runs_to_draw(root: Path) -> dict[str, dict[str, pd.DataFrame]]:
    """Return the GPU runs by the names of workload and arm, of workloads whose length is not fixed."""
    found = {}
    for place, name in _workloads(root / "streams" / "gpu"):
        runs = _read_arms(place, root / "repeats" / place.name)
        if "all" in runs and not seed_outcomes.has_fixed_length(runs["all"].record.iloc[0]):
            found[name] = {_ARMS.get(arm, arm): same for arm, same in runs.items()}
    return found


def _repeats(folder: Path, replays: Replays) -> str:
    rows = []
    for place, name in (*_workloads(folder), *_workloads(folder / "cpu")):
        for processor, runs in _by_processor(place):
            records = list(runs.record)
            epoch = seed_outcomes.first_unequal_epoch(records)
            differ = [_equality(records), "" if epoch is None else f"{epoch}"]
            distinct = f"{runs.epochs.nunique()}: {_range(runs.epochs)}" if runs.reached.any() else ""
            replayed = _replayed(replays.get((processor, _recipe(records), _PLAIN)))
            rows.append([name, processor, _count(runs), *differ, distinct, _spread(Variance.of(runs)), replayed])
    header = ["workload", "processor", "runs", "identical", "differ from epoch", "distinct epochs", "spread"]
    return study_page.markdown_table([*header, "first step of a replay that differs"], rows)


def _deterministic(folder: Path, repeats: Path, replays: Replays) -> str:
    """Return a row for each workload; the runs without are those of the repeats on the same processor too."""
    rows = []
    for place, name in _workloads(folder):
        repeated = dict(_by_processor(repeats / place.name))
        for processor, own in _by_processor(place):
            records = [*own.record, *(repeated[processor].record if processor in repeated else ())]
            sides = [
                [record for record in records if record.config["engine"]["deterministic"] == setting]
                for setting in (_PLAIN, _DETERMINISTIC)
            ]
            seconds = list(map(_epoch_seconds, sides))
            ratio = seed_outcomes.welch_ratio(seconds[1], seconds[0])
            refused = (record.error for record in sides[1] if record.exit_code == Exit.DEVICE)
            cells = [
                *(f"{len(side)}" if side else "" for side in sides),
                *map(_equality, sides),
                _replayed(replays.get((processor, _recipe(records), _DETERMINISTIC))),
                *("" if side.empty else f"{side.median():.3g} s" for side in seconds),
                next(refused, _ratio(ratio)).replace("\n", " ").replace("|", "\\|"),
            ]
            rows.append([name, processor, *cells])
    header = ["workload", "processor", "runs without", "with", "identical without", "identical with"]
    header += ["first step of a replay that differs", "time per epoch without", "with", "with over without"]
    return study_page.markdown_table(header, rows)


def _search(folder: Path) -> str:
    """Return a row for each workload: its runs with cuDNN's search and those without, all on one machine."""
    rows = []
    for place, name in _workloads(folder / "with"):
        sides = [seed_outcomes.read_ended(folder / side / place.name) for side in ("with", "without")]
        seconds, cells = list(map(_epoch_seconds, sides)), []
        for side, own in zip(sides, seconds, strict=True):
            warm_up = statistics.median(record.attempts[0].startup["warming up"] for record in side)
            cells.append([f"{len(side)}", _equal_seeds(side), f"{warm_up:.3g} s", f"{own.median():.3g} s"])
        ratio = _ratio(seed_outcomes.welch_ratio(seconds[1], seconds[0]))
        rows.append([name, *itertools.chain.from_iterable(zip(*cells, strict=True)), ratio])
    header = ["workload", "runs with", "without", "seeds that repeat with", "without", "warming up with", "without"]
    return study_page.markdown_table([*header, "time per epoch with", "without", "without over with"], rows)


def _epoch_seconds(records: Sequence[RunRecord]) -> pd.Series:
    return pd.Series(list(map(seed_outcomes.epoch_seconds, records)), dtype=float).dropna()


def _precision(folder: Path) -> str:
    rows = []
    for place, name in _workloads(folder):
        for machine, runs in _by_machine(place):
            rows += [[name, precision, machine, *cells] for precision, cells in _precision_cells(runs)]
    header = ["workload", "precision", "processor", "runs"]
    for column in ("samples/s", "epochs", "time-to-train", "energy to target"):
        header += [column, "to fp32"]
    return study_page.markdown_table(header, rows)


def _precision_cells(runs: pd.DataFrame) -> Iterator[tuple[str, list[str]]]:
    """Yield each precision and its cells, of the runs on one machine."""
    runs = runs.assign(
        seed=[record.config["seed"] for record in runs.record],
        precision=[record.config["precision"]["name"] for record in runs.record],
    )
    runs = runs.drop_duplicates(["seed", "precision"]).set_index("seed")
    sides = dict(iter(runs.groupby("precision")))
    columns: dict[str, Callable[[float], str]] = {
        "rate": lambda value: f"{value:,.0f}",
        "fractional": lambda value: f"{value:.3g}",
        "seconds": lambda value: f"{value:.3g} s",
        "joules": lambda value: f"{value / 1000:.3g} kJ",
    }
    for precision in filter(sides.__contains__, _PRECISIONS):
        side = sides[precision]
        cells = [_count(side)]
        for column, show in columns.items():
            values = side[column].dropna()
            base = sides.get("fp32", side[:0])[column]
            ratio = None if precision == "fp32" else seed_outcomes.paired_ratio(values, base)
            cells += [study_page.mean(values, show), _ratio(ratio)]
        yield precision, cells


def _workloads(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folders `<workload>_<scale>` and the names of their workloads, in the order of the names."""
    for workload, name in _NAMES.items():
        yield from ((place, name) for place in sorted(folder.glob(f"{workload}_*")))


def _by_processor(folder: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the processors and their runs that have ended, in the order of their first runs."""
    yield from seed_outcomes.tabulate(seed_outcomes.read_ended(folder)).groupby("processor", sort=False)


def _by_machine(folder: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield what `_by_processor` does, but several machines with the same processor apart: "H200 a", "H200 b"."""
    for processor, runs in _by_processor(folder):
        machines = list(runs.groupby([record.attempts[0].boot for record in runs.record], sort=False))
        for letter, (_, own) in zip(string.ascii_lowercase, machines, strict=False):
            yield f"{processor} {letter}" if len(machines) > 1 else processor, own


def _recipe(records: Sequence[RunRecord]) -> str:
    overrides = dict(override.partition("=")[::2] for override in records[0].attempts[-1].overrides)
    return overrides["recipe"]


def _equality(records: Sequence[RunRecord]) -> str:
    trained = [record for record in records if record.training]
    if len(trained) < 2:
        return ""
    return "yes" if seed_outcomes.first_unequal_epoch(trained) is None else "no"


def _equal_seeds(records: Sequence[RunRecord]) -> str:
    """Return of how many seeds all runs are identical, of those with several."""
    by_seed = defaultdict(list)
    for record in records:
        by_seed[record.config["seed"]].append(record)
    verdicts = [verdict for runs in by_seed.values() if (verdict := _equality(runs))]
    return f"{verdicts.count('yes')} of {len(verdicts)}" if verdicts else ""


def _ratio(ratio: Interval | None) -> str:
    return "" if ratio is None else f"{ratio}"


def _replayed(replay: Mapping[str, Any] | None) -> str:
    if not replay:
        return ""
    if not replay["differs"]:
        return f"none of {replay['steps']}, {replay['replays']} replays"
    return f"{replay['step']}: `{replay['tensor']}`"


def _count(runs: pd.DataFrame) -> str:
    """Return the number of runs, of those that missed the target, and of those that met it when first evaluated."""
    counts = ((~runs.reached.astype(bool)).sum(), "failed"), (runs.at_first.sum(), "at the first evaluation")
    remarks = ", ".join(f"{count} {remark}" for count, remark in counts if count)
    return f"{len(runs)} ({remarks})" if remarks else f"{len(runs)}"


def _range(epochs: pd.Series) -> str:
    return study_page.span(epochs, "{:.0f}".format)


def _spread(variance: Variance | None) -> str:
    return "" if variance is None else f"{math.sqrt(variance.value):.1%}"


def _interval(share: Interval) -> str:
    """Return a share and its interval in percent; a variance of zero, of runs equal to the bit, has no interval."""
    if math.isnan(share.estimate):
        return ""
    bounds = f" ({share.low:.0%} to {share.high:.0%})" if share.low < share.high else ""
    return f"{share.estimate:.0%}{bounds}"


def main() -> int:
    """Write the page, or compare it with what would be written."""
    check = study_page.only_checks(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        root = study_page.unpack(ARCHIVE, Path(folder))
        texts = {PAGE: study_page.fill(PAGE.read_text(), tables(root)), PICTURE: picture(runs_to_draw(root))}
    return study_page.write_or_compare(texts, check=check)


if __name__ == "__main__":
    sys.exit(main())
