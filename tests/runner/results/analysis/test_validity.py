"""What a report says of energy, cost and flags of our own runs."""

import csv
import json
from types import SimpleNamespace

from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.results.analysis import validity
from timetrial.runner.results.report import build, csv_tables


def test_energy_cost_and_flags_reach_the_report(launch, tmp_path):
    for seed, joules in ((1, 1000.0), (2, 3000.0)):
        _, folder = launch(f"seed={seed}", "recipe.target.v05.hit_rate=0.01", "usd_per_gpu_hour=3.6")
        drawn = {"cards": 1, "energy_joules": joules, "energy_source": "NVML's counter", "mean_watts": 100.0}
        told = folder.status()["telemetry"] | drawn | {"samples_per_joule": 5.0}
        flags = {"throttled": "clocks were lowered (thermal) in 12% of a card's samples"} if seed == 2 else {}
        RunDir(folder.path, seed).update_status(telemetry=told, flags=flags)
    found = build.build([tmp_path / "runs"])
    sentences = {finding.kind: finding.sentence for finding in found.findings if "uns" in finding.sentence}
    assert "energy-to-train 2 kJ (NVML's counter), 100 W, 5 samples/J, cost-to-train $" in sentences["note"]
    assert sentences["flag"].startswith("throttled: 1 of 2 runs, such as: clocks were lowered (thermal)")
    assert [run.flags for run in found.runs] == [[], ["throttled"]]
    csv_tables.write_runs(tmp_path / "runs.csv", found.runs)
    rows = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert [row["energy_j"] for row in rows] == ["1000.0", "3000.0"]
    assert json.loads(rows[0]["cost_usd"]) > 0


def test_runs_without_energy_are_left_out_of_the_mean():
    one = {"energy_joules": 1000.0, "energy_source": "NVML's counter", "mean_watts": 10.0, "samples_per_joule": 5.0}
    one["cards"] = 1
    runs = [SimpleNamespace(own={"telemetry": told}) for told in (one, one | dict.fromkeys(one) | {"cards": 1})]
    (found,) = validity._energy(SimpleNamespace(converged=runs, title="cell"))
    assert "1 kJ" in found.sentence
    assert found.sentence.endswith("one run.")
