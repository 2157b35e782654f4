#!/usr/bin/env python
"""Measure training steps of one run: their time, the share in which the device computes, and captured against eager.

    python -P scripts/measure/steps.py [--steps N] [--eager] [--repeat] [--longest N] [--no-evaluation] KEY=VALUE...
    python -P scripts/measure/steps.py --losses [--once] [--steps N] KEY=VALUE...
    python -P scripts/measure/steps.py --runs N KEY=VALUE...
    python -P scripts/measure/steps.py --exchange [--steps N] gpus=N KEY=VALUE...

Prints one JSON line. `kernel_ms` is the union of all kernels' spans in a trace of the profiler, a step; `kernel_share`
its share in the time of the traced steps, and `kernel_share_untraced` in `step_ms`, which the profiler does not slow
down; `graph_ms` the replay of each captured graph alone; `evaluation_s` four evaluations, and a fifth without the
score, of which `evaluation` has the kernels; --no-evaluation omits these. --eager measures eager steps, --longest sets
how many of the longest kernels are listed. --repeat keeps the first --steps batches on the device and times and traces
steps with them, because batches of text differ in length; the data loader is then not part of the time. With gpus=N,
the figures are those of the first GPU. Leave the machine idle.

With --losses, it compares losses at equal seeds instead: `losses` and `eager_losses` are means of ten equal parts of
the captured and of the eager steps, `loss_difference` is the largest relative difference between two of their losses,
and `repeat_difference` that between two captured runs. With --once as well, it only prints the means of one run, to
be compared with those of another version of the package.

With --runs, it trains N whole runs of an image workload in one process, of seeds 1 to N, and prints for each the
quality and the seconds from the first training step, with the data open, to the end of the last evaluation.

With --exchange, it times eager steps of several GPUs with several strategies of exchanging gradients: in buckets of
other sizes, by fewer thread blocks, from a stream of high priority, after the backward pass instead of during it, and
not at all. The milliseconds are those of the slowest GPU, in each of three rounds over all strategies.
"""

import argparse
import copy
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import profile

from timetrial.runner.config.compose import compose
from timetrial.runner.config.schema import Config
from timetrial.runner.config.validation import resolve_classes, validate
from timetrial.runner.core.progress import no_progress
from timetrial.runner.hardware import device_timing, devices
from timetrial.runner.launch import worker
from timetrial.runner.launch.overrides import with_accelerator
from timetrial.runner.launch.staging import data_settings
from timetrial.runner.training import distributed, gradient_reduction
from timetrial.runner.training.distributed import World
from timetrial.runner.training.events import BlockStarted, EvalEnded, Event
from timetrial.runner.training.loop import train_to_target
from timetrial.runner.training.seeds import derive_seed, derive_streams, seed_everything
from timetrial.runner.training.torch_engine import TorchEngine
from timetrial.workloads.common.vision.image_data import ImageData

_WARM_UP_STEPS = 20
_REPLAYS = 50
_EVALUATIONS = 4
_LONGEST = 8  # kernels that are listed
_PARTS = 10  # of the steps, whose mean losses are printed
_HANG_TIMEOUT_SECONDS = 300.0  # ranks compile at different speeds
_BUCKET_MIB = (5, 100)
_THREAD_BLOCKS = (4, 16)  # of NCCL, at most
_ROUNDS = 3
_STRATEGY_WARM_UP_STEPS = 3


def build(config: Config, world: World | None = None, *, with_data: bool = True) -> TorchEngine:
    """Return the engine of a rank of the run, warmed up, and with its data opened unless told otherwise."""
    world = world or World()
    device = devices.select_device(config.accelerator.name, world.local_rank)
    _, data_class = resolve_classes(config)
    if world.rank == 0:
        data_class.prepare_data(data_settings(config, data_class), no_progress)
    world.barrier()
    engine = worker.build_engine(config, world, device)
    assert isinstance(engine, TorchEngine)
    engine.warm_up()
    if with_data:
        engine.open_data()
    return engine


def endless_steps(engine: TorchEngine) -> Any:
    """Yield the micro-batches of the steps of all epochs."""
    return itertools.chain.from_iterable(engine.data.train_batches(epoch) for epoch in itertools.count(1))


def time_steps(
    engine: TorchEngine, batches: Any, steps: int, warm_up_steps: int = _WARM_UP_STEPS
) -> tuple[float, float]:
    """Return milliseconds a step, and those of the host alone."""
    for batch in itertools.islice(batches, warm_up_steps):
        engine._step(batch)
    devices.synchronize(engine.device)
    started = time.perf_counter()
    for batch in itertools.islice(batches, steps):
        engine._step(batch)
    submitted = time.perf_counter()
    devices.synchronize(engine.device)
    return (time.perf_counter() - started) / steps * 1e3, (submitted - started) / steps * 1e3


def trace(device: torch.device, work: Callable[[], object], parts: int, longest: int) -> dict[str, Any]:
    """Return the share of kernels in the time of `work`, and of each of its `parts` the kernels and the longest."""
    with profile(activities=devices.profiler_activities(device)[1:]) as profiler:
        work()
        devices.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in kernels)
    busy, end = 0.0, spans[0][0]
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    seconds: Counter[str] = Counter()
    for event in kernels:
        seconds[event["name"][:60]] += event["dur"]
    return {
        "kernel_share": round(busy / (end - spans[0][0]), 3),
        "kernel_ms": round(busy / parts / 1e3, 4),
        "kernels": round(len(kernels) / parts, 1),
        "longest_us": {name: round(us / parts, 1) for name, us in seconds.most_common(longest)},
    }


def losses(engine: TorchEngine, steps: int) -> list[float]:
    """Return the summed loss of each of the first steps."""
    found = []
    for batch in itertools.islice(endless_steps(engine), steps):
        engine._reset_loss()
        engine._step(batch)
        found.append(float(engine._loss_sum))
    return found


def largest_difference(first: list[float], second: list[float]) -> float:
    """Return the largest relative difference of two lists."""
    return max(abs(one - other) / abs(other) for one, other in zip(first, second, strict=True))


def compare_losses(overrides: list[str], steps: int, *, once: bool) -> dict[str, Any]:
    """Return the losses of captured and of eager steps at equal seeds, and how far they differ."""
    if once:
        return {"run": " ".join(overrides), "steps": steps, "losses": means_of_parts(losses_of_run(overrides, steps))}
    captured, again, eager = (
        losses_of_run([*overrides, f"engine.capture={capture}"], steps) for capture in ("true", "true", "false")
    )
    return {
        "run": " ".join(overrides),
        "steps": steps,
        "losses": means_of_parts(captured),
        "eager_losses": means_of_parts(eager),
        "loss_difference": largest_difference(captured, eager),
        "repeat_difference": largest_difference(captured, again),
    }


def losses_of_run(overrides: list[str], steps: int) -> list[float]:
    """Return the summed loss of each of the first steps of a run."""
    with tempfile.TemporaryDirectory() as folder:
        return losses(build(validate(compose([f"run_dir={folder}/run", *overrides]).node)), steps)


def means_of_parts(values: list[float]) -> list[float]:
    """Return the means of ten equal parts of a list, in order."""
    size = -(-len(values) // _PARTS)
    return [statistics.mean(values[start : start + size]) for start in range(0, len(values), size)]


@contextmanager
def joined_ranks(gpus: int) -> Iterator[World]:
    """Run this command once for each of several GPUs, and yield the world of each process.

    The process that starts the others waits for them and exits.
    """
    if gpus > 1 and "RANK" not in os.environ:
        with distributed.local_store() as store:
            variables = [distributed.rank_environment(store, rank, rank, gpus) for rank in range(gpus)]
            command = [sys.executable, "-P", *sys.argv]
            ranks = [subprocess.Popen(command, env={**os.environ, **own}) for own in variables]
            codes = [rank.wait() for rank in ranks]
        sys.exit(max(map(abs, codes)))
    device = devices.select_device(devices.detect_accelerator(), int(os.environ.get("LOCAL_RANK", "0")))
    with distributed.join_world(device, _HANG_TIMEOUT_SECONDS) as world:
        yield world


def measure(
    overrides: list[str], world: World, steps: int, *, eager: bool, repeat: bool, longest: int, evaluate: bool
) -> dict[str, Any]:
    """Return the figures of one run."""
    with tempfile.TemporaryDirectory() as folder:
        base = [f"run_dir={folder}/run", *overrides]
        config = validate(compose([*base, f"engine.capture={str(not eager).lower()}"]).node)
        engine = build(config, world)
        batches = endless_steps(engine)
        if repeat:
            batches = itertools.cycle(list(itertools.islice(batches, steps)))
        step_ms, host_ms = time_steps(engine, batches, steps, steps if repeat else _WARM_UP_STEPS)
        result = {
            "run": " ".join(overrides),
            "eager": eager,
            "step_ms": round(step_ms, 4),
            "host_ms": round(host_ms, 4),
        }
        if engine.device.type != "cpu":
            some = itertools.islice(batches, steps)
            result |= trace(engine.device, lambda: [engine._step(batch) for batch in some], steps, longest)
            result["kernel_share_untraced"] = round(result["kernel_ms"] / step_ms, 3)
        if evaluate:
            result["evaluation_s"] = [round(seconds, 3) for seconds in time_evaluations(engine)]
        if evaluate and engine.device.type != "cpu":
            result["evaluation"] = trace(engine.device, lambda: predict(engine), 1, longest)
        captured = engine._captured_steps
        if captured is not None:
            replays = [step.graph.replay for step in captured._steps.values()]
            result["graph_ms"] = [round(time_replays(engine, replay), 4) for replay in replays]
    return result


def measure_exchange(overrides: list[str], world: World, steps: int) -> dict[str, Any]:
    """Return the milliseconds of a step for each strategy of exchanging gradients, in each of several rounds.

    A device slows down as it gets warm: strategies are to be compared within a round, and each other round has the
    reverse order.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = validate(compose([f"run_dir={folder}/run", *overrides, "engine.capture=false"]).node)
        engine = build(config, world)
        reduction, group = engine._reduction, world.device_group
        assert reduction is not None
        batches = list(itertools.islice(endless_steps(engine), steps))  # the same for all, as their lengths differ
        time_steps(engine, itertools.cycle(batches), steps)
        order = [parameter for bucket in reduction._buckets for parameter in bucket.parameters]
        configured = gradient_reduction._BUCKET_BYTES >> 20
        groups = {"as configured": group}
        if (backend := devices.collective_backend(engine.device)) == "nccl":
            for thread_blocks in _THREAD_BLOCKS:
                options = dist.ProcessGroupNCCL.Options()
                options.config.max_ctas = thread_blocks
                name = f"at most {thread_blocks} thread blocks"
                groups[name] = dist.new_group(backend=backend, pg_options=options)
            options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
            groups["high priority"] = dist.new_group(backend=backend, pg_options=options)
        strategies = {name: (process_group, configured, True) for name, process_group in groups.items()}
        strategies |= {f"buckets of {size} MiB": (group, size, True) for size in _BUCKET_MIB}
        strategies |= {"after the backward pass": (group, configured, False), "none": (group, configured, True)}
        step_ms: dict[str, list[float]] = {name: [] for name in strategies}
        for number in range(_ROUNDS):
            for name in reversed(strategies) if number % 2 else strategies:
                world.device_group, mebibytes, reduction._enabled = strategies[name]
                gradient_reduction._BUCKET_BYTES = mebibytes << 20
                reduction._fill_buckets(order)
                if name == "none":
                    engine._reduction, reduction._enabled = None, False
                step_ms[name].append(_slowest_ms(engine, batches))
                engine._reduction = reduction
    return {"run": " ".join(overrides), "step_ms": step_ms}


def _slowest_ms(engine: TorchEngine, batches: list[Any]) -> float:
    """Return the milliseconds of a step on the slowest rank."""
    milliseconds = time_steps(engine, itertools.cycle(batches), len(batches), _STRATEGY_WARM_UP_STEPS)[0]
    return engine.world.all_reduce_max(round(milliseconds * 1e3)) / 1e3


def time_runs(overrides: list[str], runs: int) -> dict[str, Any]:
    """Return seconds and qualities of whole runs with the weights, data order and dropout of seeds 1 to `runs`."""
    with tempfile.TemporaryDirectory() as folder:
        config = validate(compose([f"run_dir={folder}/run", *overrides]).node)
        engine = build(config, with_data=False)
        data = engine.data
        if not isinstance(data, ImageData):
            raise SystemExit("--runs needs a workload of images: the data of others cannot be given another seed.")
        initial_state = copy.deepcopy(engine.state_dict())
        seconds, qualities = [], []
        for seed in range(1, runs + 1):
            data.seeds = derive_streams(seed)
            seed_everything(data.seeds.initialization)
            model = engine.workload.build_model().state_dict()
            engine.load_state_dict(copy.deepcopy(initial_state) | {"model": model})
            seed_everything(derive_seed(data.seeds.dropout, engine.world.rank))
            run = _TimedRun(engine.device)
            train_to_target(engine, worker.training_plan(config), [run])
            seconds.append(run.stopped - run.started)
            qualities.append(run.quality)
    result: dict[str, Any] = {"run": " ".join(overrides)}
    values = {"seconds": seconds} | {name: [quality[name] for quality in qualities] for name in qualities[0]}
    for name, found in values.items():
        result |= {name: [round(value, 4) for value in found], f"mean_{name}": round(statistics.mean(found), 5)}
        if runs > 1:
            result[f"stdev_{name}"] = round(statistics.stdev(found), 5)
    return result


class _TimedRun:
    """Observes the times from the first training step, the data being open, to the last evaluation, and its quality."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.started = self.stopped = math.nan
        self.quality: Mapping[str, float] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, BlockStarted) and math.isnan(self.started):
            devices.synchronize(self._device)
            self.started = time.perf_counter()
        if isinstance(event, EvalEnded):
            self.stopped, self.quality = time.perf_counter(), event.quality


def time_evaluations(engine: TorchEngine) -> list[float]:
    """Return the seconds of four evaluations in a row, and of a fifth one without the score."""
    found = []
    for _ in range(_EVALUATIONS):
        started = time.perf_counter()
        engine.evaluate()
        found.append(time.perf_counter() - started)
    started = time.perf_counter()
    predict(engine)
    return [*found, time.perf_counter() - started]


def predict(engine: TorchEngine) -> None:
    """Evaluate without the score."""
    engine.model.eval()
    with torch.no_grad(), engine.precision.autocast():
        engine.workload.predict(engine.model, engine.data.eval_batches())
    engine.model.train()


def time_replays(engine: TorchEngine, replay: Any) -> float:
    """Return the milliseconds of one of many replays in a row."""
    replay()
    return device_timing.time_on_device(engine.device, lambda: [replay() for _ in range(_REPLAYS)])[0] / _REPLAYS * 1e3


def main() -> None:
    """Measure the run of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--repeat", action="store_true")
    parser.add_argument("--longest", type=int, default=_LONGEST)
    parser.add_argument("--no-evaluation", action="store_true")
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--exchange", action="store_true")
    arguments, overrides = parser.parse_known_args()
    overrides = with_accelerator(overrides)
    torch.backends.cuda.matmul.allow_tf32 = False
    if sum(map(bool, (arguments.runs, arguments.eager, arguments.losses, arguments.exchange))) > 1:
        parser.error("Choose one of --runs, --eager, --losses and --exchange.")
    if arguments.repeat and (arguments.runs or arguments.losses or arguments.exchange):
        parser.error("--repeat is for timing steps, without --runs, --losses and --exchange.")
    if arguments.once and not arguments.losses:
        parser.error("--once needs --losses.")
    if arguments.runs:
        result = time_runs(overrides, arguments.runs)
    elif arguments.losses:
        result = compare_losses(overrides, arguments.steps, once=arguments.once)
    else:
        gpus = validate(compose(overrides).node).gpus
        if arguments.exchange and gpus < 2:
            parser.error("--exchange needs gpus=2 or more.")
        with joined_ranks(gpus) as world:
            if arguments.exchange:
                result = measure_exchange(overrides, world, arguments.steps)
            else:
                result = measure(
                    overrides,
                    world,
                    arguments.steps,
                    eager=arguments.eager,
                    repeat=arguments.repeat,
                    longest=arguments.longest,
                    evaluate=not arguments.no_evaluation,
                )
            if world.rank:
                return
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
