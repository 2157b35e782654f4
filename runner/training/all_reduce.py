"""All ranks of this machine add up a tensor: do they find one another, is the sum right, how fast is it?"""

import json
import os
import subprocess
import sys
import time

import psutil
import torch

from ..core.errors import LostRank
from ..hardware import devices
from . import distributed

_MIB = 2**20
_ROUNDS = 5
_SUMS = 4  # in a round, one behind the other, so that starting one is hidden by the one before
_PATIENCE_SECONDS = 120.0
_MARK = "all-reduce:"


def measure(name: str, ranks: int, *, mib: int = 64, peer_to_peer: bool = True) -> float:
    """Bus bandwidth in GB/s of adding up `mib` MiB over `ranks` processes on the accelerator group `name`.

    That is 2(n - 1)/n times the tensor's bytes over the seconds of one sum, the best round's mean: what the slowest
    link carries if the sum is made in a ring, whatever n (as the vendors' own tests define it). Without `peer_to_peer`
    all goes through the host's memory. Raises `LostRank` where they do not come to the right sum in two minutes.
    """
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    words = [name, str(mib), "peers" if peer_to_peer else "host"]
    environment = os.environ | {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "-m", __name__, *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as launcher:  # fmt: skip
        try:
            out, errors = launcher.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise LostRank(f"{ranks} ranks did not add up a tensor within {_PATIENCE_SECONDS:g} s.") from error
        finally:
            if launcher.poll() is None:  # its ranks with it, which have sessions of their own and would hold the cards
                above = psutil.Process(launcher.pid)
                for process in (*above.children(recursive=True), above):
                    process.kill()
    said = [line.removeprefix(_MARK) for line in out.splitlines() if line.startswith(_MARK)]
    if launcher.returncode or not said:
        last = (errors.strip().splitlines() or ["no word"])[-1]
        raise LostRank(f"{ranks} ranks could not add up a tensor: {last}")
    return float(json.loads(said[0]))


def main() -> None:
    """One rank, of arguments NAME [MIB [peers|host]]; the first prints what it measured."""
    name, mib, way = [*sys.argv[1:], *("64", "peers")[len(sys.argv) - 2 :]]
    device = devices.device(name, int(os.environ["LOCAL_RANK"]))
    with distributed.join(device, _PATIENCE_SECONDS, peer_to_peer=way == "peers") as world:
        speed = bus_gb_s(world, device, int(mib))
        if world.rank == 0:
            print(f"{_MARK}{json.dumps(speed)}")


def bus_gb_s(world: distributed.World, device: torch.device, mib: int) -> float:
    """The same of ranks that are joined already; raises `LostRank` for a wrong sum."""
    tensor = torch.ones(mib * _MIB // 4, device=device)
    least, most = (float(value) for value in world.all_reduce_sum(tensor).aminmax())  # waits for the device
    if least != world.size or most != world.size:
        raise LostRank(f"{world.size} ranks of one each added up to between {least:g} and {most:g}.")
    tensor.zero_()  # sums of sums stay finite
    seconds = min(_seconds(world, tensor) for _ in range(_ROUNDS))
    return 2 * (world.size - 1) / world.size * tensor.nbytes / 1e9 / seconds


def _seconds(world: distributed.World, tensor: torch.Tensor) -> float:
    """The mean of a round's sums."""
    world.barrier()
    started = time.perf_counter()
    for _ in range(_SUMS):
        world.all_reduce_sum(tensor)
    tensor[-1].item()  # waits for the device
    return (time.perf_counter() - started) / _SUMS


if __name__ == "__main__":
    main()
