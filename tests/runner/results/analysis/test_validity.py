"""Energy, cost and flags of own runs in a report."""

import csv
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.record.run_record import Cost, RunRecord, TelemetrySummary
from timetrial.runner.results.analysis import validity
from timetrial.runner.results.analysis.groups import RunGroup
from timetrial.runner.results.analysis.intervals import arithmetic_mean
from timetrial.runner.results.parse.runs import Run
from timetrial.runner.results.report import build, csv_tables

SUMMARY = TelemetrySummary(
    gpus=1,
    every_seconds=1.0,
    seconds=10.0,
    energy_joules=1000.0,
    energy_source="NVML's counter",
    integral_joules=None,
    host_energy_joules=None,
    host_energy_source=None,
    mean_watts=100.0,
    train_watts=None,
    eval_watts=None,
    samples_per_joule=5.0,
    core_mhz=None,
    highest_temperature_c=None,
    highest_memory_mib=None,
    at_power_cap=0.0,
)


def test_report_shows_energy_cost_and_flags(launch, tmp_path):
    for seed, joules in ((1, 1000.0), (2, 3000.0)):
        _, folder = launch(f"seed={seed}", "recipe.target.v05.hit_rate=0.01", "usd_per_gpu_hour=3.6")
        telemetry = replace(SUMMARY, energy_joules=joules)
        flags = {"throttled": "clocks were lowered (thermal) in 12% of a GPU's samples"} if seed == 2 else {}
        RunDir(folder.path, seed).update(partial(replace, telemetry=telemetry, flags=flags))
    report = build.build_report([tmp_path / "runs"])
    messages = {finding.kind: finding.message for finding in report.findings if "uns" in finding.message}
    # Two runs of 1 and 3 kJ say little: Student's t with one degree of freedom.
    assert "energy-to-train 2 kJ (0.29 J to 3.83 kWh) (NVML's counter), 100 W, 5 samples/J" in messages["note"]
    assert ", cost-to-train $" in messages["note"]
    assert messages["flag"].startswith("throttled: 1 of 2 runs, for example: clocks were lowered (thermal)")
    assert [run.flags for run in report.runs] == [[], ["throttled"]]
    csv_tables.write_runs(tmp_path / "runs.csv", report.runs)
    rows = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert [row["energy_j"] for row in rows] == ["1000.0", "3000.0"]
    assert float(rows[0]["cost_usd"]) > 0


def test_mean_energy_ignores_runs_without_energy():
    unknown = replace(SUMMARY, energy_joules=None, energy_source=None, mean_watts=None, samples_per_joule=None)
    runs = [SimpleNamespace(run_record=RunRecord(telemetry=telemetry)) for telemetry in (SUMMARY, unknown)]
    group = SimpleNamespace(converged_runs=runs, independent_runs=[[run] for run in runs], title="group", num_failed=0)
    (finding,) = validity._describe_energy(group)
    assert "1 kJ" in finding.message
    assert finding.message.endswith("one run.")


def test_repeats_of_a_seed_are_no_further_observations():
    """Five repeats of each of two seeds say as much about other seeds as two runs."""
    group = RunGroup("v0.5", "unofficial", "here", "ncf", "")
    for seed, joules in ((1, 1000.0), (2, 1100.0)):
        for _ in range(5):
            run = Run(Path("result_0.txt"), Path("result_0.txt"), success=True, duration=10.0, observed=10.0, seed=seed)
            telemetry = replace(SUMMARY, energy_joules=joules)
            run.run_record = RunRecord(telemetry=telemetry, cost=Cost(usd=joules / 1000, usd_per_hour=1.0))
            group.runs.append(run)
    assert validity.mean_energy(group) == arithmetic_mean([1000.0, 1100.0])
    assert validity.mean_cost(group).n == 2
    for run in group.runs[5:]:
        run.success, run.duration = False, None
    outcomes = replace(group).outcomes
    assert outcomes.converged == pytest.approx((10.0,))
    assert outcomes.failed == pytest.approx((10.0,))
