"""A run as its MLPerf log describes it: time-to-train, success, quality of each evaluation, epochs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.found_files import as_name
from ...record.run_record import RunRecord, RunState
from .evaluations import Evaluation


@dataclass
class Run:
    """One run. Times are in seconds, qualities are fractions or losses; None means that the log does not tell.

    `duration` is run_stop - run_start, None if one of them is missing. `observed` is then the time of the last entry,
    at which the run counts as censored. `path` is relative to the folder that was searched. `execution` holds settings
    that affect the speed but not the recipe, such as engine and data loader. `streams` holds the seed of each random
    stream of timetrial, `host` the name of the machine, `boot` that of its boot, `gpu_ids` hashes of the UUIDs of
    its visible GPUs.
    `scaling_factor` is the factor that MLPerf applied to the score. `flags` names the validity flags and `inferred`
    lists what the log does not state.

    `progress_to_converge` is the training before the first evaluation that meets the target, in `progress_unit`:
    "epochs", or "samples" in logs that count these. `eval_spacing` is the progress between successive evaluations.
    """

    path: Path
    source: Path
    round: str = ""
    benchmark: str = ""
    submitter: str = ""
    system: str = ""
    division: str = ""
    dialect: str = ""
    started: float = math.nan
    duration: float | None = None
    observed: float = 0.0
    success: bool = False
    target: Mapping[str, float] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    last_quality: Mapping[str, float] = field(default_factory=dict)
    progress_unit: str = "epochs"
    progress_to_converge: float | None = None
    eval_spacing: float | None = None
    epoch_offset: int = 0
    eval_seconds: float = 0.0
    accelerator: str = ""
    num_accelerators: int | None = None
    precision: str = ""
    software: str = ""
    scale: str = ""
    global_batch_size: int | None = None
    batch_unit: str = "samples"
    seed: int | None = None
    streams: dict[str, int] = field(default_factory=dict)
    host: str = ""
    boot: str = ""
    gpu_ids: frozenset[str] = frozenset()
    train_samples: int | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    execution: dict[str, Any] = field(default_factory=dict)
    run_record: RunRecord | None = None
    scaling_factor: float | None = None
    flags: list[str] = field(default_factory=list)
    inferred: list[str] = field(default_factory=list)

    @property
    def execution_paths(self) -> dict[str, str]:
        """The execution paths in the run record, {} without; a loader that the log names is left out."""
        paths = self.run_record.execution_paths if self.run_record else {}
        is_logged = "timetrial_loader" in self.execution
        return {as_name(part): as_name(path) for part, path in paths.items() if part != "loader" or not is_logged}

    @property
    def is_unfinished(self) -> bool:
        """Whether this is a run of timetrial that is still running, or was stopped and can be resumed."""
        return self.run_record is not None and self.run_record.state in (RunState.RUNNING, RunState.STOPPED)

    @property
    def folder(self) -> Path:
        """Folder of the log."""
        return self.source.parent

    @property
    def train_seconds(self) -> float:
        """Duration without evaluation, as far as the log separates them."""
        return (self.duration or 0.0) - self.eval_seconds

    @property
    def epochs_to_converge(self) -> float | None:
        """Epochs trained until the target was reached; None if the log counts samples."""
        return self.progress_to_converge if self.progress_unit == "epochs" else None

    @property
    def samples_to_converge(self) -> float | None:
        """Samples trained until the target was reached; None if the log counts epochs."""
        return self.progress_to_converge if self.progress_unit == "samples" else None

    @property
    def pace(self) -> float | None:
        """Seconds of time-to-train per epoch, or per sample."""
        return self.duration / self.progress_to_converge if self.duration and self.progress_to_converge else None

    @property
    def train_pace(self) -> float | None:
        """Seconds per epoch, or per sample, without evaluation, as far as the log separates it."""
        return self.train_seconds / self.progress_to_converge if self.duration and self.progress_to_converge else None

    @property
    def is_diverged(self) -> bool:
        """Whether timetrial ended the run because its loss was no longer finite."""
        return self.run_record is not None and self.run_record.state == RunState.DIVERGED
