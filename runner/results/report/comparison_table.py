"""The table of comparisons on the report page."""

from collections.abc import Sequence
from typing import Any

from ..analysis.comparison import Comparison
from . import plots
from .drawing import interval_columns
from .page_text import count, format_interval
from .tables import Table


def count_comparisons(comparisons: Sequence[Comparison]) -> str:
    """Return the heading of the verdicts, with the number of tests that share the chance of a false one."""
    tested = sum(comparison.ratio is not None for comparison in comparisons)
    return f"Comparisons: {count(tested, 'test')}, at most 5% chance of any false verdict" if tested else "Comparisons"


def ratio_table(name: str, title: str, comparisons: Sequence[Comparison]) -> Table:
    """Return a row per comparison: its verdict, and the ratios that it rests on."""
    kinds = {"Time-to-train": "time_to_train", "Epochs": "epochs", "Time per epoch": "seconds_per_epoch"}
    columns = ["Baseline vs. other", "Verdict on the other", *kinds, "Equal epochs", "Correlation of equal seeds"]
    rows, data = [], []
    for number, comparison in enumerate(comparisons, start=1):
        ratios = {kind: getattr(comparison, kind) for kind in kinds.values()}
        shown = [format_interval(ratio, 3) for ratio in ratios.values()]
        correlation = format_interval(comparison.correlation, 2) if comparison.correlation else "no equal seeds"
        label = f"{number}. {plots.comparison_label(comparison, 60)}"
        rows.append([label, comparison.verdict.value, *shown, comparison.epochs_state, correlation])
        entry: dict[str, Any] = {"baseline": comparison.baseline.title, "other": comparison.other.title}
        entry |= {"verdict": comparison.verdict.value, "basis": comparison.basis, "level": comparison.level}
        for kind, ratio in (ratios | {"time": comparison.time, "paired": comparison.paired}).items():
            entry |= interval_columns(kind, ratio)
        entry |= {"epochs_state": comparison.epochs_state, "reasons": "; ".join(comparison.reasons)}
        data.append(entry | {"differences": "; ".join(comparison.differences)})
    caption = (
        f"Ratios of {title}, baseline over other, with 95% confidence intervals: above 1 the other needs less. The "
        "verdict allows for the number of comparisons"
    )
    return Table(name, caption, columns, rows, data, text_columns=2)
