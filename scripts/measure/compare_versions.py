#!/usr/bin/env python
"""Compare losses, weights and step times of two versions of timetrial on one device.

    python -P scripts/measure/compare_versions.py OTHER_CHECKOUT [options] RUN...

RUN is a quoted list of overrides, such as "workload=gnmt scale=reference precision=bf16 data=synthetic". For each RUN,
a process of this checkout and one of OTHER_CHECKOUT build and warm up an engine and train the same --steps steps. Then
they take turns in training --rounds blocks of --block steps each, all on the same batches, which stay on the device.
Prints one JSON line for each RUN:

    equal_losses       steps whose losses are equal to the bit in both versions
    first_difference   the first step, from 1, with another loss, and both losses; null if there is none
    equal_weights      whether the model's state is equal to the bit after these steps; equal_optimizer: the optimizer's
    this, other        of each version: `losses`, means of ten equal parts of the steps, and `step_ms` of each round
    ratio              the median of this version's step_ms over the other's

--one-at-a-time runs three processes one after the other, this version, the other, and this again, because both do not
fit on the device together; so does an OTHER or THIS that runs out of memory. `repeats` then says whether the losses of
this version's two processes are equal. Leave the machine idle.

cuDNN times its convolution algorithms in each process and may choose others, which round differently: with
--same-algorithms, both versions take the deterministic ones that its heuristics choose. The backward pass of attention
adds gradients in the order in which its blocks end, so that GPT's losses differ from process to process: with
--deterministic, PyTorch takes deterministic algorithms only, and an operation that has none is an error.

OTHER_CHECKOUT may be this checkout: --other-override engine.capture=false then compares captured with eager steps.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timetrial.scripts.measure import checkouts

_CHILD = Path(__file__).with_name("version_under_test.py")
_THIS_CHECKOUT = Path(__file__).resolve().parents[2]
_PARTS = 10  # of the steps, whose mean losses are printed


class OutOfMemory(Exception):
    """A version does not fit on the device."""


@dataclass(frozen=True)
class Version:
    """A checkout, and the overrides of its runs."""

    checkout: Path
    overrides: Sequence[str]


@dataclass
class Measurement:
    """What a version's process has trained and measured so far."""

    losses: list[float]
    weights: str
    optimizer: str
    step_ms: list[float]


class Trainer:
    """A process that trains with one version; it computes only while it is asked something."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.description: dict[str, Any] = {}

    def wait_until_warm(self) -> None:
        """Wait until the engine is built and warmed up."""
        self.description = self._answer()

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command and wait for the answer."""
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        return self._answer()

    def train(self) -> Measurement:
        """Train the steps whose losses are compared."""
        answer = self.ask("train")
        losses = [float.fromhex(loss) for loss in answer["losses"]]
        return Measurement(losses, answer["weights"], answer["optimizer"], [])

    def step_ms(self) -> float:
        """Train a block of steps and return the milliseconds of one."""
        return round(self.ask("time")["step_ms"], 4)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"A version under test ended with exit code {self._process.wait()}: see its error above.")
        answer: dict[str, Any] = json.loads(line)
        if answer.get("out_of_memory"):
            raise OutOfMemory
        return answer


@contextmanager
def trainer(version: Version, options: argparse.Namespace) -> Iterator[Trainer]:
    """Start a process that imports `timetrial` from the version's checkout; end it when the context is left."""
    with checkouts.importing(version.checkout) as environment, tempfile.TemporaryDirectory() as folder:
        numbers = [str(options.steps), str(options.block), str(options.batches)]
        if options.same_algorithms:
            environment["SAME_ALGORITHMS"] = "1"
        if options.deterministic:
            environment |= {"DETERMINISTIC": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        process = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD), *numbers, f"run_dir={folder}/run", *version.overrides],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:  # closes its input, which ends it, and waits
            yield Trainer(process)


def compare_together(this: Version, other: Version, options: argparse.Namespace) -> dict[str, Any]:
    """Compare two versions that share the device; each other round has the reverse order, as a device gets warm."""
    with ExitStack() as stack:
        trainers = [stack.enter_context(trainer(version, options)) for version in (this, other)]
        for process in trainers:
            process.wait_until_warm()
        measurements = [trainer.train() for trainer in trainers]
        pairs = list(zip(trainers, measurements, strict=True))
        for number in range(options.rounds):
            for process, measurement in reversed(pairs) if number % 2 else pairs:
                measurement.step_ms.append(process.step_ms())
    return comparison(*measurements) | trainers[0].description


def compare_in_turn(this: Version, other: Version, options: argparse.Namespace) -> dict[str, Any]:
    """Compare two versions of which only one has the device: this, the other, and this again."""
    measurements, description = [], {}
    for version in (this, other, this):
        with trainer(version, options) as process:
            process.wait_until_warm()
            measurements.append(process.train())
            measurements[-1].step_ms += [process.step_ms() for _ in range(options.rounds)]
            description = process.description
    first, of_other, again = measurements
    first.step_ms += again.step_ms
    return comparison(first, of_other) | {"repeats": first.losses == again.losses} | description


def comparison(this: Measurement, other: Measurement) -> dict[str, Any]:
    """Return what is printed of two measurements."""
    steps = list(zip(map(float.hex, this.losses), map(float.hex, other.losses), strict=True))  # nan equals nan
    different = next((number for number, (one, two) in enumerate(steps) if one != two), None)
    return {
        "steps": len(steps),
        "equal_losses": sum(one == two for one, two in steps),
        "first_difference": None
        if different is None
        else {"step": different + 1, "this": this.losses[different], "other": other.losses[different]},
        "equal_weights": this.weights == other.weights,
        "equal_optimizer": this.optimizer == other.optimizer,
        "this": {"losses": means_of_parts(this.losses), "step_ms": this.step_ms},
        "other": {"losses": means_of_parts(other.losses), "step_ms": other.step_ms},
        "ratio": round(statistics.median(this.step_ms) / statistics.median(other.step_ms), 4),
    }


def means_of_parts(values: list[float]) -> list[float]:
    """Return the means of ten equal parts of a list, in order."""
    size = -(-len(values) // _PARTS)
    return [statistics.mean(values[start : start + size]) for start in range(0, len(values), size)]


def compare(run: str, options: argparse.Namespace) -> dict[str, Any]:
    """Compare the versions for one run."""
    this = Version(_THIS_CHECKOUT, run.split())
    other = Version(options.other_checkout, [*run.split(), *options.other_override])
    if not options.one_at_a_time:
        try:
            return {"run": run, "together": True} | compare_together(this, other, options)
        except OutOfMemory:
            print(f"{run}: both versions do not fit on the device together; one at a time", file=sys.stderr)
    return {"run": run, "together": False} | compare_in_turn(this, other, options)


def main() -> None:
    """Compare the runs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other_checkout", type=Path)
    parser.add_argument("run", nargs="+", help="overrides, separated by spaces")
    parser.add_argument("--steps", type=int, default=200, help="steps whose losses are compared")
    parser.add_argument("--block", type=int, default=50, help="steps of each timed block")
    parser.add_argument("--rounds", type=int, default=3, help="timed blocks of each process")
    parser.add_argument("--batches", type=int, default=32, help="batches kept on the device for the timed blocks")
    parser.add_argument("--one-at-a-time", action="store_true", help="never have both versions on the device")
    parser.add_argument("--same-algorithms", action="store_true", help="keep cuDNN from timing its algorithms")
    parser.add_argument("--deterministic", action="store_true", help="take deterministic algorithms of PyTorch only")
    parser.add_argument("--other-override", action="append", default=[], help="override of the other version only")
    options = parser.parse_args()
    if not (options.other_checkout / "runner").is_dir():
        parser.error(f"{options.other_checkout} is no checkout of timetrial.")
    for run in options.run:
        print(json.dumps(compare(run, options)), flush=True)


if __name__ == "__main__":
    main()
