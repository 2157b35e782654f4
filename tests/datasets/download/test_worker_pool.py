"""Threads count together, keep the order, and end together."""

import threading

import pytest

from timetrial.datasets.download.worker_pool import Crew
from timetrial.runner.core.errors import ConfigurationError, Stopped


def test_many_threads_may_tell_at_once():
    told = []
    crew = Crew(4, lambda *words: told.append(words))
    count = crew.counter("adding", 4000)
    crew.run([lambda: [count(1) for _ in range(1000)] for _ in range(4)])
    assert told[-1] == ("adding", 4000, 4000)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert list(crew.map(lambda number: number * 2, range(25_000))) == [2 * number for number in range(25_000)]
    with pytest.raises(ConfigurationError, match="--jobs must be 1 or more"):
        Crew(0, lambda *words: None)
    assert threading.active_count() < 20


def test_who_fails_stops_the_others():
    crew, begun = Crew(2, lambda *words: None), threading.Event()
    count, ended = crew.counter("adding", 10), []

    def patient():
        begun.set()
        try:
            while True:
                count(0)
        except Stopped:
            ended.append("patient")

    def hasty():
        begun.wait()
        raise ValueError("too hasty")

    with pytest.raises(ValueError, match="too hasty"):
        crew.run([patient, hasty], lambda: ended.append("stopped"))
    assert sorted(ended) == ["patient", "stopped"]
    with pytest.raises(Stopped):
        list(crew.map(abs, [1]))
