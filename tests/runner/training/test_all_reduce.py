"""Ranks that add up a tensor, in processes of their own."""

import os
import subprocess
import sys

import psutil
import pytest

from timetrial.runner.core.errors import LostRank
from timetrial.runner.training import all_reduce


def test_ranks_add_up_over_any_size_and_way():
    for ranks, mib, peers in ((2, 1, True), (3, 2, False)):
        assert all_reduce.measure("cpu", ranks, mib=mib, peer_to_peer=peers) > 0


def test_bandwidth_is_that_of_the_slowest_link(monkeypatch):
    """2(n - 1)/n of the tensor, by a clock that ticks a second a look: four sums in one second."""
    ticks = iter(range(100))
    monkeypatch.setattr(all_reduce.time, "perf_counter", lambda: float(next(ticks)))
    said = []
    monkeypatch.setattr("builtins.print", said.append)
    world = all_reduce.distributed.World(size=4)
    monkeypatch.setattr(type(world), "add", lambda self, tensor: tensor.fill_(4.0))
    monkeypatch.setattr(type(world), "barrier", lambda self: None)

    class Joined:
        def __enter__(self):
            return world

        def __exit__(self, *error):
            return None

    monkeypatch.setattr(all_reduce.distributed, "join", lambda *words, **more: Joined())
    monkeypatch.setattr(sys, "argv", ["all_reduce", "cpu", "1"])
    monkeypatch.setenv("LOCAL_RANK", "0")
    all_reduce.main()
    (line,) = said
    assert float(line.removeprefix("all-reduce:")) == pytest.approx(1.5 * 2**20 * 4 / 1e9)


def test_ranks_that_fail_are_said_to():
    with pytest.raises(LostRank, match="2 ranks could not add up"):
        all_reduce.measure("nonsense", 2)


def test_the_setting_reaches_the_collectives_whatever_the_environment_says():
    look = (
        "import os, torch; from timetrial.runner.training import distributed as d\n"
        "with d.join(torch.device('cpu'), 60, peer_to_peer={}) as w: print(os.environ['NCCL_P2P_DISABLE'])"
    )
    for peers, before, after in ((False, "0", "1"), (True, "1", "0")):
        start = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*start, "--no-python", sys.executable, "-P", "-c", look.format(peers)]
        environment = os.environ | {"NCCL_P2P_DISABLE": before, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert "".join(done.stdout.split()) == 2 * after, done.stderr  # both write at once


def test_ranks_do_not_outlive_their_patience(monkeypatch):
    """They would hold the cards of whatever comes next."""
    monkeypatch.setattr(all_reduce, "_PATIENCE_SECONDS", 2.5)  # PyTorch alone takes longer to load
    with pytest.raises(LostRank, match="did not add up a tensor within"):
        all_reduce.measure("cpu", 3, mib=4096)
    left = [one for one in psutil.process_iter(["cmdline"]) if "4096" in (one.info["cmdline"] or ())]
    assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE]
