"""Ranks of a sweep: processes that share their imports, or all, end with their launcher, and report how they ended."""

import itertools
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.record.record_file import read_record
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse.sources import read_runs

# The worker counts its imports in a file; a rank prints what it has, or waits for a signal.
WORKER = """
import os, signal, sys, time
from timetrial.runner.core.signals import signal_when_parent_ends
from timetrial.runner.launch.rank_pool import wait_for_run
open(os.environ["IMPORTS"], "a").write("x")
def main():
    signal_when_parent_ends(signal.SIGTERM)
    path = wait_for_run().run_dir
    print(path, os.getpid(), os.getppid(), os.environ["RANK"], sys.stdin.read() == "", flush=True)
    if path.name == "long":
        time.sleep(60)
    os._exit(7)
"""
LAUNCHER = """
import os, signal, sys
from pathlib import Path
from timetrial.runner.launch import rank_pool
rank_pool._WORKER = "counting_worker"
with rank_pool.RankPool(for_sweep=True) as pool:
    pool.start_waiting(1)
    first = pool.spawn_rank(Path("/first"), {"RANK": "0"})
    assert first.wait() == first.poll() == 7
    second = pool.spawn_rank(Path("/long"), {"RANK": "0"})
    beside = pool.spawn_rank(Path("/beside"), {"RANK": "1"})
    assert beside.wait() == 7 and second.poll() is None
    if sys.argv[1] == "end":
        second.send_signal(signal.SIGKILL)
        assert second.wait() == -signal.SIGKILL
        second.kill()
    elif sys.argv[1] == "lose server":
        lost = pool._servers[0]._process
        lost.kill()
        assert second.wait() == -signal.SIGKILL
        lost.poll = lambda: None  # the kernel closes the socket of a killed process before it says that it has ended
        assert pool.spawn_rank(Path("/first"), {"RANK": "0"}).wait() == 7
    else:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("usage", ["end", "lose server", "kill"])
def test_a_server_forks_the_ranks_of_one_run_after_another(tmp_path, monkeypatch, usage):
    (tmp_path / "counting_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("IMPORTS", str(tmp_path / "imports"))
    completed = subprocess.run(
        [sys.executable, "-P", "-c", LAUNCHER, usage], capture_output=True, text=True, timeout=60
    )
    assert completed.returncode == (-signal.SIGKILL if usage == "kill" else 0), completed.stderr
    ranks = [line.split() for line in completed.stdout.splitlines()]
    assert [rank[0] for rank in ranks[:3]] == ["/first", "/long", "/beside"]
    assert all(rank[4] == "True" for rank in ranks)
    pids, servers = [int(rank[1]) for rank in ranks], [int(rank[2]) for rank in ranks]
    assert len({*pids}) == len(pids)
    assert servers[0] == servers[1] != servers[2]
    assert (tmp_path / "imports").read_text() == "xx"  # the third run's rank is forked by the server that is idle
    deadline = time.monotonic() + 30
    while any(map(psutil.pid_exists, {*pids, *servers})) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, {*pids, *servers}))


# The worker ends runs as a rank does, and stays for those of its setting unless it cannot free one.
STAYING_WORKER = """
import os, signal, sys
from timetrial.runner.core.signals import signal_when_parent_ends
from timetrial.runner.launch.rank_pool import wait_for_run
def main():
    signal_when_parent_ends(signal.SIGTERM)
    assignment = wait_for_run()
    while True:
        name = assignment.run_dir.name
        print(name, os.getpid(), os.environ["RANK"], "colorsys" in sys.modules, flush=True)
        if not assignment.setting:
            os._exit(7)
        if name == "not freed":
            os._exit(0)
        assignment.end(0)
        assignment = assignment.wait_for_next() or os._exit(0)
"""
STAYING_LAUNCHER = """
import os, signal, time
from pathlib import Path
from timetrial.runner.launch import rank_pool
rank_pool._WORKER = "staying_worker"
with rank_pool.RankPool(for_sweep=True) as pool:
    pool.start_waiting(1)
    def run(name, setting, code=0):
        rank = pool.spawn_rank(Path("/") / name, {"RANK": "0"}, setting)
        assert rank.wait() == code, (name, rank.returncode)
        return rank
    run("first", "a")
    pool.import_modules(["colorsys"])
    run("second", "a")
    run("other", "b")
    run("alone", "", 7)
    run("not freed", "b")
    run("after it", "b")
    os.kill(run("killed", "b").pid, signal.SIGKILL)
    run("after that", "b")
    assert len(pool._servers) == 1
"""


def test_a_rank_stays_for_runs_of_its_setting(tmp_path, monkeypatch):
    (tmp_path / "staying_worker.py").write_text(STAYING_WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    completed = subprocess.run(
        [sys.executable, "-P", "-c", STAYING_LAUNCHER], capture_output=True, text=True, timeout=60
    )
    assert completed.returncode == 0, completed.stderr
    lines = [line.rsplit(maxsplit=3) for line in completed.stdout.splitlines()]
    names = ["first", "second", "other", "alone", "not freed", "after it", "killed", "after that"]
    assert [line[0] for line in lines] == names
    processes = [line[1] for line in lines]
    stayed = [one == other for one, other in itertools.pairwise(processes)]
    assert stayed == [True, False, False, False, False, True, False]
    assert len({*processes}) == 6
    assert lines[1][3] == "True"  # a rank that stays imports what its server would
    deadline = time.monotonic() + 30
    while any(psutil.pid_exists(int(line[1])) for line in lines) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(int(line[1])) for line in lines)


@pytest.mark.integration
def test_runs_that_share_a_process_are_those_of_separate_ones(tiny_ncf, tmp_path):
    earlier_runs, qualities = [], []
    for shares in ("true", "false"):
        words = ["run", "-m", *tiny_ncf, "recipe.max_epochs=2", "seed=1,2,3", f"launcher.reuse_process={shares}"]
        command = [sys.executable, "-P", "-m", "timetrial", *words, f"runs_dir=runs_{shares}"]
        completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert completed.returncode in (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED), completed.stderr
        records = [read_record(path.parent) for path in (tmp_path / f"runs_{shares}").rglob("status.json")]
        records.sort(key=lambda record: record.attempts[0].started_at)
        earlier_runs.append([record.attempts[0].earlier_runs for record in records])
        qualities.append([[block.quality for block in record.training.blocks] for record in records])
    assert earlier_runs == [[0, 1, 2], [0, 0, 0]]
    assert qualities[0] == qualities[1]
    assert qualities[0][0] != qualities[0][1]
    groups = group_runs(read_runs([tmp_path / "runs_true", tmp_path / "runs_false"]))
    assert [len(group.runs) for group in groups] == [3, 3]


@pytest.mark.integration
def test_the_runs_of_a_sweep_import_once(tiny_ncf, tmp_path):
    words = ["run", "-m", *tiny_ncf, "seed=1,2", "gpus=2", "recipe.max_epochs=1", "runs_dir=runs"]
    command = [sys.executable, "-P", "-m", "timetrial", *words]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert completed.returncode in (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED), completed.stderr
    lines = [line for line in (completed.stdout + completed.stderr).splitlines() if line.startswith("ready after")]
    assert len(lines) == 2


@pytest.mark.integration
def test_collections_of_a_rank_leave_out_what_its_start_made(tiny_ncf, tmp_path):
    """A collection that visits the modules of PyTorch takes a tenth of a second, a third of a small run."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, gc, os\n"
        "def tell():\n"
        "    with open('objects', 'a') as file:\n"
        "        print(os.getpid(), gc.isenabled(), gc.get_freeze_count(), len(gc.get_objects()), file=file)\n"
        "atexit.register(tell)\n"
    )
    words = ["run", "-m", *tiny_ncf, "seed=1,2", "recipe.max_epochs=1", "runs_dir=runs"]
    command = [sys.executable, "-P", "-m", "timetrial", *words]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    completed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert completed.returncode in (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED), completed.stderr
    lines = [line.split() for line in (tmp_path / "objects").read_text().splitlines()]
    ranks = [line for line in lines if int(line[2])]
    assert len({line[0] for line in ranks}) == 2
    for _, enabled, aside, others in ranks:
        assert enabled == "True"
        assert int(others) < int(aside) / 10
