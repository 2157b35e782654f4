"""Places under roofs, from files as `peaks` and `throughput` leave them."""

import csv
import json
from dataclasses import asdict

import pytest

from timetrial.runner.benchmarks.peaks import Row
from timetrial.runner.core.errors import DataError
from timetrial.runner.record.flops import operations_per_second
from timetrial.runner.results.analysis import roofline
from timetrial.runner.results.report import build, page

COUNTED = {"steps": 2, "samples": 4, "tokens": 0, "operations": 8e12, "unfused_bytes": 8e10, "least_bytes": 8e9}


def write_peaks(folder, measured=1.0, quick=False, stopped=False, gb_s=4000.0, card="h200", host=None, **tflops):
    folder.mkdir(parents=True)
    peaks = {"tflops": tflops, "gb_s": gb_s}
    told = {"schema": 1, "card": card, "measured": measured, "quick": quick, "stopped": stopped, "peaks": peaks}
    told |= {"system": {"hostname": host}} if host else {}
    (folder / "peaks.json").write_text(json.dumps(told))


def write_run(
    folder,
    *,
    network="net",
    precision="bf16",
    gpus=1,
    rate=100.0,
    tokens=None,
    counted=COUNTED,
    loader="synthetic",
    links=True,
    flags=(),
    card="h200",
    system="here",
):
    folder.mkdir(parents=True)
    result = {"samples_per_second": rate, "tokens_per_second": tokens, "train_ms": 1.0, "eval_ms": 1.0}
    (folder / "status.json").write_text(
        json.dumps({"state": "measured", "flags": dict.fromkeys(flags, ""), "result": result | {"counted": counted}})
    )
    config = {
        "throughput": {"steps": 2}, "accelerator": {"name": card}, "system": system, "gpus": gpus,
        "workload": {"name": network}, "precision": {"name": precision}, "engine": {}, "data": {"loader": loader},
        "tuning": {}, "peer_to_peer": links,
        "recipe": {"global_batch_size": 64 * gpus, "training": {}, "data": {}},
    }  # fmt: skip
    (folder / "config.yaml").write_text(json.dumps(config))


def test_a_place_is_per_card_and_a_span(tmp_path):
    write_peaks(tmp_path / "peaks", bf16=800.0)
    write_run(tmp_path / "run", gpus=2)
    (line,) = build.build([tmp_path]).rooflines
    (place,) = line.places
    assert place.tflops == pytest.approx(8 / 4 * 100 / 2)
    assert (place.unfused, place.at_most) == (100, 1000)
    assert place.of_measured == pytest.approx(100 / 800)
    assert place.of_sheet == pytest.approx(100 / 990)
    assert place.bound == "memory unless fused"  # the ridge is at 200
    assert (line.measured.gb_s, line.sheet.gb_s) == (4000, 4800)


def test_a_place_says_who_fed_it_and_the_picture_shows_the_fewest_cards(tmp_path):
    for gpus, loader in ((2, "synthetic"), (1, "synthetic"), (1, "torch")):
        write_run(tmp_path / f"{loader}{gpus}", gpus=gpus, rate=100.0 * gpus, loader=loader)
    found = build.build([tmp_path])
    assert {place.work for place in found.rooflines[0].places} == {"net", "net with data=torch"}
    page.write(found, tmp_path / "page")
    text = (tmp_path / "page" / "report.html").read_text()
    assert "Drawn are 2 of 3" in text
    assert "net on 2" not in text
    assert 'href="#borrowed">ThroughputMeter speeds</a>' in text


def test_a_place_says_whose_links_were_not_used(tmp_path):
    write_run(tmp_path / "with", gpus=2)
    write_run(tmp_path / "without", gpus=2, links=False)
    titles = {place.title for place in build.build([tmp_path]).rooflines[0].places}
    assert titles == {"net, 2 x h200, bf16, batch 64", "net, 2 x h200, bf16, batch 64, no peer-to-peer"}


def test_a_card_that_waited_was_bound_by_the_host(tmp_path):
    write_peaks(tmp_path / "peaks", bf16=800.0)
    write_run(tmp_path / "run", flags=["low utilisation"])
    assert build.build([tmp_path]).rooflines[0].places[0].bound == "the host"


def test_texts_go_by_tokens():
    counted = COUNTED | {"tokens": 1000}
    result = {"samples_per_second": 1.0, "tokens_per_second": 500.0, "counted": counted}
    assert operations_per_second(result) == 8e12 / 1000 * 500
    assert operations_per_second(result | {"counted": None}) is None


@pytest.mark.parametrize(
    ("unfused", "least", "bound"),
    [(1e9, 1e9, "arithmetic"), (8e11, 8e10, "memory"), (8e11, 1e9, "memory unless fused")],
)
def test_the_roof_above(tmp_path, unfused, least, bound):
    write_peaks(tmp_path / "peaks", bf16=800.0)
    write_run(tmp_path / "run", counted=COUNTED | {"unfused_bytes": unfused, "least_bytes": least})
    assert build.build([tmp_path]).rooflines[0].places[0].bound == bound


def test_of_several_files_the_newest_and_the_thorough_count(tmp_path):
    write_peaks(tmp_path / "a", measured=1.0, bf16=700.0, fp32=50.0)
    write_peaks(tmp_path / "b", measured=2.0, bf16=790.0, gb_s=None)
    write_peaks(tmp_path / "c", measured=3.0, quick=True, bf16=300.0, tf32=200.0, gb_s=1.0)
    write_peaks(tmp_path / "d", measured=4.0, stopped=True, bf16=200.0)
    found = roofline.read_peaks([tmp_path, tmp_path / "a" / "peaks.json"])["h200"]
    assert found["timed"] == []
    assert found["peaks"] == {"tflops": {"bf16": 790.0, "fp32": 50.0, "tf32": 200.0}, "gb_s": 4000.0}


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
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / "peaks.json").write_text(text)
    with pytest.raises(DataError, match=r"peaks\.json is damaged, or of another version: measure again"):
        build.build([tmp_path])


def test_above_the_roof_is_flagged(tmp_path):
    write_peaks(tmp_path / "peaks", bf16=100.0)
    write_run(tmp_path / "run", rate=60.0)
    (found,) = [one for one in build.build([tmp_path]).findings if "timetrial peaks" in one.sentence]
    assert (found.kind, found.about) == ("flag", "net, 1 x h200, bf16, batch 64")
    assert "120% of what timetrial peaks has measured" in found.sentence


def test_the_page_shows_roofs_without_workloads_and_workloads_without_roofs(tmp_path):
    write_peaks(tmp_path / "one" / "peaks", bf16=800.0, fp32=50.0)
    out = page.write(build.build([tmp_path / "one" / "peaks" / "peaks.json"]), tmp_path / "page")
    assert "Roofline of h200" in out.read_text()
    for number in range(20):  # more than a picture holds
        write_run(tmp_path / "two" / str(number), network=f"net<{number}>", precision="odd" if number == 3 else "bf16")
    text = page.write(build.build([tmp_path / "two"]), tmp_path / "page").read_text()
    assert "Drawn are 16 of 20" in text
    assert "net<" not in text
    assert "The roofs are the data sheet" in text
    rows = (tmp_path / "page" / "csv" / "roofline-1-places.csv").read_text().splitlines()
    assert len(rows) == 21


def test_the_fastest_of_each_kind_and_way_is_shown(tmp_path):
    write_peaks(tmp_path / "peaks", bf16=800.0)
    told = json.loads((tmp_path / "peaks" / "peaks.json").read_text())
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
        told.setdefault("rows", []).append(row)
    (tmp_path / "peaks" / "peaks.json").write_text(json.dumps(told))
    page.write(build.build([tmp_path / "peaks"]), tmp_path / "page")
    rows = list(csv.DictReader((tmp_path / "page" / "csv" / "roofline-1-timed.csv").read_text().splitlines()))
    assert [row["shape"] for row in rows] == ["b", "c", "256 MiB, 2 devices", "256 MiB, 2 devices, through the host"]
    assert "20.0%" in (tmp_path / "page" / "report.md").read_text()


def test_between_the_roofs_both_count():
    roofs = roofline.Roofs({"bf16": 800.0}, 4000.0)  # the ridge is at 200
    assert roofline._bound(195.0, 205.0, roofs, "bf16") == "memory unless fused"
    assert roofline._bound(203.0, 300.0, roofs, "bf16") == "arithmetic"
    assert roofline._bound(100.0, 199.0, roofs, "bf16") == "memory"


def test_measured_roofs_bound_before_the_sheets(tmp_path):
    write_peaks(tmp_path / "peaks", bf16=400.0)  # the ridge is at 100, by the data sheet at 206
    write_run(tmp_path / "run", counted=COUNTED | {"unfused_bytes": 8e12 / 150, "least_bytes": 8e12 / 150})
    assert build.build([tmp_path]).rooflines[0].places[0].bound == "arithmetic"


def test_a_roof_is_the_highest_that_was_measured(tmp_path):
    write_peaks(tmp_path / "gemm", measured=1.0, bf16=700.0)
    write_peaks(tmp_path / "lstm", measured=2.0, bf16=400.0, gb_s=None)
    assert roofline.read_peaks([tmp_path])["h200"]["peaks"] == {"tflops": {"bf16": 700.0}, "gb_s": 4000.0}


def test_each_machines_processors_have_roofs_of_their_own(tmp_path):
    for host in ("laptop", "server"):
        write_peaks(tmp_path / host, card="cpu", fp32=1.0, host=host)
    assert set(roofline.read_peaks([tmp_path])) == {"cpu of laptop", "cpu of server"}
    write_run(tmp_path / "run", card="cpu", system="server", precision="fp32")
    found = {line.card: len(line.places) for line in build.build([tmp_path]).rooflines}
    assert found == {"cpu of laptop": 0, "cpu of server": 1}


@pytest.mark.parametrize(("peaks", "words"), [({}, "There are no roofs"), ({"fp32": 1.0}, "There are no roofs")])
def test_a_picture_says_which_roofs_it_has(tmp_path, peaks, words):
    if peaks:
        write_peaks(tmp_path / "peaks", card="cpu", gb_s=None, host="here", **peaks)
    write_run(tmp_path / "run", card="cpu", precision="fp32")
    page.write(build.build([tmp_path]), tmp_path / "page")
    assert words in (tmp_path / "page" / "report.html").read_text()
