"""Threads share counters, keep the order and are cancelled together."""

import threading

import pytest

from timetrial.datasets.download.worker_pool import WorkerPool
from timetrial.runner.core.errors import ConfigurationError, Stopped
from timetrial.runner.core.progress import no_progress


def test_concurrent_reports_and_order():
    reports = []
    pool = WorkerPool(4, lambda *report: reports.append(report))
    count = pool.byte_counter("adding", 4000)
    pool.run([lambda: [count(1) for _ in range(1000)] for _ in range(4)])
    assert reports[-1] == ("adding", 4000, 4000)
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
    assert list(pool.map(lambda number: number * 2, range(25_000))) == [2 * number for number in range(25_000)]
    with pytest.raises(ConfigurationError, match="--jobs must be 1 or more"):
        WorkerPool(0, no_progress)
    assert threading.active_count() < 20


def test_failure_cancels_other_tasks():
    pool, begun = WorkerPool(2, no_progress), threading.Event()
    count, ended = pool.byte_counter("adding", 10), []

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
        pool.run([patient, hasty], lambda: ended.append("stopped"))
    assert sorted(ended) == ["patient", "stopped"]
    with pytest.raises(Stopped):
        list(pool.map(abs, [1]))
