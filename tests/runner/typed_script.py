"""A user's script: train three seeds, read runs, and compare two folders. mypy checks it (check_types_and_imports)."""

from pathlib import Path

import timetrial

runs = timetrial.run("-m", "workload=ncf", "accelerator=cpu", "seed=1,2,3")
best = float(runs["seconds"].min())
print(f"{len(runs)} runs, the fastest took {best:.1f} s")

everything = timetrial.read_runs(Path("runs"), "other/runs")
reached = everything[everything["quality_hit_rate"] >= 0.4]
names: list[str] = sorted(reached["system"].unique())

for comparison in timetrial.compare("runs/a", "runs/b", margin=0.1):
    if isinstance(comparison, timetrial.Comparison) and comparison.time is not None:
        print(comparison.verdict, comparison.time.low, comparison.time.high)
    else:
        print(comparison.verdict)

built: timetrial.Report = timetrial.report("runs", out=Path("report"), baseline=names[0])
print(built.systems)
