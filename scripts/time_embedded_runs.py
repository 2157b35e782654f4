#!/usr/bin/env python
"""Time the embedded run of each workload: seconds to the first line, of the whole command, and to the target.

    .venv/bin/python -P scripts/time_embedded_runs.py [WORKLOAD...]

Prints a JSON line for each. The data are generated anew. Leave the machine idle.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from timetrial.runner.record.run_dir import RunDir

_ROOT = Path(__file__).resolve().parents[1]
_SEED = 1


def time_run(workload: str, folder: Path) -> dict[str, Any]:
    """Run the embedded recipe of `workload` in `folder` and return its timings in seconds."""
    keys = [f"workload={workload}", "accelerator=cpu", f"seed={_SEED}", f"run_dir={folder}/run", f"data_dir={folder}"]
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "timetrial", "run", *keys], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first_line = time.monotonic() - started
        process.stdout.read()
    whole = time.monotonic() - started
    record = RunDir(folder / "run", _SEED).record()
    assert record.training is not None
    return {
        "workload": workload,
        "exit_code": process.returncode,
        "first_line": round(first_line, 2),
        "whole": round(whole, 1),
        "to_target": round(record.training.seconds, 1),
        "evaluation": round(record.training.eval_seconds, 1),
        "epochs": record.training.epochs,
        "flags": sorted(record.flags),
    }


def main() -> None:
    """Time the workloads of the command line, or all."""
    names = sys.argv[1:] or sorted(path.stem for path in (_ROOT / "conf" / "workload").glob("*.yaml"))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(time_run(name, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
