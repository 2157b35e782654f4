"""Check whether a run group converges in fewer epochs than its recipe should.

Official reference convergence points (RCPs) come from the installed mlperf_logging package, which has them for ResNet,
SSD, RetinaNet and Mask R-CNN from round v1.0 on. For GNMT, Transformer and NCF published runs serve as the reference.
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
from ..parse.external import REFERENCE_DATA
from .findings import Finding
from .groups import RunGroup

ALPHA = 0.05  # of the one-sided test, as in MLPerf's RCP rule
_MIN_RUNS = 3
_OBSERVED = REFERENCE_DATA / "observed_convergence.csv"
_RCP_ROUNDS = ("1.1.0", "2.0.0", "2.1.0", "3.0.0", "3.1.0", "4.0.0")


@dataclass(frozen=True)
class ReferenceConvergence:
    """Epochs to converge of reference runs at one global batch size; `official` for RCPs of MLPerf."""

    benchmark: str
    global_batch_size: int
    epochs: tuple[float, ...]
    official: bool
    source: str


def check(groups: Iterable[RunGroup]) -> list[Finding]:
    """Flag every group that converges faster than its reference; the last finding says how many were checked."""
    findings, num_checked = [], 0
    for group in groups:
        reference = find_reference(group)
        if reference is None or len(group.epochs) < _MIN_RUNS:
            continue
        num_checked += 1
        p = fast_convergence_p_value(group.epochs, reference)
        if p < ALPHA:
            mean, reference_mean = (sum(values) / len(values) for values in (group.epochs, reference.epochs))
            kind = "official reference convergence points" if reference.official else "published runs"
            message = (
                f"Converges faster than expected: {mean:.3g} epochs vs. {reference_mean:.3g} of {kind} at batch size "
                f"{reference.global_batch_size} (p = {p:.2g}; {reference.source})."
            )
            findings.append(Finding("flag", group.title, message))
    if num_checked:
        message = f"{num_checked} run groups were compared with reference convergence: {len(findings)} converge faster."
        findings.append(Finding("note", "convergence", message))
    return findings


def find_reference(group: RunGroup) -> ReferenceConvergence | None:
    """Return the reference for a group's model, target and global batch size, None if there is none.

    Published runs of the group's own system are not its reference.
    """
    run = group.runs[0]
    target = rules.quality_target(group.benchmark, group.round)
    if run.global_batch_size is None or target is None or list(target.values()) != list(run.target.values()):
        return None
    for reference in _official_references(group.benchmark, group.round):
        if reference.global_batch_size == run.global_batch_size:
            return reference
    observed = [
        reference
        for reference in _observed_references(group.benchmark, group.round)
        if reference.global_batch_size == run.global_batch_size
        and not (group.system in reference.source and group.submitter in reference.source)
    ]
    if not observed:
        return None
    epochs = tuple(value for reference in observed for value in reference.epochs)
    source = f"{len(observed)} published entries"
    return ReferenceConvergence(group.benchmark, run.global_batch_size, epochs, False, source)


def fast_convergence_p_value(epochs: Sequence[float], reference: ReferenceConvergence) -> float:
    """Return p of a one-sided Welch test of `epochs` against the reference; a small p means too few epochs.

    The RCP rule uses a pooled standard deviation; Welch's test does not assume equal ones.
    """
    if len(set(epochs)) == 1 and len(set(reference.epochs)) == 1:
        return 1.0 if epochs[0] >= reference.epochs[0] else 0.0
    samples = (epochs, reference.epochs)
    moments = [moment for data in samples for moment in (np.mean(data), np.std(data, ddof=1), len(data))]
    return float(scipy.stats.ttest_ind_from_stats(*moments, equal_var=False, alternative="less").pvalue)


@cache
def _official_references(benchmark: str, round_: str) -> tuple[ReferenceConvergence, ...]:
    """Return the RCPs of the round, else those of the next later round with the same target."""
    first_rcp_round = "v1.1" if round_ < "v1.1" else round_
    if rules.quality_target(benchmark, round_) != rules.quality_target(benchmark, first_rcp_round):
        return ()
    version = f"{round_.lstrip('v')}.0"
    later = [known for known in _RCP_ROUNDS if known >= version]
    folder = Path(rcp_checker.__file__).parent / f"training_{later[0] if later else _RCP_ROUNDS[-1]}"
    file = folder / f"rcps_{benchmark}.json"
    if not file.exists():
        return ()
    return tuple(
        ReferenceConvergence(
            benchmark, int(record["BS"]), tuple(map(float, record["Epochs to converge"])), True, f"{key}, {folder.name}"
        )
        for key, record in json.loads(file.read_text()).items()
    )


@cache
def _observed_references(benchmark: str, round_: str) -> tuple[ReferenceConvergence, ...]:
    with open(_OBSERVED, newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["benchmark"], row["round"]) == (benchmark, round_)]
    return tuple(
        ReferenceConvergence(
            benchmark,
            int(row["global_batch_size"]),
            tuple(float(epochs) for epochs in row["epochs"].split()),
            False,
            row["source"],
        )
        for row in rows
        if row["global_batch_size"].isdigit() and len(row["epochs"].split()) >= _MIN_RUNS
    )
