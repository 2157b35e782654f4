"""The table of comparisons in a benchmark's details."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..analysis.comparison import Comparison
from . import comparison_text
from .chart import interval_columns
from .page_text import format_interval
from .systems import System
from .tables import Table


def ratio_table(name: str, comparisons: Sequence[Comparison], systems: Mapping[str, System]) -> Table:
    """Return a row per comparison: its verdict, and the ratios that it rests on."""
    kinds = {"Time-to-train": "time_to_train", "Epochs": "epochs", "Time per epoch": "seconds_per_epoch"}
    columns = ["GPUs", "Verdict", *kinds, "Equal epochs", "Correlation of equal seeds"]
    rows, data = [], []
    for comparison in comparisons:
        ratios = {kind: getattr(comparison, kind) for kind in kinds.values()}
        shown = [format_interval(ratio, 3) for ratio in ratios.values()]
        correlation = format_interval(comparison.correlation, 2) if comparison.correlation else "no equal seeds"
        label = systems[comparison.other.title].label
        epochs_state = comparison_text.epochs_state(comparison)
        rows.append([label, comparison.verdict.value, *shown, epochs_state, correlation])
        entry: dict[str, Any] = {"baseline": comparison.baseline.title, "other": comparison.other.title}
        entry |= {
            "verdict": comparison.verdict.value,
            "basis": comparison.basis.value,
            "level": comparison.levels.difference,
        }
        for kind, ratio in (ratios | {"time": comparison.time, "paired": comparison.paired}).items():
            entry |= interval_columns(kind, ratio)
        entry |= {"epochs_state": epochs_state, "reasons": "; ".join(comparison_text.reasons(comparison))}
        data.append(entry | {"differences": "; ".join(comparison_text.differences(comparison))})
    caption = (
        f"Ratios against {systems[comparisons[0].baseline.title].label}, baseline over other, with 95% intervals: "
        "above 1 the other needs less"
    )
    return Table(name, caption, columns, rows, data, 2, gpus=[systems[pair.other.title].gpu for pair in comparisons])
