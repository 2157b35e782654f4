"""Check whether run groups converge in fewer epochs than their recipe should: MLPerf's rule for convergence points.

Official reference convergence points (RCPs) come from the installed mlperf_logging package, which has them from round
v1.0 on. Its rule (training rules, section "Reference Convergence Points") compares olympic means in a one-sided t test
with the reference's standard deviation for both sides. Two things are added. The deviation has a floor, the rounding
error of the group's grid of evaluations. And where GNMT, Transformer and NCF have published runs as their reference,
the entries are clusters: the variance between systems counts.
"""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # `scipy.stats` is imported on first use, so that it does not delay a command
from mlperf_logging import rcp_checker
from scipy.special import stdtr

from ..parse import rules
from ..parse.external import REFERENCE_DATA
from ..parse.progress import MAX_EPOCHS
from . import stats
from .findings import Finding, FindingKind
from .groups import RunGroup

ALPHA = 0.05  # of each one-sided test, as in MLPerf's rule, and the false discovery rate of a report
_MIN_RUNS = 3  # an olympic mean needs three
_MIN_ENTRIES = 2  # a single published entry does not say how far systems differ
_OBSERVED = REFERENCE_DATA / "observed_convergence.csv"
_RCP_FOLDER = Path(rcp_checker.__file__).parent
_IGNORED_RULESET = "1.0.0"  # its learning rates and weight decays are in other units


@dataclass(frozen=True)
class ReferenceConvergence:
    """Epochs (or samples, see `unit`) to converge of a reference at one global batch size.

    `mean` is the olympic mean, averaged over the entries; `deviation` the standard deviation within entries, and
    `entry_deviation` that of their means (0 for a single one). `runs` holds the number of runs of each entry that an
    olympic mean leaves. `official` marks RCPs of MLPerf.
    """

    global_batch_size: int
    unit: str
    mean: float
    deviation: float
    entry_deviation: float
    runs: tuple[int, ...]
    official: bool
    source: str

    def p_value(self, mean: float, runs: int, floor: float = 0.0) -> float:
        """Return the one-sided p of an olympic mean of `runs` runs; a small p means too few epochs.

        `floor` bounds the standard deviation from below. With several entries the group counts as one more of them:
        the variance between entries is estimated as in a one-way analysis of variance with random effects, the
        degrees of freedom after Satterthwaite (1946).
        """
        variance, entries = max(self.deviation, floor) ** 2, len(self.runs)
        left = runs - 2
        within = variance * sum(1 / number for number in self.runs) / entries  # of one entry's mean
        between = max(self.entry_deviation**2 - within, 0.0)
        error = variance / left + within / entries + between * (1 + 1 / entries)
        dof = float(left + sum(self.runs) - 2)
        if not error:
            return float(mean >= self.mean)
        if between:
            by_entry = self.entry_deviation**2 * (1 + 1 / entries)
            dof = error**2 / (by_entry**2 / (entries - 1) + (error - by_entry) ** 2 / dof)
        return float(stdtr(dof, (mean - self.mean) / math.sqrt(error)))


def check(groups: Iterable[RunGroup]) -> list[Finding]:
    """Flag the groups that converge faster than their reference, by Benjamini and Hochberg (1995) over all groups.

    The last finding says how many were checked. Groups with fewer than three runs or two failed ones are not.
    """
    tested = []
    for group in groups:
        mean = stats.olympic_mean(group.epoch_sample.values, group.num_failed)
        reference = find_reference(group) if mean is not None else None
        if mean is not None and reference is not None:
            runs = len(group.epoch_sample.values) + group.num_failed
            floor = group.epoch_floor * float(np.mean(group.epoch_sample.values))
            tested.append((group, mean, reference, reference.p_value(mean, runs, floor)))
    if not tested:
        return []
    adjusted = scipy.stats.false_discovery_control([p for *_, p in tested])
    findings = []
    for (group, mean, reference, p), adjusted_p in zip(tested, adjusted, strict=True):
        if adjusted_p < ALPHA:
            kind = "official reference convergence points" if reference.official else "published runs"
            message = (
                f"Converges faster than expected: olympic mean of {mean:.4g} {reference.unit} vs. {reference.mean:.4g} "
                f"of {kind} at batch size {reference.global_batch_size} (one-sided p = {p:.2g}; {reference.source})."
            )
            findings.append(Finding(FindingKind.FLAG, group.title, message))
    checked = "1 run group was" if len(tested) == 1 else f"{len(tested)} run groups were"
    message = (
        f"{checked} compared with reference convergence, at a false discovery rate of {ALPHA:.0%}: "
        f"{len(findings) or 'none'} faster."
    )
    return [*findings, Finding(FindingKind.NOTE, "convergence", message)]


def find_reference(group: RunGroup) -> ReferenceConvergence | None:
    """Return the reference for a group's model, target and global batch size, None if there is none.

    Published runs of the group's own system are not its reference.
    """
    run = group.runs[0]
    target = rules.quality_target(group.benchmark, group.round)
    if run.global_batch_size is None or target is None or list(target.values()) != list(run.target.values()):
        return None
    reference = _find_official(group, run.global_batch_size) or _find_observed(
        group.benchmark, group.round, run.global_batch_size, group.submitter, group.system
    )
    return reference if reference is not None and reference.unit == group.progress_unit else None


def _find_official(group: RunGroup, batch: int) -> ReferenceConvergence | None:
    """Return the RCP at a batch size, else one interpolated linearly between its neighbors.

    A batch below all of them gets the smallest, as in MLPerf's check; a batch above all of them has none.
    """
    points = _official_points(group.benchmark, group.model, group.round)
    above = next((index for index, point in enumerate(points) if point.global_batch_size >= batch), None)
    if above is None:
        return None
    if above == 0 or points[above].global_batch_size == batch:
        return points[above]
    low, high = points[above - 1], points[above]
    mean, deviation = _interpolate(batch, low, high)
    runs = 2 * (rules.runs_per_score(group.benchmark) or 10)  # as in MLPerf's check
    source = f"interpolated between {low.source} and {high.source}"
    return replace(low, global_batch_size=batch, mean=mean, deviation=deviation, runs=(runs,), source=source)


@cache
def _official_points(benchmark: str, model: str, round_: str) -> tuple[ReferenceConvergence, ...]:
    """Return the pruned RCPs of the round, else of the next later one with the same target, by batch size."""
    first_rcp_round = "v1.1" if round_ < "v1.1" else round_
    if rules.quality_target(benchmark, round_) != rules.quality_target(benchmark, first_rcp_round):
        return ()
    rulesets = sorted(path.name.removeprefix("training_") for path in _RCP_FOLDER.glob("training_*"))
    rulesets = [ruleset for ruleset in rulesets if ruleset != _IGNORED_RULESET]
    ruleset = next((known for known in rulesets if known >= f"{round_.lstrip('v')}.0"), rulesets[-1])
    files = [_RCP_FOLDER / f"training_{ruleset}" / f"rcps_{name}.json" for name in (benchmark, model)]
    file = next((file for file in files if file.exists()), None)
    if file is None:
        return ()
    points = [
        _parse_point(f"{name}, training_{ruleset}", record) for name, record in json.loads(file.read_text()).items()
    ]
    return _prune(sorted(points, key=lambda point: point.global_batch_size))


def _parse_point(source: str, record: Mapping[str, Any]) -> ReferenceConvergence:
    counts_samples = "samples to converge" in record
    epochs = record["samples to converge" if counts_samples else "Epochs to converge"]
    mean = stats.olympic_mean(epochs) or math.nan
    return ReferenceConvergence(
        global_batch_size=int(record["BS"]),
        unit="samples" if counts_samples or mean > MAX_EPOCHS else "epochs",
        mean=mean,
        deviation=float(np.std(epochs)),
        entry_deviation=0.0,
        runs=(len(epochs) - 2,),
        official=True,
        source=source,
    )


def _prune(points: Sequence[ReferenceConvergence]) -> tuple[ReferenceConvergence, ...]:
    """Return the points that bound the epochs from below, by MLPerf's rule.

    Points with a smaller batch than the fastest are left out, then those above the line between their neighbors.
    """
    fastest = min(range(len(points)), key=lambda index: points[index].mean)
    kept = [points[fastest]]
    for point, right in pairwise(points[fastest + 1 :]):
        if point.mean <= _interpolate(point.global_batch_size, kept[-1], right)[0]:
            kept.append(point)
    return (*kept, *points[fastest + 1 :][-1:])


def _interpolate(batch: int, low: ReferenceConvergence, high: ReferenceConvergence) -> tuple[float, float]:
    """Return the mean and the deviation at a batch size between two others."""
    share = (batch - low.global_batch_size) / (high.global_batch_size - low.global_batch_size)
    return low.mean + share * (high.mean - low.mean), low.deviation + share * (high.deviation - low.deviation)


@cache
def _find_observed(benchmark: str, round_: str, batch: int, *excluded: str) -> ReferenceConvergence | None:
    """Return the published entries at a batch size; None for fewer than two.

    Entries whose path has all folders `excluded` (submitter and system) are left out.
    """
    entries = []
    with open(_OBSERVED, newline="") as file:
        for row in csv.DictReader(file):
            epochs = [float(value) for value in row["epochs"].split()]
            is_same = (row["benchmark"], row["round"], row["global_batch_size"]) == (benchmark, round_, str(batch))
            if is_same and len(epochs) >= _MIN_RUNS and not set(excluded) <= set(row["source"].split("/")):
                entries.append(np.array(epochs))
    if len(entries) < _MIN_ENTRIES:
        return None
    means = [float(np.sort(entry)[1:-1].mean()) for entry in entries]
    squares = sum(float(((entry - entry.mean()) ** 2).sum()) for entry in entries)
    return ReferenceConvergence(
        global_batch_size=batch,
        unit="epochs",
        mean=float(np.mean(means)),
        deviation=math.sqrt(squares / sum(map(len, entries))),
        entry_deviation=float(np.std(means, ddof=1)),
        runs=tuple(len(entry) - 2 for entry in entries),
        official=False,
        source=f"{len(entries)} published entries",
    )
