#!/usr/bin/env python
"""Measure how long a run takes to stop when a stop signal arrives within its first evaluation.

    .venv/bin/python scripts/stop_in_evaluation.py                    every workload at the embedded scale
    .venv/bin/python scripts/stop_in_evaluation.py workload=ssd gpus=2

Sends SIGTERM as soon as the log shows eval_start, and prints one JSON line per workload: seconds until the run has
ended, its exit code, and whether its checkpoint continues with the evaluation. An evaluation that is over when the
signal arrives gives `evaluation_pending: false`.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timetrial.runner.record.run_dir import RunDir
from timetrial.runner.training.checkpoint import load_checkpoint

_CONF = Path(__file__).resolve().parents[1] / "conf"


def measure(overrides: list[str]) -> dict[str, object]:
    """Return seconds from signal to end, the exit code, and whether the checkpoint continues with the evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir(Path(folder) / "run", 1)
        keys = ["accelerator=cpu", "seed=1", f"run_dir={run_dir.path}", f"data_dir={folder}/data"]
        command = [sys.executable, "-P", "-m", "timetrial", "run", *keys, *overrides]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while not (run_dir.log.exists() and '"eval_start"' in run_dir.log.read_text()):
                if process.poll() is not None:
                    sys.exit(f"{' '.join(command)} ended with code {process.returncode} before an evaluation")
                time.sleep(0.01)
            started = time.monotonic()
            process.send_signal(signal.SIGTERM)
            exit_code = process.wait()
        return {
            "seconds": round(time.monotonic() - started, 2),
            "exit_code": exit_code,
            "evaluation_pending": load_checkpoint(run_dir.checkpoint)["evaluation_pending"],
        }


def main() -> None:
    """Measure one run or every workload."""
    workloads = sorted(path.stem for path in (_CONF / "workload").glob("*.yaml"))
    runs = [sys.argv[1:]] if sys.argv[1:] else [[f"workload={name}"] for name in workloads]
    for overrides in runs:
        print(json.dumps({"run": " ".join(overrides)} | measure(overrides)), flush=True)


if __name__ == "__main__":
    main()
