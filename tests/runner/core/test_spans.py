"""Spans of time."""

from timetrial.runner.core.spans import union_length


def test_time_that_several_spans_cover_counts_once():
    assert union_length([]) == 0
    assert union_length([(10, 12), (5, 6), (11, 11.5), (11.5, 13), (20, 21)]) == 5
    assert union_length([(-3, -1), (-2, 1)]) == 4
