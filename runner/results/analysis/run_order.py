"""Check whether runs of two settings were made in turn: else a drift of the machine looks like an effect."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ...record.run_record import Attempt
from .findings import Finding, FindingKind
from .groups import RunGroup
from .throughput_groups import ThroughputGroup, flatten_settings

_MIN_RUNS = 2  # of each setting on one machine


@dataclass(frozen=True)
class _OrderedGroup:
    """Runs with the same settings, and by machine the times at which they started."""

    settings: Mapping[str, object]
    starts: Mapping[str, Sequence[float]]


def check(groups: Iterable[RunGroup], throughput_groups: Iterable[ThroughputGroup]) -> list[Finding]:
    """Flag each setting whose values were run in blocks: all runs of one value, then all of the other.

    Compared are training runs, and throughput runs, that differ in this setting only and ran on one machine, at least
    two of each. Published logs are not checked, because they do not name their machine.
    """
    return [
        *_check([group for run_group in groups if (group := _order_training(run_group))]),
        *_check([_OrderedGroup(group.settings, _starts_by_host(group.attempts)) for group in throughput_groups]),
    ]


def _order_training(group: RunGroup) -> _OrderedGroup | None:
    records = [run.run_record for run in group.runs if run.run_record is not None]
    if not records:
        return None
    settings = {"accelerator": group.runs[0].accelerator, **flatten_settings(records[0].config)}
    return _OrderedGroup(settings, _starts_by_host(record.attempts[-1] for record in records if record.attempts))


def _starts_by_host(attempts: Iterable[Attempt]) -> dict[str, list[float]]:
    starts: dict[str, list[float]] = {}
    for attempt in attempts:
        starts.setdefault(attempt.hostname, []).append(attempt.started_at)
    return {host: times for host, times in starts.items() if len(times) >= _MIN_RUNS}


def _check(groups: Sequence[_OrderedGroup]) -> Iterable[Finding]:
    """Yield a flag for each setting with pairs of groups that ran in blocks on all machines that they share."""
    hosts_by_setting: dict[str, list[str]] = {}
    for first, second in combinations([group for group in groups if group.starts], 2):
        shared = [host for host in first.starts if host in second.starts]
        if shared and all(_is_in_blocks(first.starts[host], second.starts[host]) for host in shared):
            settings = first.settings, second.settings
            keys = [key for key in {**settings[0], **settings[1]} if settings[0].get(key) != settings[1].get(key)]
            if len(keys) == 1:
                hosts_by_setting.setdefault(keys[0], []).append(shared[0])
    for key, hosts in hosts_by_setting.items():
        pairs = "two groups" if len(hosts) == 1 else f"{len(hosts)} pairs of groups"
        yield Finding(
            FindingKind.FLAG,
            key,
            f"The runs of {pairs} that differ only in {key} were made in blocks, one after the other, on "
            f"{', '.join(dict.fromkeys(hosts))}: drift (temperature, other users) cannot be told from the setting. "
            f"Interleave them: in a sweep, name the seed first, as in `-m seed=1,2,3 {key.removesuffix('.name')}=...`.",
        )


def _is_in_blocks(first: Sequence[float], second: Sequence[float]) -> bool:
    return max(first) < min(second) or max(second) < min(first)
