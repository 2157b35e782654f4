"""Rank the entries of a published round by MLPerf's score, and tell leads from luck.

The score is a time to the target, so the times of entries with different recipes can be ranked, although `comparison`
would not call their difference one of hardware. A lead is the ratio of the next entry's time-to-train to this one's, of
the runs that count in the score: those that reached the target, times the factor that MLPerf applied.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .groups import RunGroup
from .intervals import Interval, LogEstimate
from .stats import coefficient_of_variation
from .time_ratio import unpaired_time_ratio
from .verdicts import ALONE, MARGIN, Levels, Verdict, decide, family_levels


@dataclass(frozen=True)
class RankedGroup:
    """An entry and its lead over the next one; None for the last entry and for one without a score.

    `levels` are those at which the lead is decided among those of its benchmark.
    """

    group: RunGroup
    lead: LogEstimate | None = None
    levels: Levels = ALONE

    @property
    def minutes(self) -> float:
        """MLPerf's score in minutes, infinite without one."""
        return self.group.minutes_scaled or math.inf

    @property
    def verdict(self) -> Verdict | None:
        """Whether it is faster than the next entry."""
        return decide(self.lead, MARGIN, self.levels) if self.lead else None

    @property
    def lead_interval(self) -> Interval | None:
        """The lead with its interval at the level of the verdict."""
        return self.lead.interval(self.levels.difference) if self.lead else None

    @property
    def num_accelerators(self) -> int | None:
        """Number of accelerators, None if it is unknown."""
        return self.group.runs[0].num_accelerators or None

    @property
    def accelerator_minutes(self) -> float | None:
        """The score times the number of accelerators, None if one of them is unknown."""
        number = self.num_accelerators
        return self.minutes * number if number and math.isfinite(self.minutes) else None

    @property
    def time_variation(self) -> float:
        """Coefficient of variation of time-to-train over the runs that reached the target; NaN for one run."""
        return coefficient_of_variation(self.group.minutes)

    @property
    def pace_variation(self) -> float:
        """Coefficient of variation of the time per epoch, or per sample; NaN for one run."""
        return coefficient_of_variation(self.group.seconds_per_epoch)


@dataclass(frozen=True)
class Ranking:
    """The entries of one benchmark of a round, the fastest first; those without a score are last."""

    workload: str
    entries: Sequence[RankedGroup]

    @cached_property
    def scored(self) -> list[RankedGroup]:
        """The entries with a score."""
        return [entry for entry in self.entries if math.isfinite(entry.minutes)]

    @cached_property
    def most_efficient(self) -> RankedGroup | None:
        """The entry with the least score times accelerators; None if no number of accelerators is known."""
        known = [entry for entry in self.scored if entry.accelerator_minutes]
        return min(known, key=lambda entry: entry.accelerator_minutes or math.inf, default=None)

    def relative_efficiency(self, entry: RankedGroup) -> float | None:
        """Return the speed per accelerator relative to that of the best entry, at most 1; None if it is unknown."""
        best = self.most_efficient and self.most_efficient.accelerator_minutes
        return best / entry.accelerator_minutes if best and entry.accelerator_minutes else None


@dataclass(frozen=True)
class Progress:
    """The fastest entry of each round with so many accelerators, of one model trained to one target."""

    model: str
    num_accelerators: int
    best: Mapping[str, RankedGroup]


def rank_round(groups: Iterable[RunGroup]) -> list[Ranking]:
    """Return a ranking for every benchmark of a round; entries of the open division are left out.

    The leads of a benchmark are decided together: at most 5% of rankings call any lead over an equally fast entry
    beyond luck.
    """
    by_workload: dict[str, list[RunGroup]] = {}
    for group in groups:
        if group.runs[0].division != "open":
            by_workload.setdefault(group.workload, []).append(group)
    return [Ranking(workload, _rank(same)) for workload, same in sorted(by_workload.items())]


def list_progress(rankings: Iterable[Ranking]) -> list[Progress]:
    """Return the fastest entries of each model and number of accelerators that at least two rounds have."""
    best: dict[tuple[str, tuple[float, ...], int], dict[str, RankedGroup]] = {}
    for ranking in rankings:
        for entry in ranking.scored:
            if entry.num_accelerators:
                target = tuple(entry.group.runs[0].target.values())
                key = entry.group.model, target, entry.num_accelerators
                best.setdefault(key, {}).setdefault(entry.group.round, entry)  # the fastest comes first
    return [
        Progress(model, number, dict(sorted(by_round.items())))
        for (model, _, number), by_round in sorted(best.items(), key=lambda item: item[0])
        if len(by_round) > 1
    ]


def _rank(groups: Iterable[RunGroup]) -> list[RankedGroup]:
    """Return the groups in order of their score, each with its lead over the next."""
    ordered = sorted(groups, key=lambda group: group.minutes_scaled or math.inf)
    leads = [
        _lead(group, following) if following and following.minutes_scaled else None
        for group, following in zip(ordered, [*ordered[1:], None], strict=True)
    ]
    return list(map(RankedGroup, ordered, leads, family_levels(leads)))


def _lead(group: RunGroup, following: RunGroup) -> LogEstimate:
    ratio = unpaired_time_ratio(following, group, by_machine=False)
    factors = (following.scaling_factor or 1.0) / (group.scaling_factor or 1.0)
    return replace(ratio, log=ratio.log + math.log(factors))
