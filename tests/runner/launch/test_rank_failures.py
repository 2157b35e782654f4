"""Ranks that are lost or fail while others wait for them."""

import os
import signal
import time
from pathlib import Path

import pytest

from timetrial.runner.core.errors import Exit
from timetrial.runner.record.run_dir import RunDir

pytestmark = pytest.mark.integration


def find_ranks(run_dir):
    """Return the process ids of a run's workers by rank."""
    pids = {}
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            path = output.readlink()
        except OSError:
            continue
        if path.parent == run_dir and path.name.startswith("stdout_"):
            pids[int(path.stem.removeprefix("stdout_"))] = int(output.parts[2])
    return pids


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_rank_ends_the_other_ranks_within_a_minute(start_endless, tmp_path, number):
    process = start_endless(tmp_path / "run", "gpus=2", "launcher.hang_timeout_seconds=5")
    os.kill(find_ranks(tmp_path / "run")[1], number)
    killed_at = time.monotonic()
    output = process.communicate(timeout=600)[0]
    assert process.returncode == Exit.LOST_RANK, output
    assert time.monotonic() - killed_at < 60
    assert "rank" in output.lower()
    assert not find_ranks(tmp_path / "run")
    assert RunDir(tmp_path / "run", 1).record().state == "lost rank"


def test_failed_rank_ends_a_rank_that_waits_for_it(run_to_end, tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "uneven.py").write_text(
        "import os, pathlib, time\n"
        "from timetrial.runner.core.errors import OutOfMemory\n"
        "from timetrial.workloads.ncf.workload import NCF\n"
        "class Uneven(NCF):\n"
        "    def compute_loss(self, model, batch):\n"
        "        if os.environ['RANK'] == '0':\n"
        "            time.sleep(600)\n"  # as in a collective that never completes
        "        pathlib.Path(os.environ['MARK']).touch()\n"
        "        raise OutOfMemory('No room on rank 1.')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    completed = run_to_end("gpus=2", "workload.workload=uneven.Uneven", f"run_dir={tmp_path}/run")
    assert completed.returncode == Exit.OUT_OF_MEMORY, completed.stdout + completed.stderr
    assert time.time() - (tmp_path / "mark").stat().st_mtime < 25  # without the watchdog it takes 30 s
    assert not find_ranks(tmp_path / "run")
