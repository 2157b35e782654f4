"""Own runs in groups of their own only because `system` is by default the host name, which is another for each pod."""

from collections.abc import Iterable, Sequence

from .findings import Finding, FindingKind
from .groups import RunGroup

_MIN_SYSTEMS = 3  # two may be what is to be compared


def check(groups: Sequence[RunGroup]) -> Iterable[Finding]:
    """Yield a note for each workload and setting of which several systems are host names, with a run or two each."""
    alike: dict[tuple[str, str], list[RunGroup]] = {}
    for group in groups:
        if len(group.runs) < _MIN_SYSTEMS and all(run.host and run.system == run.host for run in group.runs):
            alike.setdefault((group.workload, group.setting), []).append(group)
    for (workload, setting), same in alike.items():
        systems = {group.system for group in same}
        if len(systems) >= _MIN_SYSTEMS:
            yield Finding(
                FindingKind.NOTE,
                f"{workload}, {setting}",
                f"{len(systems)} systems with a run or two each are named after their hosts. If they are pods or nodes "
                "of one system, run with system=NAME: runs of one name are one group, and hosts and GPUs still tell "
                "its machines apart.",
            )
