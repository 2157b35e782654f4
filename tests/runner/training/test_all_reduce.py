"""The all-reduce benchmark, over ranks in processes of their own."""

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from timetrial.runner.core.errors import LostRank
from timetrial.runner.training import all_reduce, distributed


@pytest.mark.integration
def test_all_reduce_works_for_any_size_and_with_or_without_peer_to_peer(monkeypatch):
    monkeypatch.setattr(all_reduce, "_TIMEOUT_SECONDS", 600.0)  # beside hundreds of processes, imports take minutes
    for ranks, mib, peer_to_peer in ((2, 1, True), (3, 2, False)):
        assert all_reduce.measure("cpu", ranks, mib=mib, peer_to_peer=peer_to_peer) > 0


def test_bus_bandwidth_is_that_of_the_slowest_link(monkeypatch):
    """2(n - 1)/n of the tensor, by a clock that advances a second per reading: four reductions in one second."""
    ticks = iter(range(100))
    # The module's own clock: other threads of this process read time.perf_counter too.
    monkeypatch.setattr(all_reduce, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    printed = []
    monkeypatch.setattr("builtins.print", printed.append)
    world = all_reduce.distributed.World(size=4)
    monkeypatch.setattr(type(world), "all_reduce_sum", lambda self, tensor: tensor.fill_(4.0))
    monkeypatch.setattr(type(world), "barrier", lambda self: None)

    class JoinedWorld:
        def __enter__(self):
            return world

        def __exit__(self, *error):
            return None

    monkeypatch.setattr(all_reduce.distributed, "join_world", lambda *arguments, **options: JoinedWorld())
    monkeypatch.setattr(sys, "argv", ["all_reduce", "cpu", "1"])
    monkeypatch.setenv("LOCAL_RANK", "0")
    all_reduce.main()
    (line,) = printed
    assert float(line.removeprefix("all-reduce:")) == pytest.approx(1.5 * 2**20 * 4 / 1e9)


@pytest.mark.integration
def test_failing_ranks_raise_lost_rank():
    with pytest.raises(LostRank, match="2 ranks could not run an all-reduce"):
        all_reduce.measure("nonsense", 2)


@pytest.mark.integration
def test_peer_to_peer_setting_overrides_the_environment():
    program = (
        "import os, torch; from timetrial.runner.training import distributed as d\n"
        "with d.join_world(torch.device('cpu'), 60, peer_to_peer={}) as w: print(os.environ['NCCL_P2P_DISABLE'])"
    )
    for peer_to_peer, before, after in ((False, "0", "1"), (True, "1", "0")):
        command = [sys.executable, "-P", "-c", program.format(peer_to_peer)]
        environment = os.environ | {"NCCL_P2P_DISABLE": before, "OMP_NUM_THREADS": "1"}
        with distributed.local_store() as store:
            ranks = [
                subprocess.Popen(
                    command, env=environment | distributed.rank_environment(store, rank, rank, 2),
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
                for rank in range(2)
            ]  # fmt: skip
            for rank in ranks:
                output, errors = rank.communicate(timeout=120)
                assert output.strip() == after, errors


@pytest.mark.integration
def test_timeout_kills_all_ranks(monkeypatch):
    """Left alive, they would occupy the GPUs of the next run."""
    monkeypatch.setattr(all_reduce, "_TIMEOUT_SECONDS", 2.5)  # importing PyTorch alone takes longer
    with pytest.raises(LostRank, match="did not finish an all-reduce within"):
        all_reduce.measure("cpu", 3, mib=4096)
    ranks = [process for process in psutil.process_iter(["cmdline"]) if "4096" in (process.info["cmdline"] or ())]
    assert not [process for process in ranks if process.status() != psutil.STATUS_ZOMBIE]
