"""Run groups: runs of one workload on one system with one setting. Scores and comparisons are made of run groups."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...core.execution_paths import format_paths
from ..parse import rules
from ..parse.runs import Run
from . import samples, stats
from .failures import Outcomes
from .intervals import CLOCK_SECONDS, Interval, Sample, grid_floor, log_mean
from .stats import SurvivalCurve

UNOFFICIAL = "unofficial"  # submitter of logs, unless `submission.org` names another
_Key = tuple[str, str, str, str, str]


@dataclass
class RunGroup:
    """Runs that differ only by seed and by chance.

    `scaling_factor` is the factor that MLPerf applied to the score. `label` replaces submitter, system and setting in
    the title.
    """

    round: str
    submitter: str
    system: str
    benchmark: str
    setting: str
    runs: list[Run] = field(default_factory=list)
    scaling_factor: float | None = None
    label: str = ""

    @property
    def title(self) -> str:
        """A name that is unique among all groups."""
        if self.label:
            return f"{self.label} ({self.benchmark} {self.round})"
        setting = self.setting and f", {self.setting}"
        return f"{self.origin} ({self.benchmark} {self.round}{setting})"

    @property
    def origin(self) -> str:
        """Submitter and system; the system alone if nobody set `submission.org`."""
        submitter = "" if self.submitter == UNOFFICIAL else self.submitter
        return f"{submitter} {self.system}".strip() or self.submitter

    @property
    def model(self) -> str:
        """The trained model: the benchmark `ssd` has had two."""
        return rules.model_name(self.benchmark, self.round)

    @property
    def workload(self) -> str:
        """Model, round and scale; groups of the same workload can be compared."""
        return " ".join(part for part in (self.model, self.round, self.runs[0].scale) if part)

    @property
    def accelerators(self) -> str:
        """Number and name of the accelerators, such as "8 x Tesla V100-SXM2-16GB", or only the name."""
        run = self.runs[0]
        count = f"{run.num_accelerators} x " if run.num_accelerators else ""
        return f"{count}{run.accelerator}" if run.accelerator else ""

    @cached_property
    def converged_runs(self) -> list[Run]:
        """The runs that reached the target; for NCF in MLPerf v0.5 the first 50 of them, by its rule."""
        if not self._takes_first_fifty:
            return self._successful_runs
        indices = stats.first_converged(
            [run.duration or 0.0 for run in self.runs],
            [run.success for run in self.runs],
            [run.started for run in self.runs],
        )
        return [self.runs[index] for index in indices]

    @property
    def num_failed(self) -> int:
        """Number of runs without a result that count against the score."""
        return 0 if self._takes_first_fifty else len(self.runs) - len(self._successful_runs)

    @cached_property
    def _successful_runs(self) -> list[Run]:
        return [run for run in self.runs if run.success and run.duration]

    @property
    def _takes_first_fifty(self) -> bool:
        is_own = self.runs[0].run_record is not None
        return self.benchmark == "ncf" and self.round == "v0.5" and len(self._successful_runs) >= 50 and not is_own

    @property
    def minutes(self) -> list[float]:
        """Time-to-train of the converged runs, in minutes."""
        return [(run.duration or 0.0) / 60 for run in self.converged_runs]

    @property
    def progress_unit(self) -> str:
        """What convergence is counted in: "epochs", or "samples" where the logs count these."""
        return self.runs[0].progress_unit

    @property
    def epochs(self) -> list[float]:
        """Epochs to converge of the converged runs, or samples (`progress_unit`)."""
        return [float(run.progress_to_converge) for run in self.converged_runs if run.progress_to_converge]

    @property
    def epoch_floor(self) -> float:
        """Standard deviation of the log of `epochs` that the grid of evaluations adds, whatever the epochs seen."""
        spacings = [run.eval_spacing for run in self.converged_runs if run.eval_spacing]
        spacing = sum(spacings) / len(spacings) if spacings else float(self.progress_unit == "epochs")
        return grid_floor(spacing, sum(self.epochs) / len(self.epochs)) if self.epochs else 0.0

    @cached_property
    def independent_runs(self) -> list[list[Run]]:
        """The converged runs in clusters of repeats."""
        return samples.independent_runs(self.converged_runs)

    def sample(self, value_of: Callable[[Run], float | None], floor: float = 0.0) -> Sample:
        """Return one value per independent converged run."""
        return samples.sample(self.independent_runs, value_of, floor)

    @cached_property
    def time_sample(self) -> Sample:
        """Time-to-train in seconds; it varies at least by the grid of evaluations."""
        return self.sample(lambda run: run.duration, max(self.epoch_floor, self.clock_floor))

    @cached_property
    def epoch_sample(self) -> Sample:
        """Epochs to converge, or samples."""
        return self.sample(lambda run: run.progress_to_converge, self.epoch_floor)

    @cached_property
    def pace_sample(self) -> Sample:
        """Seconds per epoch, or per sample, with evaluation."""
        return self.sample(lambda run: run.pace, self.clock_floor)

    @property
    def clock_floor(self) -> float:
        """Standard deviation of the log of a time that the resolution of the log's clock adds."""
        seconds = [60 * minutes for minutes in self.minutes]
        return grid_floor(CLOCK_SECONDS, sum(seconds) / len(seconds)) if seconds else 0.0

    @cached_property
    def outcomes(self) -> Outcomes:
        """Seconds of the independent converged and failed runs: repeats of a seed count once on either side."""
        failed = [run for run in self.runs if not run.success or not run.duration] if self.num_failed else []
        seconds = [[run.observed for run in repeats] for repeats in samples.independent_runs(failed)]
        return Outcomes(
            self.time_sample.values, tuple(sum(values) / len(values) for values in seconds), self.epoch_floor
        )

    @property
    def horizon(self) -> float:
        """Seconds up to which the outcome of every run is known: the shortest time at which one was given up.

        A run that diverged would never have converged and is known for all times.
        """
        ends = [run.observed for run in self.runs if not run.success and not run.is_diverged]
        return min(ends, default=max(run.observed for run in self.runs))

    @property
    def seconds_per_epoch(self) -> list[float]:
        """Time-to-train over epochs of the converged runs."""
        return [run.pace for run in self.converged_runs if run.pace]

    @property
    def train_seconds_per_epoch(self) -> list[float]:
        """Seconds per epoch without evaluation, where the log separates it."""
        return [run.train_seconds / run.progress_to_converge for run in self.converged_runs if run.progress_to_converge]

    @cached_property
    def minutes_olympic(self) -> float | None:
        """MLPerf's score in minutes, before scaling."""
        return stats.olympic_mean(self.minutes, self.num_failed)

    @property
    def score_interval(self) -> Interval | None:
        """MLPerf's score in minutes, scaled, with its interval; None without a score."""
        score = stats.olympic_interval(self.minutes, self.time_sample, self.num_failed)
        return score and score.scaled(self.scaling_factor or 1.0)

    @property
    def minutes_scaled(self) -> float | None:
        """MLPerf's score in minutes, times the factor that compensates for fast convergence."""
        return self.minutes_olympic and self.minutes_olympic * (self.scaling_factor or 1.0)

    @cached_property
    def epochs_olympic(self) -> float | None:
        """Olympic mean of the epochs to converge."""
        return stats.olympic_mean(self.epochs, self.num_failed)

    @cached_property
    def mean_minutes(self) -> Interval:
        """Geometric mean of the time-to-train of the converged runs, in minutes."""
        return log_mean(self.time_sample).interval().scaled(1 / 60)

    @cached_property
    def mean_epochs(self) -> Interval:
        """Geometric mean of the epochs to converge, or of the samples."""
        return log_mean(self.epoch_sample).interval()

    @cached_property
    def mean_seconds_per_epoch(self) -> Interval:
        """Geometric mean of the time per epoch, or per sample, in seconds."""
        return log_mean(self.pace_sample).interval()

    @property
    def train_samples(self) -> int | None:
        """Samples of the training set: as logged by timetrial, else those of the reference."""
        run = self.runs[0]
        return run.train_samples if run.run_record is not None else rules.train_samples(self.model)

    @cached_property
    def throughput_per_accelerator(self) -> float | None:
        """Training samples per second per accelerator, without evaluation where it is logged; None if unknown."""
        num_accelerators, seconds = self.runs[0].num_accelerators, self.train_seconds_per_epoch
        if not self.train_samples or not num_accelerators or not seconds or not all(seconds):
            return None
        return self.train_samples * len(seconds) / sum(seconds) / num_accelerators

    @property
    def median_window(self) -> tuple[int, float] | None:
        """First run and score of the median window of consecutive runs, if there are more runs than a score needs.

        The rule of MLPerf v1.1 for submitters with additional runs; None where it does not apply.
        """
        required = rules.runs_per_score(self.benchmark)
        if not required or len(self.runs) <= required or self.benchmark == "ncf":
            return None
        own = all(run.run_record is not None for run in self.runs)  # other logs come in the order of their numbers
        runs = sorted(self.runs, key=lambda run: run.started) if own else self.runs
        return stats.median_window([run.observed / 60 for run in runs], [not run.success for run in runs], required)

    @cached_property
    def survival(self) -> SurvivalCurve:
        """Fraction of runs that reached the target by a time in minutes.

        The others are censored at their end, but a run that diverged counts as one that never converges.
        """
        longest = max(run.observed for run in self.runs)
        minutes = [(longest if run.is_diverged else run.observed) / 60 for run in self.runs]
        return stats.kaplan_meier(minutes, [run.success for run in self.runs])


def group_runs(runs: Iterable[Run]) -> list[RunGroup]:
    """Return the runs in groups, in order of their first run; unfinished runs are left out.

    Runs of timetrial whose configurations differ get groups of their own, whose setting names the differences.
    """
    finished = [run for run in runs if not run.is_unfinished]
    configurations: dict[_Key, list[dict[str, Any]]] = {}  # all different ones by key
    for run in finished:
        known = configurations.setdefault(_group_key(run), [])
        if (configuration := _configuration(run)) not in known:
            known.append(configuration)
    groups: dict[_Key, RunGroup] = {}
    for run in finished:
        key = _group_key(run)
        setting = ", ".join([key[4], *_describe_differences(_configuration(run), configurations[key])])
        full_key = (*key[:4], setting)
        if full_key not in groups:
            groups[full_key] = RunGroup(*full_key, scaling_factor=run.scaling_factor)
        groups[full_key].runs.append(run)
    return list(groups.values())


def _group_key(run: Run) -> _Key:
    """Return round, submitter, system, benchmark and, for timetrial's runs, scale, accelerators, precision, batch."""
    setting = ""
    if run.run_record is not None:
        accelerators = f"{run.num_accelerators} x {run.accelerator}"
        setting = f"{run.scale}, {accelerators}, {run.precision}, batch {run.global_batch_size}"
    return run.round, run.submitter, run.system, run.benchmark, setting


def _configuration(run: Run) -> dict[str, Any]:
    """Return what else separates runs of timetrial: execution, target and hyperparameters; {} for other runs."""
    if run.run_record is None:
        return {}
    target = ", ".join(f"{value:g}" for value in run.target.values())
    return {**run.execution, "executed": format_paths(run.execution_paths), "target": target, **run.hyperparameters}


def _describe_differences(configuration: dict[str, Any], all_configurations: list[dict[str, Any]]) -> list[str]:
    """Return text for each setting of `configuration` that is not the same in all configurations."""
    keys = dict.fromkeys(key for other in all_configurations for key in other)
    differing = [key for key in keys if any(other.get(key) != configuration.get(key) for other in all_configurations)]
    return [
        f"{_readable_key(key)} {configuration[key]}" if key in configuration else f"no {_readable_key(key)}"
        for key in differing
    ]


def _readable_key(key: str) -> str:
    for prefix in ("timetrial_", "sgd_", "lars_", "opt_"):
        key = key.removeprefix(prefix)
    return key.replace("_", " ")
