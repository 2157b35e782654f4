"""Rooflines from files as `timetrial peaks` and `timetrial throughput` write them."""

import csv
import json
from dataclasses import asdict, replace

import pytest

from timetrial.runner.benchmarks.peak_rows import Row
from timetrial.runner.core.errors import DataError
from timetrial.runner.record.record_file import encode_record
from timetrial.runner.record.run_record import RunRecord, RunState
from timetrial.runner.record.throughput_result import StepCost, ThroughputResult
from timetrial.runner.record.validity import LOW_UTILIZATION
from timetrial.runner.results.analysis import roofline
from timetrial.runner.results.report import build, page

STEP_COST = StepCost(steps=2, samples=4.0, tokens=0.0, operations=8e12, unfused_bytes=8e10, least_bytes=8e9)
RESULT = ThroughputResult(
    steps=2,
    samples_per_second=100.0,
    tokens_per_second=None,
    train_ms=1.0,
    eval_samples_per_second=100.0,
    eval_tokens_per_second=None,
    eval_ms=1.0,
    train_seconds=1.0,
    data_wait_seconds=0.0,
    spread=0.0,
    train_size=100,
    eval_size=10,
    train_rates=(100.0,),
    eval_rates=(100.0,),
    first_block_extra_seconds=0.0,
    gpus=1,
    datasheet_tflops=None,
    peer_to_peer=True,
    usd_per_samples_per_second=None,
    step_cost=STEP_COST,
)


def write_peaks(folder, measured=1.0, quick=False, stopped=False, gb_s=4000.0, accelerator="h200", host=None, **tflops):
    folder.mkdir(parents=True)
    peaks = {"tflops": tflops, "gb_s": gb_s}
    values = {
        "schema": 1,
        "card": accelerator,
        "measured": measured,
        "quick": quick,
        "stopped": stopped,
        "peaks": peaks,
    }
    values |= {"system": {"hostname": host}} if host else {}
    (folder / "peaks.json").write_text(json.dumps(values))


def write_run(
    folder,
    *,
    network="net",
    precision="bf16",
    gpus=1,
    rate=100.0,
    step_cost=STEP_COST,
    loader="synthetic",
    peer_to_peer=True,
    flags=(),
    accelerator="h200",
    system="here",
):
    folder.mkdir(parents=True)
    config = {
        "throughput": {"steps": 2}, "accelerator": {"name": accelerator}, "system": system, "gpus": gpus,
        "workload": {"name": network}, "precision": {"name": precision}, "engine": {}, "data": {"loader": loader},
        "tuning": {}, "peer_to_peer": peer_to_peer,
        "recipe": {"global_batch_size": 64 * gpus, "training": {}, "data": {}},
    }  # fmt: skip
    (folder / "config.yaml").write_text(json.dumps(config))
    result = replace(RESULT, samples_per_second=rate, gpus=gpus, peer_to_peer=peer_to_peer, step_cost=step_cost)
    record = RunRecord(state=RunState.MEASURED, flags=dict.fromkeys(flags, ""), config=config, throughput=result)
    (folder / "status.json").write_text(encode_record(record))


def test_point_is_per_gpu_with_range_of_intensity(tmp_path):
    write_peaks(tmp_path / "peaks", bf16=800.0)
    write_run(tmp_path / "run", gpus=2)
    (h200,) = build.build_report([tmp_path]).rooflines
    (point,) = h200.points
    assert point.tflops == pytest.approx(8 / 4 * 100 / 2)
    assert (point.unfused_intensity, point.max_intensity) == (100, 1000)
    assert point.fraction_of_measured == pytest.approx(100 / 800)
    assert point.fraction_of_datasheet == pytest.approx(100 / 990)
    assert point.bound == "memory unless fused"  # the ridge is at 200
    assert (h200.measured.gb_s, h200.datasheet.gb_s) == (4000, 4800)


def test_point_names_loader_and_plot_shows_fewest_gpus(tmp_path):
    for gpus, loader in ((2, "synthetic"), (1, "synthetic"), (1, "torch")):
        write_run(tmp_path / f"{loader}{gpus}", gpus=gpus, rate=100.0 * gpus, loader=loader)
    report = build.build_report([tmp_path])
    assert {point.workload for point in report.rooflines[0].points} == {"net", "net with data=torch"}
    page.write_page(report, tmp_path / "page")
    text = (tmp_path / "page" / "report.html").read_text()
    assert "Showing 2 of 3" in text
    assert "net on 2" not in text
    assert "Measurements: timetrial throughput on" in text


def test_point_names_disabled_peer_to_peer(tmp_path):
    write_run(tmp_path / "with", gpus=2)
    write_run(tmp_path / "without", gpus=2, peer_to_peer=False)
    titles = {point.title for point in build.build_report([tmp_path]).rooflines[0].points}
    assert titles == {"net, 2 x h200, bf16, batch 64", "net, 2 x h200, bf16, batch 64, no peer-to-peer"}


def test_low_utilization_is_bound_by_host(tmp_path):
    write_peaks(tmp_path / "peaks", bf16=800.0)
    write_run(tmp_path / "run", flags=[LOW_UTILIZATION])
    assert build.build_report([tmp_path]).rooflines[0].points[0].bound == "the host"


def test_text_is_counted_by_tokens():
    step_cost = replace(STEP_COST, tokens=1000.0)
    result = replace(RESULT, samples_per_second=1.0, tokens_per_second=500.0, step_cost=step_cost)
    assert result.operations_per_second == 8e12 / 1000 * 500
    assert replace(result, step_cost=None).operations_per_second is None


@pytest.mark.parametrize(
    ("unfused", "least", "bound"),
    [(1e9, 1e9, "arithmetic"), (8e11, 8e10, "memory"), (8e11, 1e9, "memory unless fused")],
)
def test_finds_bound(tmp_path, unfused, least, bound):
    write_peaks(tmp_path / "peaks", bf16=800.0)
    write_run(tmp_path / "run", step_cost=replace(STEP_COST, unfused_bytes=unfused, least_bytes=least))
    assert build.build_report([tmp_path]).rooflines[0].points[0].bound == bound


def test_thorough_files_take_precedence(tmp_path):
    write_peaks(tmp_path / "a", measured=1.0, bf16=700.0, fp32=50.0)
    write_peaks(tmp_path / "b", measured=2.0, bf16=790.0, gb_s=None)
    write_peaks(tmp_path / "c", measured=3.0, quick=True, bf16=300.0, tf32=200.0, gb_s=1.0)
    write_peaks(tmp_path / "d", measured=4.0, stopped=True, bf16=200.0)
    peaks = roofline.read_peaks([tmp_path, tmp_path / "a" / "peaks.json"])["h200"]
    assert peaks.fastest_rows == []
    assert peaks.roofs == roofline.Roofs({"bf16": 790.0, "fp32": 50.0, "tf32": 200.0}, 4000.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"schema": 2, "card": "a", "measured": 1, "peaks": {}}',
        '{"schema": 1, "card": "a", "measured": 1, "quick": 0, "stopped": 0, "peaks": {"tflops": {}, "gb_s": 1}, '
        '"rows": [{}]}',
    ],
)
def test_damaged_peaks_file_is_named(tmp_path, text):
    (tmp_path / "peaks.json").write_text(text)
    with pytest.raises(
        DataError, match=r"peaks\.json cannot be read .*(measure again with `timetrial peaks`|holds no JSON object)"
    ):
        build.build_report([tmp_path])


def test_flags_point_above_roof(tmp_path):
    write_peaks(tmp_path / "peaks", bf16=100.0)
    write_run(tmp_path / "run", rate=60.0)
    (finding,) = [entry for entry in build.build_report([tmp_path]).findings if "timetrial peaks" in entry.message]
    assert (finding.kind, finding.subject) == ("flag", "net, 1 x h200, bf16, batch 64")
    assert "120.0% of the peak that `timetrial peaks` measured" in finding.message


@pytest.mark.parametrize(("rate", "is_flagged"), [(49.9, False), (50.2, True)])
def test_anything_above_a_roof_is_flagged(tmp_path, rate, is_flagged):
    """A rate of 60 is 120 TFLOP/s, so 50.2 is 0.4% above the roof."""
    write_peaks(tmp_path / "peaks", bf16=100.0)
    write_run(tmp_path / "run", rate=rate)
    messages = [entry.message for entry in build.build_report([tmp_path]).findings if entry.kind == "flag"]
    assert any("100.4% of the peak" in message for message in messages) == is_flagged


def test_page_shows_roofs_or_workloads_alone(tmp_path):
    write_peaks(tmp_path / "one" / "peaks", bf16=800.0, fp32=50.0)
    out = page.write_page(build.build_report([tmp_path / "one" / "peaks" / "peaks.json"]), tmp_path / "page")
    assert "Roofline of h200" in out.read_text()
    for number in range(20):  # more than a plot shows
        write_run(tmp_path / "two" / str(number), network=f"net<{number}>", precision="odd" if number == 3 else "bf16")
    text = page.write_page(build.build_report([tmp_path / "two"]), tmp_path / "page").read_text()
    assert "Showing 16 of 20" in text
    assert "net<" not in text
    assert "The roofs are those of the data sheet" in text
    rows = (tmp_path / "page" / "csv" / "roofline-1-workloads.csv").read_text().splitlines()
    assert len(rows) == 21


def test_page_shows_fastest_row_of_each_kind(tmp_path):
    write_peaks(tmp_path / "peaks", bf16=800.0)
    values = json.loads((tmp_path / "peaks" / "peaks.json").read_text())
    for kind, shape, compute, tflops, gb_s in (
        ("gemm", "a", "bf16", 700.0, 9.0),
        ("gemm", "b", "bf16", 790.0, 8.0),
        ("gemm", "c", "fp32", 50.0, 9.0),
        ("gemm", "d", "fp32", None, None),
        ("all-reduce", "1 MiB, 2 devices", "", None, 90.0),
        ("all-reduce", "256 MiB, 2 devices", "", None, 340.0),
        ("all-reduce", "256 MiB, 2 devices, through the host", "", None, 28.0),
    ):
        row = asdict(Row(kind, shape, "bf16", compute, 1.0, 0.9, 1.1, 3, tflops=tflops, gb_s=gb_s))
        values.setdefault("rows", []).append(row)
    (tmp_path / "peaks" / "peaks.json").write_text(json.dumps(values))
    page.write_page(build.build_report([tmp_path / "peaks"]), tmp_path / "page")
    rows = list(csv.DictReader((tmp_path / "page" / "csv" / "roofline-1-microbenchmarks.csv").read_text().splitlines()))
    assert [row["shape"] for row in rows] == ["b", "c", "256 MiB, 2 devices", "256 MiB, 2 devices, through the host"]
    assert "20.0%" in (tmp_path / "page" / "report.md").read_text()


def test_bound_between_roofs():
    roofs = roofline.Roofs({"bf16": 800.0}, 4000.0)  # the ridge is at 200
    assert roofline._find_bound(195.0, 205.0, roofs, "bf16") == "memory unless fused"
    assert roofline._find_bound(203.0, 300.0, roofs, "bf16") == "arithmetic"
    assert roofline._find_bound(100.0, 199.0, roofs, "bf16") == "memory"


def test_measured_roofs_take_precedence_over_datasheet(tmp_path):
    write_peaks(tmp_path / "peaks", bf16=400.0)  # the ridge is at 100, by the data sheet at 206
    write_run(tmp_path / "run", step_cost=replace(STEP_COST, unfused_bytes=8e12 / 150, least_bytes=8e12 / 150))
    assert build.build_report([tmp_path]).rooflines[0].points[0].bound == "arithmetic"


def test_highest_measured_peak_counts(tmp_path):
    write_peaks(tmp_path / "gemm", measured=1.0, bf16=700.0)
    write_peaks(tmp_path / "lstm", measured=2.0, bf16=400.0, gb_s=None)
    assert roofline.read_peaks([tmp_path])["h200"].roofs == roofline.Roofs({"bf16": 700.0}, 4000.0)


def test_cpus_have_one_roofline_per_machine(tmp_path):
    for host in ("laptop", "server"):
        write_peaks(tmp_path / host, accelerator="cpu", fp32=1.0, host=host)
    assert set(roofline.read_peaks([tmp_path])) == {"cpu of laptop", "cpu of server"}
    write_run(tmp_path / "run", accelerator="cpu", system="server", precision="fp32")
    counts = {line.accelerator: len(line.points) for line in build.build_report([tmp_path]).rooflines}
    assert counts == {"cpu of laptop": 0, "cpu of server": 1}


@pytest.mark.parametrize(("peaks", "sentence"), [({}, "There are no roofs"), ({"fp32": 1.0}, "There are no roofs")])
def test_plot_states_missing_roofs(tmp_path, peaks, sentence):
    if peaks:
        write_peaks(tmp_path / "peaks", accelerator="cpu", gb_s=None, host="here", **peaks)
    write_run(tmp_path / "run", accelerator="cpu", precision="fp32")
    page.write_page(build.build_report([tmp_path]), tmp_path / "page")
    assert sentence in (tmp_path / "page" / "report.html").read_text()
