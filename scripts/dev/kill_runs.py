#!/usr/bin/env python
"""Kill runs at random moments with SIGKILL, resume each until it ends, and compare it with one never interrupted.

    .venv/bin/python scripts/dev/kill_runs.py workload=ncf --kills 100
    .venv/bin/python scripts/dev/kill_runs.py workload=cifar10 gpus=2 --kills 100

Each run starts without data, so that kills fall into data generation too, writes checkpoints as often as it can, and
one more at its end. A kill hits all processes, the launcher alone or one rank alone. After each, the files must be
whole and at most one evaluated epoch lost. A run must end with the losses, qualities and weights of the uninterrupted
one, bit for bit, with one run_start and one run_stop in its log, and with a time that is that of its log and not longer
than its processes lived. Prints one JSON line; exits with 1 after a mismatch.
"""

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from timetrial.runner.core.errors import Exit
from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.training.checkpoint import load_checkpoint

_ENDED = (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED)
_VICTIMS = ("all processes", "launcher", "rank")
_SEED = 1


class Trial:
    """One run that is killed and resumed until it ends."""

    def __init__(self, folder: Path, overrides: list[str], launcher: str) -> None:
        self.run_dir = RunDir(folder / "run", _SEED)
        keys = [f"data_dir={folder}/data", f"run_dir={folder}/run", f"seed={_SEED}", "resume=true"]
        keys += ["checkpoint.every_seconds=0", "checkpoint.at_end=true", f"launcher={launcher}"]
        self._command = [sys.executable, "-P", "-m", "timetrial", "run", *keys, *overrides]
        self._output = folder / "output.txt"
        self.lived_seconds = 0.0

    def start(self) -> subprocess.Popen[bytes]:
        """Start or resume the run."""
        with open(self._output, "ab") as output:
            return subprocess.Popen(self._command, stdout=output, stderr=output)

    def run_for(self, seconds: float, victim: str) -> bool:
        """Run for `seconds` at most, then kill `victim`; return whether a kill was needed."""
        started, process = time.monotonic(), self.start()
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        killed = process.poll() is None
        processes = []
        if killed:
            with suppress(psutil.NoSuchProcess):
                processes = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        ranks = [rank for rank in processes[1:] if _is_rank(rank)]
        for member in {"launcher": processes[:1], "rank": ranks[:1] or processes}.get(victim, processes):
            with suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()
        psutil.wait_procs(processes, timeout=120)
        self.lived_seconds += time.monotonic() - started
        if not killed and process.returncode not in _ENDED:
            raise SystemExit(f"A run failed with code {process.returncode}:\n{self._output.read_text()}")
        orphans = [member for member in processes if member.is_running() and member.status() != psutil.STATUS_ZOMBIE]
        if orphans:
            raise SystemExit(f"Orphans: {orphans}")
        return killed

    def check_files(self) -> list[str]:
        """Return what a kill has left incomplete."""
        found = []
        for log in self.run_dir.path.glob("result_*.txt"):
            lines = log.read_text().splitlines(keepends=True)
            if not all(line.startswith(":::MLLOG {") and line.endswith("}\n") for line in lines):
                found.append(f"{log} ends within a line")
        training = self.run_dir.record().training if self.run_dir.exists else None
        evaluated = len(training.blocks) if training else 0
        if self.run_dir.checkpoint.exists():
            evaluated -= load_checkpoint(self.run_dir.checkpoint)["completed_epochs"]
        return found + ([f"{evaluated} evaluated epochs would be lost"] if evaluated > 1 else [])

    def result(self) -> tuple[Any, dict[str, Any], RunRecord]:
        """Return the numbers of all blocks, the engine's state and the run record."""
        record = self.run_dir.record()
        assert record.training is not None
        blocks = [(block.last_epoch, block.samples, block.loss, block.quality) for block in record.training.blocks]
        return blocks, load_checkpoint(self.run_dir.checkpoint)["engine"], record


def _is_rank(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any("launch.worker" in argument for argument in process.cmdline())
    return False


def problems(trial: Trial, expected: Trial) -> list[str]:
    """Return how a run that has ended differs from the uninterrupted one, and what is wrong with its time."""
    blocks, state, record = trial.result()
    expected_blocks, expected_state, _ = expected.result()
    assert record.training is not None
    found = []
    if blocks != expected_blocks:
        found.append(f"blocks differ: {blocks} against {expected_blocks}")
    if not _equal(state, expected_state):
        found.append("the final states differ")
    lines = [json.loads(line.removeprefix(":::MLLOG ")) for line in trial.run_dir.log.read_text().splitlines()]
    times = [line["time_ms"] for line in lines if line["key"] in ("run_start", "run_stop")]
    if len(times) != 2:
        found.append(f"{len(times)} lines of run_start and run_stop")
    elif abs((times[1] - times[0]) / 1e3 - record.training.seconds) > 0.002:  # each is cut to a millisecond
        found.append(f"the log says {(times[1] - times[0]) / 1e3} s, the record {record.training.seconds} s")
    if record.training.active_seconds > trial.lived_seconds:
        found.append(f"{record.training.active_seconds} s in processes that lived for {trial.lived_seconds} s")
    if record.verdict is None or not record.verdict.compliant:
        found.append("the log does not comply")
    return found + [f"left behind: {path}" for path in trial.run_dir.path.parent.rglob("*.tmp")]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def main() -> None:
    """Kill, resume and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="the run, as for `timetrial run`")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments and victims")
    arguments = parser.parse_args()
    generator, folder = random.Random(arguments.seed), Path(tempfile.mkdtemp(prefix="timetrial_kills_"))
    counts: dict[str, int] = dict.fromkeys(_VICTIMS, 0)
    has_several_ranks = any(re.fullmatch(r"gpus=[2-9]", override) for override in arguments.overrides)
    launchers = ("local",) if has_several_ranks else ("local", "inline")
    runs, mismatches, started = 0, [], time.monotonic()
    expected = Trial(folder / "uninterrupted", arguments.overrides, "local")
    expected.run_dir.path.parent.mkdir()
    expected.run_for(3600.0, "")
    while sum(counts.values()) < arguments.kills:
        trial = Trial(folder / f"killed_{runs}", arguments.overrides, launchers[runs % len(launchers)])
        trial.run_dir.path.parent.mkdir()
        while True:
            victim = generator.choice(_VICTIMS)
            if not trial.run_for(generator.uniform(0.0, expected.lived_seconds), victim):
                break
            counts[victim] += 1
            mismatches += [f"run {runs}: {problem}" for problem in trial.check_files()]
        runs += 1
        mismatches += [f"run {runs}: {problem}" for problem in problems(trial, expected)]
        if not mismatches:
            shutil.rmtree(trial.run_dir.path.parent)
    seconds = round(time.monotonic() - started)
    print(json.dumps({"runs": runs, "kills": counts, "seconds": seconds, "mismatches": mismatches}))
    if mismatches:
        sys.exit(f"See {folder}.")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
