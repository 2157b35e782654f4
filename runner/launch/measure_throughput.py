"""The stage of a rank that measures the throughput of a fixed number of steps."""

from dataclasses import replace

from ..callbacks.throughput import BlockLines, LimitedBatches, ThroughputMeter
from ..core import execution_paths
from ..core.errors import Exit, Stopped
from ..hardware import devices
from ..training import flops
from ..training.early_stop import EarlyStop
from ..training.events import Observer
from ..training.loop import Outcome, TrainingPlan, train_to_target
from .build_engine import prepare_engine
from .rank import Rank


def measure_throughput(rank: Rank, telemetry_observers: list[Observer]) -> Exit:
    """Train a fixed number of steps, without log, target and checkpoint."""
    config = rank.config
    engine = prepare_engine(rank)
    assert isinstance(engine.data, LimitedBatches)
    meter = ThroughputMeter(rank.world.size, engine.data)
    early_stop = EarlyStop(rank.stop, rank.world)
    plan = TrainingPlan(target={}, first_eval_epoch=1, eval_every_epochs=1, max_epochs=config.throughput.blocks)
    observers = [*telemetry_observers, meter, early_stop]
    if rank.is_main:
        observers.append(BlockLines(rank.console, config.throughput.blocks))
    if train_to_target(engine, plan, observers, should_stop=early_stop.should_stop) is Outcome.INTERRUPTED:
        raise Stopped("Stopped before the measurement was complete: run it again.")
    if rank.is_main:
        result = meter.result(
            gpus=config.gpus,
            datasheet_tflops=config.accelerator.tflops.get(config.precision.name),
            peer_to_peer=config.peer_to_peer,
            usd_per_gpu=config.accelerator.usd_per_gpu,
        )
        peak = devices.peak_memory_bytes(rank.device)
        rank.run_dir.update(
            lambda record: replace(
                record.training_ended(Exit.TARGET_REACHED, ""),
                peak_memory_bytes=peak,
                throughput=result,
                execution_paths=execution_paths.taken(),
            )
        )
        # Counting takes seconds; the measurement is safe already.
        counted = replace(result, step_cost=flops.try_count_flops(engine))
        rank.run_dir.update(lambda record: replace(record, throughput=counted))
    return Exit.TARGET_REACHED
