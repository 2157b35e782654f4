"""Write the tables and the picture of docs/luck.md: how much published MLPerf Training results vary within an entry.

    .venv/bin/python -P scripts/measure/published_luck.py [--check]

It reads runner/results/reference_data/mlperf_results.csv. Entries count that have at least three converged runs and
both coefficients of variation; success rates are over all entries. With --check nothing is written, and the exit code
is 1 if the page differs.
"""

import argparse
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from timetrial.runner.record.published_results import PublishedEntry, read_all
from timetrial.runner.results.report.chart import Axis, Chart
from timetrial.scripts.measure import study_page

ROOT = Path(__file__).parents[2]
PAGE, PICTURE = ROOT / "docs" / "luck.md", ROOT / "docs" / "images" / "luck.svg"
MIN_RUNS = 3
_LEAST = 1e-4  # smallest coefficient of variation on the axis
_COLUMNS = "entries with CVs | all runs | converged | CV of time-to-train | CV of time per epoch or sample |"


def tables(entries: Sequence[PublishedEntry]) -> str:
    """Return a table by benchmark over all rounds, and one by benchmark and round, in Markdown."""
    by_benchmark, by_round = _group(entries, rounds=False), _group(entries, rounds=True)
    lines = [f"| benchmark | rounds | {_COLUMNS}", "|---" * 7 + "|"]
    for (benchmark, _), group in sorted(by_benchmark.items(), key=lambda item: -_medians(item[1])[0]):
        rounds = sorted({entry.round for entry in group})
        span = rounds[0] if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        lines.append(f"| {benchmark} | {span} | {_cells(group)}")
    lines += ["", "By round:", "", f"| benchmark | round | {_COLUMNS}", "|---" * 7 + "|"]
    lines += [f"| {benchmark} | {round_} | {_cells(group)}" for (benchmark, round_), group in sorted(by_round.items())]
    return "\n".join(lines) + "\n"


def _group(entries: Iterable[PublishedEntry], *, rounds: bool) -> dict[tuple[str, str], list[PublishedEntry]]:
    groups: dict[tuple[str, str], list[PublishedEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.benchmark, entry.round if rounds else ""), []).append(entry)
    return {key: group for key, group in groups.items() if _varied(group)}


def _varied(group: Iterable[PublishedEntry]) -> list[PublishedEntry]:
    """Return the entries whose spread is known."""
    return [entry for entry in group if entry.converged >= MIN_RUNS and None not in (entry.cv_time, entry.cv_pace)]


def _medians(group: Sequence[PublishedEntry]) -> tuple[float, float]:
    varied = _varied(group)
    return (
        statistics.median(entry.cv_time or 0.0 for entry in varied),
        statistics.median(entry.cv_pace or 0.0 for entry in varied),
    )


def _cells(group: Sequence[PublishedEntry]) -> str:
    runs, converged = sum(entry.runs for entry in group), sum(entry.converged for entry in group)
    time, pace = _medians(group)
    return f"{len(_varied(group))} | {runs} | {converged / runs:.1%} | {time:.2%} | {pace:.2%} |"


def picture(entries: Sequence[PublishedEntry]) -> str:
    """Return an SVG: for each benchmark the two coefficients of variation of every entry, on a log scale."""
    groups = sorted(_group(entries, rounds=False).items(), key=lambda item: -_medians(item[1])[0])
    ticks = [(value, f"{100 * value:g}%") for value in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)]
    label = "coefficient of variation within an entry"
    chart = Chart(Axis(_LEAST, 1.0, label, is_log=True, ticks=ticks), None, 36.0 * len(groups), left=112)
    for number, ((benchmark, _), group) in enumerate(groups):
        middle = 36.0 * number + 18
        chart.row_label(middle + 4, benchmark)
        chart.dots([(entry.cv_pace or _LEAST, middle + 6) for entry in _varied(group)], 0, "hollow")
        chart.dots([(entry.cv_time or _LEAST, middle - 6) for entry in _varied(group)], 0)
    medians = "; ".join(f"{benchmark}: {_medians(group)[0]:.2%}" for (benchmark, _), group in groups)
    title = "Spread of published results within entries"
    description = f"Median coefficient of variation of time-to-train. {medians}."
    return study_page.stand_alone(chart.plot("luck", title, "", description))


def main() -> None:
    """Write, or check, the page and its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options, entries = parser.parse_args(), read_all()
    before, _, after = re.split(r"(?<=<!-- tables -->\n\n)(.*?)(?=<!-- end -->)", PAGE.read_text("utf-8"), flags=re.S)
    wanted = {PAGE: f"{before}{tables(entries)}\n{after}", PICTURE: picture(entries)}
    changed = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in changed:
        print(f"{path} {'differs' if options.check else 'written'}")
        if not options.check:
            path.write_text(wanted[path], encoding="utf-8")
    sys.exit(bool(changed and options.check))


if __name__ == "__main__":
    main()
