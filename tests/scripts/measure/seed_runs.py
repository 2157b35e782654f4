"""Run directories of a study, with results that are made up, and the rows of its tables."""

import math

import pandas as pd

from timetrial.runner.record.attempt import Attempt
from timetrial.runner.record.record_file import encode_record
from timetrial.runner.record.run_record import RunRecord, RunState, TelemetrySummary
from timetrial.runner.record.training_result import Block, TrainingResult
from timetrial.scripts.measure.seed_outcomes import STREAMS

UNSET = dict.fromkeys(STREAMS)
TELEMETRY = dict.fromkeys(TelemetrySummary.__dataclass_fields__) | {
    "gpus": 1, "every_seconds": 0.1, "seconds": 1.0, "at_power_cap": 0.0, "implausible_samples": 0,
}  # fmt: skip


def train(qualities, target, *, lower_is_better=False, seconds=1.0, rate=100.0, step=1, loss=1.0):
    """Return the result of a run that is evaluated after every `step` epochs with these qualities by metric."""
    rows = [dict(zip(qualities, row, strict=True)) for row in zip(*qualities.values(), strict=True)]
    blocks = [
        Block(
            first_epoch=1 + step * place, epochs=step, samples=100 * step, tokens=0, loss=loss,
            train_seconds=100 * step / rate, data_wait_seconds=0.0, eval_seconds=0.1, quality=quality,
            ended_at=float(place), past_target=False,
        )
        for place, quality in enumerate(rows)
    ]  # fmt: skip
    sign = -1 if lower_is_better else 1
    reached = all(sign * rows[-1][metric] >= sign * value for metric, value in target.items())
    return TrainingResult.from_blocks(
        blocks, target=target, reached=reached, started_at=0.0, stopped_at=seconds, lost_seconds=0.0
    )


def cross_at(epochs, **options):
    """Return a run whose quality rises linearly and crosses its target after a fraction of an epoch."""
    qualities = [0.5 * epoch / epochs for epoch in range(1, math.ceil(epochs) + 1)]
    return train({"quality": qualities}, {"quality": 0.5}, **options)


def make_record(
    training, *, recipe="ncf/mini", seed=1, streams=UNSET, state=None, joules=None, precision="bf16", **config
):
    """Return the record of a run; `config` holds `deterministic`, `accelerator` and keys of the recipe."""
    reached = bool(training and training.reached)
    state = state or (RunState.TARGET_REACHED if reached else RunState.TARGET_NOT_REACHED)
    deterministic, accelerator = config.pop("deterministic", False), config.pop("accelerator", "h100")
    return RunRecord(
        state=state,
        attempts=(Attempt(started_at=float(seed), hostname="host", pid=1, overrides=(f"recipe={recipe}",)),),
        environment={"cpu": {"model": "EPYC", "logical_cores": 2}},
        config={
            "accelerator": {"name": accelerator},
            "recipe": {"first_eval_epoch": 1, "max_epochs": 100, "lower_is_better": False} | config,
            "seed": seed,
            "seeds": dict(streams),
            "engine": {"deterministic": deterministic},
            "precision": {"name": precision},
        },
        training=training,
        telemetry=joules and TelemetrySummary(**(TELEMETRY | {"energy_joules": joules})),
    )


def write(folder, record):
    """Write the files of a run directory that the study reads."""
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(encode_record(record))
    blocks = record.training.blocks if record.training else ()
    rows = [{"epoch": block.last_epoch, "loss": block.loss} | block.quality for block in blocks]
    pd.DataFrame(rows).to_csv(folder / "quality.csv", index=False)


def read_table(table):
    """Return the rows of a table in Markdown as dictionaries by the header."""
    header, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows]
