"""The first screen of a published round: the fastest system of each benchmark, and whether its lead is luck."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ..analysis.ranking import Progress, RankedGroup, Ranking
from ..analysis.verdicts import MARGIN, Verdict
from ..parse import rules
from .chart import MAX_SERIES, Axis, Chart, Plot, describe, interval_columns
from .page_text import count, format_number
from .panels import Panel, Row, TableCell, format_bounds, verdict_word
from .systems import Lineup, System
from .tables import Table

_ROW = 38.0


def ranking_panel(
    name: str, lineup: Lineup, rankings: Sequence[Ranking], systems: Mapping[str, System], anchors: Mapping[str, str]
) -> Panel:
    """Return the panel of a ranked round; `systems` holds the system of each group by its title."""
    columns = ["Fastest", "Lead", "Next", "Fastest per accelerator"]
    rows = [_row(ranking, systems) for ranking in rankings if ranking.scored]
    return Panel(
        name,
        lineup.title,
        "The fastest system of each benchmark by MLPerf's score, the mean time-to-train without the fastest and the "
        "slowest run",
        "Benchmark",
        [(column, "") for column in columns],
        rows,
        _sentences(rankings),
        has_mean=False,
        plots=[plot for plot in [_plot_variation(f"{name}-variation", rankings)] if plot],
        rounds=lineup.rounds,
        row_anchors=[anchors[ranking.workload] for ranking in rankings if ranking.scored],
    )


def lead_word(entry: RankedGroup) -> str:
    """Return whether an entry leads the next one beyond luck; empty for the last entry."""
    if entry.verdict is None:
        return ""
    if entry.verdict is Verdict.FASTER:
        return "beyond luck"
    return verdict_word(Verdict.EQUAL if entry.verdict is Verdict.EQUAL else Verdict.CANNOT_TELL, MARGIN)


def ranking_table(name: str, ranking: Ranking, systems: Mapping[str, System]) -> Table:
    """Return a row per entry in its rank."""
    unit = ranking.entries[0].group.progress_unit.removesuffix("s")
    columns = ["GPUs", "Minutes", "Lead over the next", "Accelerators", "Accelerator-minutes"]
    columns += ["Per accelerator", "Spread of time", f"Spread per {unit}", "Runs"]
    rows = []
    for entry in ranking.entries:
        efficiency = ranking.relative_efficiency(entry)
        rows.append(
            [
                systems[entry.group.title].label,
                format_score(entry),
                _lead_text(entry),
                str(entry.num_accelerators or "unknown"),
                format_number(entry.accelerator_minutes, 3) if entry.accelerator_minutes else "unknown",
                f"{efficiency:.0%}" if efficiency else "unknown",
                format_variation(entry.time_variation),
                format_variation(entry.pace_variation),
                _run_counts(entry),
            ]
        )
    drawn: list[int | None] = [number if number < MAX_SERIES else None for number in range(len(rows))]
    gpus = [systems[entry.group.title].gpu for entry in ranking.entries]
    caption = (
        "By MLPerf's score; per accelerator: speed relative to the best; spread: coefficient of variation over runs"
    )
    return Table(name, caption, columns, rows, ranking_rows(ranking), 1, drawn, gpus)


def ranking_rows(ranking: Ranking) -> list[dict[str, Any]]:
    """Return the figures of each entry by CSV column or JSON key; None is what is unknown."""
    return [_ranking_row(rank, entry, ranking) for rank, entry in enumerate(ranking.entries, start=1)]


def _ranking_row(rank: int, entry: RankedGroup, ranking: Ranking) -> dict[str, Any]:
    variations = {"time_variation": entry.time_variation, "pace_variation": entry.pace_variation}
    return {
        "rank": rank,
        "group": entry.group.title,
        "score_minutes": entry.group.minutes_scaled,
        "lead_verdict": lead_word(entry) or None,
        **interval_columns("lead", entry.lead_interval),
        "lead_level": entry.levels.difference if entry.lead else None,
        "num_accelerators": entry.num_accelerators,
        "accelerator_minutes": entry.accelerator_minutes,
        "relative_per_accelerator": ranking.relative_efficiency(entry),
        **{key: value if math.isfinite(value) else None for key, value in variations.items()},
        "runs": len(entry.group.runs),
        "failed": entry.group.num_failed,
    }


def progress_panel(name: str, progress: Sequence[Progress], systems: Mapping[str, System]) -> Panel:
    """Return the panel of the fastest entries of several rounds, a row per model and number of accelerators."""
    rounds = sorted({round_ for entry in progress for round_ in entry.best})
    rows = []
    for entry in progress:
        first = next(iter(entry.best.values()))
        cells = []
        for round_ in rounds:
            if (best := entry.best.get(round_)) is None:
                cells.append(TableCell("", "", "no entry", "none"))
                continue
            speedup = "" if best is first else f"{format_number(first.minutes / best.minutes, 3)}× the first"
            cells.append(TableCell(f"{format_score(best)} min", speedup, systems[best.group.title].label, "none"))
        rows.append(Row(f"{entry.model}, {count(entry.num_accelerators, 'accelerator')}", "", "", cells))
    caption = "The best score of each round at equal target and number of accelerators, and its speed against the first"
    text = "Hardware, software and recipe change from round to round; the ratios hold all three."
    return Panel(
        name, "From round to round", caption, "Model", [(round_, "") for round_ in rounds], rows, [("Read", text)],
        has_mean=False, rounds=rounds,
    )  # fmt: skip


def format_score(entry: RankedGroup) -> str:
    """Return the score in minutes, "no score" without one."""
    return format_number(entry.minutes, 4) if math.isfinite(entry.minutes) else "no score"


def format_variation(variation: float) -> str:
    """Return a coefficient of variation as a percentage, such as "7.1%" and "0.21%"."""
    return f"{format_number(100 * variation, 2)}%" if math.isfinite(variation) else "unknown"


def _lead_text(entry: RankedGroup) -> str:
    interval = entry.lead_interval
    if interval is None:
        return "–"
    bounds = f" ({format_bounds(interval)})" if interval.is_bounded else ""
    return f"{format_number(interval.estimate, 3)}×{bounds}, {lead_word(entry)}"


def _run_counts(entry: RankedGroup) -> str:
    """Return the number of runs, how many failed, and how many a score needs if there are fewer."""
    group = entry.group
    required = rules.runs_per_score(group.benchmark) or 0
    text = f"{len(group.runs)} of {required}" if len(group.runs) < required else str(len(group.runs))
    return f"{text}, {group.num_failed} failed" if group.num_failed else text


def _row(ranking: Ranking, systems: Mapping[str, System]) -> Row:
    first, best = ranking.scored[0], ranking.most_efficient
    following = ranking.scored[1] if len(ranking.scored) > 1 else None
    return Row(
        first.group.model,
        count(len(ranking.entries), "entry", "entries"),
        "",
        [
            _entry_cell(first, systems),
            _lead_cell(first),
            _entry_cell(following, systems) if following else TableCell("", "", "no other entry", "none"),
            _efficiency_cell(ranking, best, systems),
        ],
    )


def _entry_cell(entry: RankedGroup, systems: Mapping[str, System]) -> TableCell:
    return TableCell(f"{format_score(entry)} min", "", systems[entry.group.title].label, "none")


def _lead_cell(entry: RankedGroup) -> TableCell:
    interval = entry.lead_interval
    if interval is None:
        return TableCell("–", "", "alone", "none")
    tones = {Verdict.FASTER: "faster", Verdict.EQUAL: "equal"}
    tone = tones.get(entry.verdict, "unsure") if entry.verdict else "unsure"
    return TableCell(f"{format_number(interval.estimate, 3)}×", format_bounds(interval), lead_word(entry), tone)


def _efficiency_cell(ranking: Ranking, best: RankedGroup | None, systems: Mapping[str, System]) -> TableCell:
    if best is None:
        return TableCell("–", "", "accelerators unknown", "none")
    fastest = ranking.relative_efficiency(ranking.scored[0])
    bounds = f"fastest system: {fastest:.0%} per accelerator" if fastest and fastest < 1 else ""
    value = f"{format_number(best.accelerator_minutes or math.nan, 3)} accelerator-minutes"
    return TableCell(value, bounds, systems[best.group.title].label, "none")


def _median_variations(ranking: Ranking) -> tuple[float, float]:
    """Return the medians over the entries of the coefficients of variation of time-to-train and of pace."""
    kinds = ([entry.time_variation for entry in ranking.scored], [entry.pace_variation for entry in ranking.scored])
    time, pace = ([value for value in values if math.isfinite(value)] for values in kinds)
    return median(time) if time else math.nan, median(pace) if pace else math.nan


def _sentences(rankings: Sequence[Ranking]) -> list[tuple[str, str]]:
    entries = [entry for ranking in rankings for entry in ranking.entries]
    runs = sum(len(entry.group.runs) for entry in entries)
    ranked = f"{count(runs, 'run')} in {count(len(entries), 'entry', 'entries')} to {count(len(rankings), 'benchmark')}"
    ranked += " of the closed division. A lead is the next time-to-train over this one, with its confidence interval."
    firsts = [ranking.scored[0].verdict for ranking in rankings if ranking.scored]
    verdicts = [entry.verdict for entry in entries if entry.verdict]
    beyond, equal = verdicts.count(Verdict.FASTER), verdicts.count(Verdict.EQUAL)
    luck = (
        f"{firsts.count(Verdict.FASTER)} of {len(firsts)} fastest systems lead beyond luck. Of all {len(verdicts)} "
        f"leads of an entry over the next, {beyond} are beyond luck, {equal} are equal within {MARGIN:.0%}, and "
        f"{len(verdicts) - beyond - equal} nobody can tell from luck. The chance that any lead of a benchmark is "
        "beyond luck although both systems are equally fast is at most 5%."
    )
    distrust = (
        "Recipes may differ between entries: a lead is one of systems with their recipes, not of accelerators alone. "
        "Small systems lose least to communication, so they are mostly the fastest per accelerator."
    )
    return [("Ranked", ranked), ("Luck", luck), ("Distrust", distrust)]


def _plot_variation(name: str, rankings: Sequence[Ranking]) -> Plot | None:
    """Plot the median coefficients of variation of each benchmark: of time-to-train, and per epoch or sample."""
    rows = {ranking.entries[0].group.model: _median_variations(ranking) for ranking in rankings}
    rows = {model: values for model, values in rows.items() if all(value > 0 for value in values)}
    if not rows:
        return None
    percentages = [100 * value for values in rows.values() for value in values]
    axis = Axis(min(percentages) / 1.6, max(percentages) * 1.6, "% (log scale)", is_log=True)
    chart = Chart(axis, None, height=_ROW * len(rows) + 4, left=8)
    for number, (model, (time, pace)) in enumerate(rows.items()):
        middle = _ROW * number + 27
        chart.row_label(middle - 13, model)
        chart.line([100 * pace, 100 * time], [middle, middle], 0, "thin")
        chart.dots([(100 * pace, middle)], 0, "hollow")
        chart.dots([(100 * time, middle)], 0)
    caption = "Coefficient of variation within entries, median. Full: time-to-train; hollow: time per epoch or sample, "
    caption += "which luck hardly touches."
    times = {model: round(100 * time, 2) for model, (time, _) in rows.items()}
    return chart.plot(name, "How much of the times is luck", caption, describe(times, "% of time-to-train"))
