"""The table that ends `timetrial run` and `timetrial throughput`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..config.schema import Config
from ..config.validation import run_seed
from ..core.execution_paths import format_paths
from ..core.formatting import format_energy, format_number
from ..hardware import devices
from ..record.published_results import compare_with_published
from ..record.reference_throughput import compare_with_references
from ..record.run_dir import RunDir
from ..record.run_record import ComplianceVerdict, RunRecord, RunState
from ..record.throughput_result import ThroughputResult
from ..record.training_result import TrainingResult

_PROBLEMS_SHOWN = 3
Row = tuple[str, str]


def run_title(config: Config) -> str:
    """Return the title of a run: workload, scale, GPUs, precision and seed."""
    gpus = f"{config.gpus} x {devices.display_name(config.accelerator.name)}"
    gpus += "" if config.peer_to_peer else " without peer-to-peer"
    recipe = f"{config.workload.title} {config.recipe.scale}"
    return f"{recipe}, {gpus}, {config.precision.name}, seed {run_seed(config)}"


def show_result(console: Console, title: str, record: RunRecord, run_dir: RunDir) -> None:
    """Print the result of a run; long paths are not wrapped, so that they can be copied."""
    rows: list[Row] = []
    if record.throughput is not None:
        rows += _throughput_rows(record.throughput, record.peak_memory_bytes)
    elif record.training is not None:
        rows += _training_rows(record.training, is_over=record.state not in (RunState.STOPPED, RunState.TIME_LIMIT))
    if record.execution_paths:
        rows.append(("executed", escape(format_paths(record.execution_paths))))
    rows += [("your GPU", escape(line)) for line in compare_with_references(record)]
    rows += [("published", escape(line)) for line in compare_with_published(record)]
    rows += _telemetry_rows(record)
    if record.restarts:
        lost = record.training.lost_seconds if record.training else 0.0
        rows.append(("restarts", f"{record.restarts}, {lost:.1f} s lost"))
    if record.verdict is not None:
        rows += _verdict_rows(record.verdict)
    if steps := record.config.get("profile", {}).get("steps"):
        missing = f"none: the last attempt ended before step {steps.partition('-')[0]}"
        rows.append(("profile", escape(str(run_dir.profile) if _is_of(record, run_dir.profile) else missing)))
    if run_dir.log.exists():
        rows.append(("log", escape(str(run_dir.log))))
    else:
        rows.append(("run directory", escape(str(run_dir.path))))
    show_rows(console, title, rows)
    if record.error:
        console.print(f"\n[red]{record.state}[/red]: {escape(record.error)}", soft_wrap=True, highlight=False)


def _is_of(record: RunRecord, file: Path) -> bool:
    """Return whether the last attempt of a run wrote a file."""
    return file.exists() and file.stat().st_mtime >= record.attempts[-1].started_at


def show_rows(console: Console, title: str, rows: Sequence[Row]) -> None:
    """Print a title and below it names with their values, which are markup."""
    console.print(f"\n[bold]{escape(title)}[/bold]", soft_wrap=True)
    for name, value in rows:
        console.print(f"  {name:<13} {value}", soft_wrap=True, highlight=False)


def _training_rows(training: TrainingResult, *, is_over: bool) -> Iterator[Row]:
    missed = "no: a censored result" if is_over else "not yet: the run can be resumed"
    reached = "[green]yes[/green]" if training.reached else f"[yellow]{missed}[/yellow]"
    shares = f"train {training.train_seconds:.2f} s, evaluation {training.eval_seconds:.2f} s"
    yield "target", _quality(training.target)
    yield "reached", f"{reached} ({_quality(training.quality)})"
    yield "epochs", str(training.epochs)
    yield "time-to-train" if training.reached else "time", f"{training.seconds:.2f} s ({shares})"
    if training.samples_per_second:
        rate = format_number(training.samples_per_second)
        yield "throughput", f"{rate} samples/s (steady: median of the blocks after the first)"
    yield from _token_rows(training.tokens_per_second)
    if training.first_block_samples_per_second and training.first_block_seconds is not None:
        rate = format_number(training.first_block_samples_per_second)
        yield "first block", f"{rate} samples/s, {training.first_block_seconds:.2f} s"


def _throughput_rows(result: ThroughputResult, peak_memory_bytes: int | None) -> Iterator[Row]:
    spread = f" (blocks within {result.spread:.1%})" if len(result.train_rates) > 1 else ""
    training, evaluation = map(format_number, (result.samples_per_second, result.eval_samples_per_second))
    yield "training", f"{training} samples/s, {result.train_ms:.2f} ms per step{spread}"
    yield from _token_rows(result.tokens_per_second)
    if result.operations_per_second:
        tflops = result.operations_per_second / 1e12 / result.gpus
        peak = result.datasheet_tflops
        share = f", {tflops / peak:.1%} of the data sheet's {peak:g} in this precision" if peak else ""
        yield "", f"{tflops:.3g} TFLOP/s per GPU{share}"
    yield "evaluation", f"{evaluation} samples/s, {result.eval_ms:.2f} ms per batch"
    yield from _token_rows(result.eval_tokens_per_second)
    yield "data wait", f"{result.data_wait_fraction:.1%} of training"
    if peak_memory_bytes:
        yield "memory", f"{peak_memory_bytes / 2**30:.1f} GiB at most on each device"
    if result.usd_per_samples_per_second:
        yield "purchase", f"${format_number(result.usd_per_samples_per_second)} per training sample per second"


def _token_rows(rate: float | None) -> list[Row]:
    """Return the row of the throughput in tokens, for text only."""
    return [("", f"{rate:,.0f} tokens/s, without padding")] if rate else []


def _telemetry_rows(record: RunRecord) -> Iterator[Row]:
    if telemetry := record.telemetry:
        for title, joules, source in (
            ("energy", telemetry.energy_joules, telemetry.energy_source),
            ("host energy", telemetry.host_energy_joules, telemetry.host_energy_source),
        ):
            if joules:
                power = f"{joules / telemetry.seconds:,.0f} W on average" if telemetry.seconds else ""
                yield title, f"{format_energy(joules)}, {power} ({escape(str(source))})"
        if telemetry.samples_per_joule:
            yield "", f"{telemetry.samples_per_joule:,.4g} samples/J"
    if record.cost:
        yield "cost", f"${record.cost.usd:,.3g} at ${record.cost.usd_per_hour:,.3g} an hour"
    for name, sentence in record.flags.items():
        yield escape(name), f"[yellow]{escape(sentence)}[/yellow]"


def format_verdict(verdict: ComplianceVerdict) -> str:
    """Return the verdict as markup in color, with the rules that were applied."""
    color = {True: "green" if verdict.converged else "yellow", False: "red", None: "yellow"}[verdict.compliant]
    rules = "" if verdict.compliant is None else f" ({escape(verdict.rules)})"
    return f"[{color}]{escape(verdict.summary)}[/{color}]{rules}"


def _verdict_rows(verdict: ComplianceVerdict) -> Iterator[Row]:
    yield "MLPerf log", format_verdict(verdict)
    for problem in verdict.problems[:_PROBLEMS_SHOWN]:
        yield "", escape(problem)
    if len(verdict.problems) > _PROBLEMS_SHOWN:
        yield "", f"and {len(verdict.problems) - _PROBLEMS_SHOWN} more, see timetrial check"


def _quality(quality: dict[str, float] | None) -> str:
    return escape(", ".join(f"{metric} {value:.4f}" for metric, value in (quality or {}).items())) or "none measured"
