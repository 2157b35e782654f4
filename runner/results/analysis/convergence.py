"""Reference convergence: does a cell converge in fewer epochs than its recipe should?

Official reference convergence points (RCPs) come from the installed mlperf_logging package; it has them for ResNet,
SSD, RetinaNet and Mask R-CNN from round v1.0 on. For GNMT, Transformer and NCF there are none: what published runs
needed stands in, and is called observed.
"""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import scipy
from mlperf_logging import rcp_checker

from ..parse import rules
from ..parse.external import KNOWN
from .findings import Finding
from .groups import Cell

ALPHA = 0.05  # of the one-sided test, as MLPerf's RCP rule has it
_OBSERVED = KNOWN / "observed_convergence.csv"
_ROUNDS = ("1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0")


@dataclass(frozen=True)
class Reference:
    """Epochs that reference runs needed at one global batch size; `official` RCPs or observed ones."""

    benchmark: str
    batch: int
    epochs: tuple[float, ...]
    official: bool
    source: str


def reference_of(cell: Cell) -> Reference | None:
    """The reference for a cell's model, target and global batch size; None where there is none."""
    run = cell.runs[0]
    asked = rules.target(cell.benchmark, cell.round)
    if run.global_batch_size is None or asked is None or list(asked.values()) != list(run.target.values()):
        return None
    official = [found for found in _official(cell.benchmark, cell.round) if found.batch == run.global_batch_size]
    if official:
        return official[0]
    others = [
        found
        for found in _observed(cell.benchmark, cell.round)
        if found.batch == run.global_batch_size and not (cell.system in found.source and cell.submitter in found.source)
    ]
    if not others:
        return None
    epochs = tuple(value for found in others for value in found.epochs)
    return Reference(cell.benchmark, run.global_batch_size, epochs, False, f"{len(others)} published entries")


def too_fast(epochs: Sequence[float], reference: Reference) -> float:
    """p of a one-sided Welch test that `epochs` are drawn from no fewer than the reference's; small means too fast.

    The RCP rule asks the same with a pooled deviation; Welch's form does not assume equal ones.
    """
    if len(set(epochs)) == 1 and len(set(reference.epochs)) == 1:
        return 1.0 if epochs[0] >= reference.epochs[0] else 0.0
    facts = [fact for data in (epochs, reference.epochs) for fact in (np.mean(data), np.std(data, ddof=1), len(data))]
    return float(scipy.stats.ttest_ind_from_stats(*facts, equal_var=False, alternative="less").pvalue)


def findings(cells: Iterable[Cell]) -> list[Finding]:
    """A flag for every cell that converges faster than it should, and how many were looked at."""
    flags, compared = [], 0
    for cell in cells:
        reference = reference_of(cell)
        if reference is None or len(cell.epochs) < 3:
            continue
        compared += 1
        p = too_fast(cell.epochs, reference)
        if p < ALPHA:
            mine, theirs = (sum(values) / len(values) for values in (cell.epochs, reference.epochs))
            kind = "official reference convergence" if reference.official else "published runs"
            sentence = (
                f"Converges faster than it should: {mine:.3g} epochs against {theirs:.3g} of {kind} at batch "
                f"{reference.batch} (p = {p:.2g}; {reference.source})."
            )
            flags.append(Finding("flag", cell.title, sentence))
    if compared:
        flags.append(
            Finding(
                "note", "convergence", f"{compared} cells were held against reference convergence: {len(flags)} faster."
            )
        )
    return flags


@cache
def _official(benchmark: str, round_: str) -> tuple[Reference, ...]:
    """Of the round's own set, else of the nearest later one that has the same target."""
    if rules.target(benchmark, round_) != rules.target(benchmark, "v1.1" if round_ < "v1.1" else round_):
        return ()
    wanted = f"{round_.lstrip('v')}.0"
    later = [known for known in _ROUNDS if known >= wanted]
    folder = Path(rcp_checker.__file__).parent / f"training_{later[0] if later else _ROUNDS[-1]}"
    file = folder / f"rcps_{benchmark}.json"
    if not file.exists():
        return ()
    return tuple(
        Reference(
            benchmark, int(record["BS"]), tuple(map(float, record["Epochs to converge"])), True, f"{key}, {folder.name}"
        )
        for key, record in json.loads(file.read_text()).items()
    )


@cache
def _observed(benchmark: str, round_: str) -> tuple[Reference, ...]:
    with open(_OBSERVED, newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["benchmark"], row["round"]) == (benchmark, round_)]
    return tuple(
        Reference(
            benchmark,
            int(row["global_batch_size"]),
            tuple(float(word) for word in row["epochs"].split()),
            False,
            row["source"],
        )
        for row in rows
        if row["global_batch_size"].isdigit() and len(row["epochs"].split()) > 2
    )
