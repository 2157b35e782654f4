"""Comparisons as JSON."""

import json

from timetrial.runner.results.analysis.comparison import compare
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse import sources
from timetrial.runner.results.report import comparison_json

EPOCHS = [10, 9, 10, 11, 10, 10, 9, 11, 10, 10]


def test_json_has_the_documented_keys(published):
    published("a", EPOCHS, 60.0)
    groups = group_runs(sources.read_runs([published("b", EPOCHS, 50.0)]))
    entry = comparison_json.to_json(compare(*sorted(groups, key=lambda group: group.system)))
    assert json.loads(json.dumps(entry)) == entry
    keys = {"baseline", "other", "verdict", "ratio", "low", "high", "epochs", "seconds_per_epoch", "runs", "failures"}
    assert keys | {"reasons"} <= entry.keys()
    assert entry["low"] < entry["ratio"] < entry["high"]
