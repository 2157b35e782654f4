"""All ranks of this machine add up a tensor: do they find one another, is the sum right, how fast is it?"""

import json
import os
import subprocess
import sys
import time

import torch

from timetrial.runner import accelerator, distributed
from timetrial.runner.errors import LostRank

_MIB = 64
_ROUNDS = 5
_PATIENCE_SECONDS = 120.0
_MARK = "all-reduce:"


def measure(name: str, ranks: int) -> float:
    """GB/s (tensor bytes over seconds, the best round) over `ranks` processes on the accelerator group `name`.

    Raises `LostRank` where they do not come to the right sum in two minutes.
    """
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, "-m", __name__, name],
            env=environment, capture_output=True, text=True, timeout=_PATIENCE_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise LostRank(f"{ranks} ranks did not add up a tensor within {_PATIENCE_SECONDS:g} s.") from error
    said = [line.removeprefix(_MARK) for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not said:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise LostRank(f"{ranks} ranks could not add up a tensor: {last}")
    return float(json.loads(said[0]))


def main() -> None:
    """One rank; the first prints what it measured."""
    device = accelerator.device(sys.argv[1], int(os.environ["LOCAL_RANK"]))
    with distributed.join(device, _PATIENCE_SECONDS) as world:
        best = 0.0
        for _ in range(_ROUNDS):
            tensor = torch.ones(_MIB * 2**18, device=device)
            world.barrier()
            started = time.perf_counter()
            total = float(world.add(tensor)[-1].item())  # waits for the device
            best = max(best, _MIB * 2**20 / 1e9 / (time.perf_counter() - started))
            if total != world.size:
                raise LostRank(f"{world.size} ranks of one each added up to {total:g}.")
        if world.rank == 0:
            print(f"{_MARK}{json.dumps(best)}")


if __name__ == "__main__":
    main()
