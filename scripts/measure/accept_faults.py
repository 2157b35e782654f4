"""Run `timetrial accept` on a healthy machine, then with each fault injected, and print which lines say so.

    python -P scripts/measure/accept_faults.py [--minutes 10] [--repeats 10] [FAULT ...]

Prints a JSON line for each run: fault, exit code, result, minutes, the seconds of each part, and the lines that are
FAIL or WARN. Faults on GPUs: `gpu` (another process computes on the first GPU), `neighbor`
(another process heats the last of several GPUs), `peer` (no direct transfers between GPUs). Everywhere: `cores` (two
cores, or one of two), `cpu` (other processes keep all cores busy), `bit` (one bit of a weight is flipped during a
replay), `disk` (reads of files are slowed down within the process). `healthy` is repeated.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from timetrial.runner.benchmarks.accept.replay import FLIP_VARIABLE
from timetrial.runner.benchmarks.accept.training import open_engine
from timetrial.runner.benchmarks.accept.workloads import read_workloads

GPU_FAULTS, FAULTS = ("gpu", "neighbor", "peer"), ("cores", "cpu", "bit", "disk")
COMPUTE = """
import sys, torch
device = torch.device("cuda", int(sys.argv[1]))
a = torch.randn(8192, 8192, device=device, dtype=torch.float16)
while True:
    for _ in range(50):
        b = a @ a
    torch.cuda.synchronize()
"""
BUSY = "while True: pass"
# Runs the command with files that are read at 5 MB/s.
SLOW_DISK = """
import time
from timetrial.runner.benchmarks.accept import host
from timetrial.runner.cli.main import main
read = host._read
def read_slowly(path):
    time.sleep(host.IMAGE_BYTES / (5e6 / 16))
    return read(path)
host._read = read_slowly
main()
"""


def find_tensor() -> str:
    """Return a tensor of the last accepted workload."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [*read_workloads()[-1].overrides("cpu"), "data=synthetic", "accelerator=cpu"]
        _, engine = open_engine([*overrides, f"run_dir={folder}", f"data_dir={folder}"], torch.device("cpu"))
        return list(engine.model.state_dict())[-1]


@contextmanager
def others(program: str, *arguments: str, count: int = 1) -> Iterator[None]:
    """Run a program beside the body."""
    with ExitStack() as closing:
        for _ in range(count):
            process = closing.enter_context(subprocess.Popen([sys.executable, "-P", "-c", program, *arguments]))
            closing.callback(process.kill)
        time.sleep(10 if "cuda" in program else 0)  # until it computes
        yield


def accept(fault: str, minutes: float) -> dict[str, object]:
    """Return what the command says with a fault injected."""
    command, variables = [sys.executable, "-P", "-m", "timetrial"], {}
    with ExitStack() as closing:
        if fault in ("gpu", "neighbor"):
            gpu = 0 if fault == "gpu" else torch.accelerator.device_count() - 1
            closing.enter_context(others(COMPUTE, str(gpu)))
        elif fault == "peer":
            variables["NCCL_P2P_DISABLE"] = "1"
        elif fault == "cores":
            cores = sorted(os.sched_getaffinity(0))
            command = ["taskset", "-c", ",".join(map(str, cores[: min(2, len(cores) - 1)])), *command]
        elif fault == "cpu":
            closing.enter_context(others(BUSY, count=os.cpu_count() or 1))
        elif fault == "bit":
            variables[FLIP_VARIABLE] = f"2/3/{find_tensor()}"
        elif fault == "disk":
            command = [sys.executable, "-P", "-c", SLOW_DISK]
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        state = {"XDG_STATE_HOME": str(folder / "state")}  # the acceptance of this machine stays as it is
        command += ["accept", "--json", f"--minutes={minutes:g}", f"--out={folder / 'result'}"]
        started = time.monotonic()
        done = subprocess.run(command, env=os.environ | variables | state, capture_output=True, text=True)
        took = round((time.monotonic() - started) / 60, 2)
    if done.returncode not in (0, 41):
        return {"fault": fault, "exit_code": done.returncode, "error": done.stderr.strip().splitlines()[-1:]}
    document = json.loads(done.stdout)
    lines = [
        f"{line['state']} {line['device']} {line['part']}: {line['message']}"
        for line in document["lines"]
        if line["state"] in ("FAIL", "WARN")
    ]
    facts = {"result": document["result"], "minutes": took, "seconds": document["seconds"], "lines": lines}
    return {"fault": fault, "exit_code": done.returncode} | facts


def select_faults(chosen: Sequence[str], num_gpus: int) -> list[str]:
    """Return the faults that can be injected on this machine, of those that were chosen."""
    possible = [*GPU_FAULTS[: 1 if num_gpus == 1 else 3 if num_gpus > 1 else 0], *FAULTS]
    return [fault for fault in possible if not chosen or fault in chosen]


def main() -> None:
    """Run all and print JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("faults", nargs="*", choices=[*GPU_FAULTS, *FAULTS, []])
    arguments = parser.parse_args()
    num_gpus = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    for fault in ["healthy"] * arguments.repeats + select_faults(arguments.faults, num_gpus):
        print(json.dumps(accept(fault, arguments.minutes)), flush=True)


if __name__ == "__main__":
    main()
