"""The table of variation within published entries."""

import json
import math
import subprocess
import sys

import pytest

SECONDS = {"box": [100.0, 110.0, 120.0], "rack": [50.0, 50.0, 50.0, 50.0]}
SAMPLES = {"box": [1000, 1100, 1200], "rack": [1000, 1000, 1250, 1250]}


def write_log(path, seconds, samples):
    entries = [
        ("run_start", None, 0.0, {}),
        ("eval_accuracy", 0.9, seconds, {"samples_count": samples}),
        ("run_stop", None, seconds, {"status": "success"}),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(
            ":::MLLOG "
            + json.dumps({"key": key, "value": value, "time_ms": round(1e12 + 1000 * time), "metadata": metadata})
            + "\n"
            for key, value, time, metadata in entries
        )
    )


def variation(values):
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)) / mean


@pytest.mark.integration
def test_pools_entries(root, tmp_path):
    for system, seconds in SECONDS.items():
        for number, (time, samples) in enumerate(zip(seconds, SAMPLES[system], strict=True)):
            write_log(tmp_path / f"v5.0/Maker/{system}/llama2_70b_lora/result_{number}.txt", time, samples)
    for number in range(2):  # too few runs for an entry
        write_log(tmp_path / f"v5.0/Maker/small/llama2_70b_lora/result_{number}.txt", 10.0 + 90 * number, 1000)
    command = [sys.executable, "-P", str(root / "scripts/measure/published_variation.py"), str(tmp_path)]
    lines = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells[:4] == ["llama2_70b_lora v5.0", "samples", "2", "7"]
    paces = {name: [t / n for t, n in zip(SECONDS[name], SAMPLES[name], strict=True)] for name in SECONDS}
    for cell, measure in zip(cells[4:], (SECONDS, SAMPLES, paces), strict=True):
        box, rack = variation(measure["box"]), variation(measure["rack"])
        pooled = math.sqrt((2 * box**2 + 3 * rack**2) / 5)
        assert cell == f"{(box + rack) / 2:.2%} ({pooled:.2%})"
    assert len(lines) == 3
