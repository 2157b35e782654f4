"""Measure the all-reduce bandwidth of this machine, which also shows whether its ranks can communicate."""

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack

import torch

from ..core.errors import LostRank
from ..hardware import devices
from . import distributed

_MIB = 2**20
_MIB_ONCE = 64  # of the tensor by which `measure_once` measures a device
_ROUNDS = 5
_REDUCTIONS_PER_ROUND = 4  # back to back, so that launching one overlaps with the one before
_TIMEOUT_SECONDS = 120.0
_RESULT_PREFIX = "all-reduce:"


def measure(accelerator: str, ranks: int, *, mib: int = 64, peer_to_peer: bool = True) -> float:
    """Return the bus bandwidth in GB/s of an all-reduce of `mib` MiB over `ranks` new processes.

    Bus bandwidth is 2(n - 1)/n times the bytes of the tensor over the seconds of one all-reduce: the traffic of
    the slowest link of a ring, independent of n. The fastest round counts, by its mean. Without
    `peer_to_peer`, the data go through host memory. Raises `LostRank` unless the ranks get the right sum in time.
    """
    arguments = [sys.executable, "-P", "-m", __name__, accelerator, str(mib), "peers" if peer_to_peer else "host"]
    with distributed.local_store() as store, ExitStack() as closing:
        processes = []
        for rank in range(ranks):
            variables = {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
            variables |= distributed.rank_environment(store, rank, rank, ranks)
            process = subprocess.Popen(
                arguments, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            closing.enter_context(process)
            closing.callback(process.kill)  # would keep the GPU busy
            processes.append(process)
        try:
            deadline = time.monotonic() + _TIMEOUT_SECONDS
            outputs = [process.communicate(timeout=deadline - time.monotonic()) for process in processes]
        except subprocess.TimeoutExpired as error:
            raise LostRank(f"{ranks} ranks did not finish an all-reduce within {_TIMEOUT_SECONDS:g} s.") from error
        for process, (_, errors) in zip(processes, outputs, strict=True):
            if process.returncode:
                last_line = (errors.strip().splitlines() or ["no error message"])[-1]
                raise LostRank(f"{ranks} ranks could not run an all-reduce: {last_line}")
        return float(json.loads(outputs[0][0].splitlines()[-1].removeprefix(_RESULT_PREFIX)))


def main() -> None:
    """Run one rank, with arguments ACCELERATOR [MIB [peers|host]]; rank 0 prints the bandwidth."""
    accelerator, mib, path = [*sys.argv[1:], *("64", "peers")[len(sys.argv) - 2 :]]
    device = devices.select_device(accelerator, int(os.environ["LOCAL_RANK"]))
    with distributed.join_world(device, _TIMEOUT_SECONDS, peer_to_peer=path == "peers") as world:
        bandwidth = bus_gb_s(world, device, int(mib))
        if world.rank == 0:
            print(f"{_RESULT_PREFIX}{json.dumps(bandwidth)}")


def measure_once(world: distributed.World, device: torch.device) -> float:
    """Return the bus bandwidth in GB/s among joined ranks, the same on all; only the first call measures it."""
    if world.bus_gb_s is None:
        bandwidth = bus_gb_s(world, device, _MIB_ONCE if device.type != "cpu" else 1)
        world.bus_gb_s = float(world.broadcast(bandwidth))
    return world.bus_gb_s


def bus_gb_s(world: distributed.World, device: torch.device, mib: int) -> float:
    """Return the bus bandwidth in GB/s among joined ranks; raise `LostRank` for a wrong sum."""
    tensor = torch.ones(mib * _MIB // 4, device=device)
    low, high = (float(value) for value in world.all_reduce_sum(tensor).aminmax())  # waits for the device
    if low != world.size or high != world.size:
        raise LostRank(f"The sum of ones over {world.size} ranks is between {low:g} and {high:g}.")
    tensor.zero_()  # keeps repeated sums finite
    seconds = min(_mean_seconds(world, tensor) for _ in range(_ROUNDS))
    return 2 * (world.size - 1) / world.size * tensor.nbytes / 1e9 / seconds


def _mean_seconds(world: distributed.World, tensor: torch.Tensor) -> float:
    """Return the mean seconds of an all-reduce in one round."""
    world.barrier()
    started = time.perf_counter()
    for _ in range(_REDUCTIONS_PER_ROUND):
        world.all_reduce_sum(tensor)
    tensor[-1].item()  # waits for the device
    return (time.perf_counter() - started) / _REDUCTIONS_PER_ROUND


if __name__ == "__main__":
    main()
