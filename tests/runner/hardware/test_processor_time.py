"""Processor time: of a tree of processes, running and ended, and of the idle processors."""

import os
import subprocess
import sys
from collections import namedtuple

import pytest

from timetrial.runner.hardware import processor_time
from timetrial.runner.hardware.processor_time import ProcessTree, allowed_processors, idle_seconds

Times = namedtuple("Times", "user nice system idle iowait irq softirq steal guest")
BURN = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
# A child of the child burns processor time.
NEST = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])"


@pytest.fixture
def start():
    """Start a program and wait until it has used 0.4 s of processor time: start(*arguments) -> process."""
    processes = []

    def run(*arguments):
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen([sys.executable, "-c", *arguments], stdin=pipe, stdout=pipe))
        assert processes[-1].stdout.readline()
        return processes[-1]

    yield run
    for process in processes:
        if process.returncode is None:
            process.communicate(b"\n")


def test_running_and_ended_descendants_count(start):
    tree = ProcessTree(os.getpid())
    before = tree.cpu_seconds()
    child = start(BURN)
    assert tree.cpu_seconds() - before > 0.35
    child.communicate(b"\n")
    assert tree.cpu_seconds() - before > 0.35
    start(NEST, BURN)
    assert tree.cpu_seconds() - before > 0.7


def test_processes_outside_of_the_tree_do_not_count(start):
    tree = ProcessTree(start("print(flush=True)\ninput()").pid)
    before = tree.cpu_seconds()
    start(BURN)
    assert tree.cpu_seconds() - before < 0.2
    assert ProcessTree(2**22 + 1).cpu_seconds() == 0.0


def test_idle_time_excludes_processes_and_the_hypervisor(monkeypatch):
    times = [Times(100, 10, 20, 300, 4, 2, 1, 50, 0), Times(0, 0, 0, 1000, 0, 0, 0, 0, 0)]
    monkeypatch.setattr(processor_time.psutil, "cpu_times", lambda percpu: times)
    assert idle_seconds([0]) == 307
    assert idle_seconds([0, 1]) == 1307


@pytest.mark.parametrize("times", [[], [Times(*[0.0] * 9)] * 2])
def test_idle_time_is_unknown_where_the_system_does_not_count_it(monkeypatch, times):
    monkeypatch.setattr(processor_time.psutil, "cpu_times", lambda percpu: times)
    assert idle_seconds([0, 1]) is None


def test_idle_time_of_this_host_advances_within_its_processors():
    processors = allowed_processors(os.getpid())
    assert processors == sorted(os.sched_getaffinity(0))
    first, second = idle_seconds(processors), idle_seconds(processors)
    assert 0 < first <= second
