"""Figures that are measured and written into performance.csv."""

import csv
import io
import subprocess
import sys
from dataclasses import replace

import pytest

from timetrial.runner.record.performance import PERFORMANCE_FILE, read_measurements
from timetrial.scripts.measure import record_performance as record


def test_writes_what_it_reads():
    stream = io.StringIO()
    record.write_rows(read_measurements(), stream)
    assert stream.getvalue() == PERFORMANCE_FILE.read_text()


def test_a_new_row_replaces_that_of_the_same_configuration_and_quantity():
    first, *_, last = rows = read_measurements()
    newer = replace(first, value=1.5, date="2027-01-01")
    assert record.merge(rows, [newer]) == [newer, *rows[1:]]
    other = replace(first, gpu="B200")
    merged = record.merge(rows, [other])
    assert len(merged) == len(rows) + 1
    assert merged[-1] == last
    assert merged[merged.index(other) - 1].workload == first.workload


def test_every_measurement_is_one_that_the_file_has():
    synthetic = {row.workload for row in read_measurements() if row.settings and row.data == "synthetic"}
    assert set(record.MEASUREMENTS) == synthetic - {"cnn"}


@pytest.mark.parametrize(("name", "short"), [("h100", "H100"), ("NVIDIA H200", "H200"), ("cpu", "CPU")])
def test_names_a_gpu_after_its_configuration(name, short):
    assert record.short_name(name) == short


def test_the_rates_of_a_gpu_are_of_the_largest_product_and_the_best_copy():
    def row(kind, size, tflops):
        shape = f"{size} x {size} x {size}"
        return {"kind": kind, "compute": "bf16", "shape": shape, "operations": 2.0 * size**3, "tflops": tflops}

    document = {
        "card": "h100", "peaks": {"gb_s": 3000.4}, "rows": [row("gemm", 4096, 724.0), row("gemm", 16384, 696.04)],
        "system": {"packages": {"torch": "2.11.0+cu130"}, "timetrial": {"version": "0.1.0", "revision": "abcdef0123"}},
    }  # fmt: skip
    rate, bandwidth = record.rows_of_peaks(document, "timetrial peaks gemm copy")
    assert (rate.quantity, rate.value, rate.unit, rate.gpu) == ("product rate", 696.0, "TFLOP/s", "H100")
    assert (bandwidth.quantity, bandwidth.value, bandwidth.unit) == ("memory bandwidth", 3.0, "TB/s")
    assert (rate.pytorch, rate.commit) == ("2.11", "abcdef0")


@pytest.mark.integration
def test_measures_a_workload(tmp_path):
    overrides = "scale=embedded precision=fp32 recipe.global_batch_size=512 throughput.steps=1 throughput.blocks=2"
    data = ["recipe.data.generate={num_users:60,num_items:200,num_ratings:1800,num_clusters:3}", "accelerator=cpu"]
    command = [
        sys.executable,
        "-P",
        record.__file__,
        "--only",
        "ncf",
        "--out",
        tmp_path / "out.csv",
        "--commit",
        "1234567",
    ]
    command += [*overrides.split(), *data, "recipe.data.eval_negatives=50", f"data_dir={tmp_path}"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    with open(tmp_path / "out.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == "CPU"]
    assert {row["quantity"] for row in rows} == {"training", "step", "evaluation", "start"}
    values = {row["quantity"]: float(row["value"]) for row in rows}
    assert values["training"] == pytest.approx(512 / values["step"] * 1e3, rel=1e-3)
    assert {(row["batch"], row["commit"], row["current"]) for row in rows} == {("512", "1234567", "yes")}
