"""Systems that are pods."""

import pytest

from timetrial.runner.results.analysis import pods
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse import sources


@pytest.mark.parametrize(
    ("hosts", "num_runs", "is_noted"),
    [
        (("pod-1", "pod-2", "pod-3"), 1, True),
        (("pod-1", "pod-2"), 1, False),
        (("pod-1", "pod-2", "pod-3"), 3, False),  # as many as a comparison of systems needs
        (("", "", ""), 1, False),  # published logs name no host
        (("another", "another", "another"), 1, False),  # named by the user
    ],
)
def test_pods_of_one_system_are_noted(published, hosts, num_runs, is_noted):
    for number in range(len(hosts)):
        tree = published(f"pod-{number + 1}", [30] * num_runs, 60.0)
    groups = group_runs(sources.read_runs([tree]))
    for group, host in zip(sorted(groups, key=lambda group: group.system), hosts, strict=True):
        for run in group.runs:
            run.host = host
    found = list(pods.check(groups))
    assert len(found) == is_noted
    if is_noted:
        assert found[0].message.startswith("3 systems with a run or two each are named after their hosts.")
