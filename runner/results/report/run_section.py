"""The runs of a benchmark on the page: a row each, what happened in each, and the curves of any two."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ...core.formatting import format_energy
from ...core.found_files import as_name, make_visible
from ...record.run_record import ComplianceVerdict, RunClass, RunRecord, TelemetrySummary
from ..analysis.groups import RunGroup
from ..parse.runs import Run
from .benchmark_charts import format_duration, metric_title, time_unit
from .chart import Plot
from .page_text import format_number
from .run_curves import CurveChoice, plot_curves
from .systems import System
from .tables import Table

_CLASSES = {
    RunClass.RESUMED.value: "the run went on from a checkpoint after it had stopped",
    RunClass.PROFILED.value: "a profiler took part of the time",
}
_LEAST_SHARE = 0.005  # of the time, for a part to be named


@dataclass(frozen=True)
class RunView:
    """What happened in one run: facts by name, and each part of its time on the clock with its percentage."""

    anchor: str
    title: str
    facts: Mapping[str, str]
    times: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class RunSection:
    """The runs of a benchmark; `choices` are those of the menus of curves by system, `picked` the first two."""

    table: Table
    views: Sequence[RunView]
    choices: Mapping[str, Sequence[CurveChoice]]
    picked: Sequence[str]
    plots: Sequence[Plot]


def run_section(
    name: str, workload: str, groups: Sequence[tuple[System, RunGroup]], anchors: Mapping[str, str]
) -> RunSection:
    """Return the section of the runs of a benchmark's groups; `anchors` are by path of the log, or title of the group.

    The menus begin with two run groups, or with a run and the median of its group.
    """
    medians, firsts, choices = list[CurveChoice](), list[CurveChoice](), dict[str, list[CurveChoice]]()
    placed: list[tuple[str, System, Run]] = []
    for system, group in groups:
        runs = sorted(group.runs, key=_own_seed)
        labels = [f"{system.label}, {label}" for label in _label_runs(runs)]
        own = [
            CurveChoice(anchors[str(run.source)], label, [run], system.gpu)
            for run, label in zip(runs, labels, strict=True)
        ]
        choices[system.label] = own
        placed += [(label, system, run) for run, label in zip(runs, labels, strict=True)]
        if len(own) > 1:
            label = f"{system.label}, median of {len(own)} runs"
            medians.append(CurveChoice(anchors[group.title], label, group.runs, system.gpu))
        firsts.append(medians[-1] if len(own) > 1 else own[0])
    listed = {"Run groups": medians} if medians else {}
    listed |= choices
    firsts = firsts[:2] if len(groups) > 1 else [next(iter(choices.values()))[0], *medians]
    picked = [choice.anchor for choice in firsts]
    views = [_view(run, f"{workload} on {label}", anchors[str(run.source)]) for label, _, run in placed]
    plots = plot_curves(name, [choice for entries in listed.values() for choice in entries], picked)
    return RunSection(_run_table(placed, anchors), views, listed, picked, plots)


def _own_seed(run: Run) -> int:
    """Return the seed of a run of timetrial; 0 for published logs, which stay in the order of their names."""
    return run.seed or 0 if run.run_record else 0


def _label_runs(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run of a group: its seed, or the name of its log; equal ones are numbered."""
    labels = [run.source.stem if run.run_record is None else f"seed {run.seed}" for run in runs]
    times, seen = Counter(labels), Counter[str]()
    unique = []
    for label in labels:
        seen[label] += 1
        unique.append(f"{label} ({seen[label]})" if times[label] > 1 else label)
    return unique


def _run_table(placed: Sequence[tuple[str, System, Run]], anchors: Mapping[str, str]) -> Table:
    """Return a row a run, without columns that are empty in all of them; csv/runs.csv has the data."""
    runs = [run for *_, run in placed]
    factor, unit = time_unit([run.observed for run in runs])
    progress = runs[0].progress_unit
    titles = ["Run", "Result", "Started", "Host", "Flags", unit.capitalize(), f"{progress.capitalize()} trained"]
    titles += [metric_title(", ".join(runs[0].target) or "quality")]
    all_rows = [
        [
            label,
            _state(run),
            _date(run.started),
            run.host,
            ", ".join(run.flags),
            format_number(run.observed / factor, 3),
            _progress(run),
            _quality(run.last_quality),
        ]
        for label, _, run in placed
    ]
    used = [index for index in range(len(titles)) if any(row[index] for row in all_rows)]
    return Table(
        "runs",
        "Single runs; a click on a name shows what happened in the run",
        [titles[index] for index in used],
        [[row[index] for index in used] for row in all_rows],
        [],
        sum(index < 5 for index in used),
        gpus=[system.gpu for _, system, _ in placed],
        anchors=[anchors[str(run.source)] for run in runs],
    )


def _view(run: Run, title: str, anchor: str) -> RunView:
    record, facts = run.run_record, {}
    facts["Result"] = _describe_result(run)
    if record:
        facts |= {"Error": record.error} if record.error else {}
        facts["MLPerf log"] = _describe_verdict(record.verdict)
    facts["Started"] = " on ".join(filter(None, (_date(run.started), run.host)))
    facts["System"] = ", ".join(filter(None, _describe_system(run)))
    facts["Recipe"] = ", ".join(filter(None, _describe_recipe(run)))
    facts["Overrides"] = shlex.join(record.attempts[-1].overrides) if record and record.attempts else ""
    facts["Before the clock"] = _describe_startup(record) if record else ""
    facts["Energy"] = ", ".join(_describe_energy(record.telemetry)) if record and record.telemetry else ""
    facts["Cost"] = (
        f"${record.cost.usd:,.3g} at ${record.cost.usd_per_hour:,.3g} an hour" if record and record.cost else ""
    )
    facts["Flags"] = "; ".join(_describe_flags(run)) or ("none" if record else "")
    facts["Folder" if record is None else "Run directory"] = make_visible(str(run.folder))
    return RunView(anchor, title, {name: text for name, text in facts.items() if text}, _times(run))


def _state(run: Run) -> str:
    return run.run_record.state.value if run.run_record else f"target {'' if run.success else 'not '}reached"


def _describe_result(run: Run) -> str:
    parts = [f"{_state(run)} after {format_duration(run.observed)}"]
    if progress := _progress(run):
        parts.append(f"{progress} {run.progress_unit}")
    if run.last_quality:
        target = _quality(run.target)
        metrics = ", ".join(run.target or run.last_quality)
        parts.append(f"{metrics} {_quality(run.last_quality)}" + (f" (target {target})" if target else ""))
    if run.run_record and run.run_record.exit_code is not None:
        parts.append(f"exit code {run.run_record.exit_code}")
    return ", ".join(parts)


def _progress(run: Run) -> str:
    """Return the epochs or samples to the target, or those trained before the last evaluation without it."""
    known = [evaluation.progress for evaluation in run.evaluations if evaluation.progress is not None]
    progress = run.progress_to_converge or (known[-1] if known else None)
    if progress is None:
        return ""
    return f"{progress:,.6g}" if progress < 1e6 else f"{progress:,.0f}"


def _quality(quality: Mapping[str, float]) -> str:
    return ", ".join(f"{value:.4g}" for value in quality.values())


def _date(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):  # a log may state any time
        return ""


def _describe_system(run: Run) -> Iterator[str]:
    yield " × ".join(part for part in (str(run.num_accelerators or ""), run.accelerator) if part)
    yield " ".join(part for part in (run.submitter if run.run_record is None else "", run.system) if part)
    yield run.software
    if run.run_record:
        timetrial = run.run_record.environment.get("timetrial")
        version = timetrial.get("version") if isinstance(timetrial, dict) else None
        yield f"timetrial {as_name(version)}" if version else ""


def _describe_recipe(run: Run) -> Iterator[str]:
    yield " ".join(part for part in (run.benchmark, run.round, run.scale) if part)
    yield f"batch {run.global_batch_size:,} {run.batch_unit}" if run.global_batch_size else ""
    yield run.precision
    yield f"seed {run.seed}" if run.seed is not None else ""


def _describe_startup(record: RunRecord) -> str:
    startup = record.attempts[-1].startup if record.attempts else {}
    listed = ", ".join(f"{as_name(phase)} {seconds:.1f}" for phase, seconds in startup.items() if seconds >= 0.05)
    return f"{sum(startup.values()):.1f} s: {listed}" if listed else ""


def _describe_verdict(verdict: ComplianceVerdict | None) -> str:
    if verdict is None:
        return "not judged"
    return verdict.summary if verdict.compliant is None else f"{verdict.summary} ({verdict.rules})"


def _describe_energy(telemetry: TelemetrySummary) -> Iterator[str]:
    if telemetry.energy_joules:
        yield f"{format_energy(telemetry.energy_joules)} of the GPUs"
    if telemetry.mean_watts:
        yield f"{telemetry.mean_watts:,.0f} W on average"
    if telemetry.host_energy_joules:
        yield f"{format_energy(telemetry.host_energy_joules)} of the hosts"


def _describe_flags(run: Run) -> Iterator[str]:
    for flag in run.flags:
        sentence = run.run_record.flags.get(flag) or _CLASSES.get(flag) if run.run_record else ""
        yield f"{flag}: {sentence}" if sentence else flag


def _times(run: Run) -> list[tuple[str, str, str]]:
    """Return name, time and percentage of each part of the time on the clock; none if nothing ended in that time."""
    training = run.run_record.training if run.run_record else None
    if training and training.blocks:
        parts = {
            "training": training.train_seconds - training.data_wait_seconds,
            "evaluation": training.eval_seconds,
            "waiting for batches": training.data_wait_seconds,
            "between attempts": training.lost_seconds,
        }
        total = training.seconds
    elif run.run_record:
        return []
    else:
        total = run.observed
        parts = {"training and all else": total - run.eval_seconds, "evaluation": run.eval_seconds}
    parts["other"] = total - sum(parts.values())
    return [
        (name, format_duration(seconds, total), f"{100 * seconds / total:.0f}")
        for name, seconds in parts.items()
        if 0 < _LEAST_SHARE * total <= seconds <= total
    ]
