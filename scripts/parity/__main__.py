"""Train MLPerf's retired references beside timetrial, and tabulate how they converge.

    python -P -m timetrial.scripts.parity run WORKLOAD --out FILE [--checkout DIR] [--side SIDE] [--seeds 1-10]
        [--jobs N] [KEY=VALUE...]
    python -P -m timetrial.scripts.parity table [--margin FRACTION] FILE...

`run` trains a workload (ncf, gnmt, ssd, resnet50, transformer) with each seed and appends a curve of each run to FILE,
as a line of JSON. Runs that FILE has already are skipped. DIR is a checkout of github.com/mlcommons/training, whose
code is patched in memory; resnet50 and transformer have transcriptions in plain PyTorch instead. KEY=VALUE change the
recipe of both sides.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from . import curves, table

_WORKLOADS = ("gnmt", "ncf", "resnet50", "ssd", "transformer")
_TRANSCRIBED = ("resnet50", "transformer")  # their references are TensorFlow programs


def run(options: argparse.Namespace, overrides: tuple[str, ...]) -> int:
    """Train what FILE lacks; return the number of runs that failed."""
    sides = [options.side] if options.side else list(curves.SIDES)
    if "reference" in sides and options.checkout is None and options.workload not in _TRANSCRIBED:
        raise SystemExit("The reference needs --checkout DIR; --side timetrial trains without it.")
    known = {
        (curve.workload, curve.side, curve.seed, curve.overrides)
        for curve in curves.read([options.out] if options.out.exists() else [])
    }
    changed = curves.of_recipe(overrides)
    wanted = [(side, seed) for seed in curves.parse_seeds(options.seeds) for side in sides]
    wanted = [(side, seed) for side, seed in wanted if (options.workload, side, seed, changed) not in known]
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(_train, options, overrides, side, seed): (side, seed) for side, seed in wanted}
        failures = 0
        for task in as_completed(running):
            name = "{} {} seed {}".format(options.workload, *running[task])
            if line := task.result():
                with open(options.out, "a", encoding="utf-8") as file:
                    file.write(line)
                print(f"{name}: done", flush=True)
            else:
                print(f"{name}: failed", flush=True)
                failures += 1
    return failures


def _train(options: argparse.Namespace, overrides: tuple[str, ...], side: str, seed: int) -> str | None:
    """Return the line of one run, from a process of its own; None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", f"{__package__}.single", options.workload, side, str(seed), folder]
        if options.checkout is not None:
            command += ["--checkout", str(options.checkout.resolve())]
        environment = os.environ | {"PYTHONWARNINGS": "ignore"}
        result = subprocess.run(
            [*command, *overrides], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if result.returncode:
            print(*result.stdout.splitlines()[-20:], sep="\n")
            return None
        return (Path(folder) / "curve.json").read_text(encoding="utf-8")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("workload", choices=_WORKLOADS)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--checkout", type=Path)
    running.add_argument("--side", choices=curves.SIDES)
    running.add_argument("--seeds", default="1-10")
    running.add_argument("--jobs", type=int, default=1)
    tabulating = commands.add_parser("table")
    tabulating.add_argument("files", nargs="+", type=Path)
    tabulating.add_argument("--margin", type=float, default=0.05)
    options, overrides = parser.parse_known_args()
    for override in overrides:
        if options.command == "table" or override.startswith("-") or "=" not in override:
            parser.error(f"unknown argument: {override}")
    if options.command == "run":
        sys.exit(bool(run(options, tuple(overrides))))
    print(table.format_table(curves.read(options.files), options.margin), end="")


if __name__ == "__main__":
    main()
