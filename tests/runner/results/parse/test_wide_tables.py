"""Wide tables: a row for each system and a column for each workload, or the transpose."""

import pytest

from timetrial.runner.core.errors import DataError
from timetrial.runner.results.parse import external

# The layout of Lambda's public GPU benchmark, with made-up values.
PUBLISHED = """name_gpu,num_gpu,watt,price,ssd,bert_base,gnmt,resnet50
T4,1.0,70.0,2000.0,90.0,30.0,9000.0,300.0
V100 16GB,1.0,250.0,9000.0,180.0,90.0,36000.5,900.0
2x V100 16GB,2.0,500.0,18000.0,350.0,170.0,0.0,1700.0
"""


def read(folder, text, name="throughput.csv"):
    """Return the measurements and the sentences on what is not read."""
    errors = []
    (folder / name).write_text(text)
    return external.read_measurements(folder / name, errors.append), list(map(str, errors))


def values(measurements):
    return {
        (entry.accelerator, entry.num_accelerators, entry.workload, entry.metric): entry.value for entry in measurements
    }


def test_a_published_table(tmp_path):
    found, (skipped,) = read(tmp_path, PUBLISHED, "pytorch-train-throughput-fp16.csv")
    assert values(found) == {
        (gpu, count, workload, "samples_per_second"): value
        for gpu, count, rates in (
            ("T4", 1, (90, 9000, 300)),
            ("V100 16GB", 1, (180, 36000.5, 900)),
            ("V100 16GB", 2, (350, None, 1700)),
        )
        for workload, value in zip(("ssd", "gnmt", "resnet50"), rates, strict=True)
    }
    assert {(entry.precision, entry.task) for entry in found} == {("fp16", "train")}
    assert [entry.outcome for entry in found if entry.value is None] == ["failed"]
    assert (found[0].study, found[0].source) == (
        "pytorch-train-throughput-fp16",
        "pytorch-train-throughput-fp16.csv",
    )
    assert skipped.endswith(
        "cannot be read completely (3 of 6 columns name no workload or have no known unit: watt, price, bert_base): "
        "write both into the headers, such as resnet50 (images/s), or the unit into the name of the file."
    )


@pytest.mark.parametrize("notation", ["transposed", "semicolons", "tabs in UTF-16"])
def test_the_same_table_in_other_notations(tmp_path, notation):
    expected, (skipped,) = read(tmp_path, PUBLISHED)
    rows = [line.split(",") for line in PUBLISHED.splitlines()]
    if notation == "transposed":
        found, (reason,) = read(tmp_path, "\n".join(map(",".join, zip(*rows, strict=True))))
        assert reason == skipped.replace("columns", "rows")
    elif notation == "semicolons":
        found, (reason,) = read(tmp_path, PUBLISHED.replace(",", ";").replace(".", ","))
        assert reason == skipped
    else:
        (tmp_path / "throughput.txt").write_bytes(PUBLISHED.replace(",", "\t").encode("utf-16"))
        assert external.find_tables([tmp_path / "throughput.txt"])
        found = external.read_measurements(tmp_path / "throughput.txt")
    assert values(found) == values(expected)


@pytest.mark.parametrize(
    ("header", "stated"),
    [
        ("ResNet-50 (images/s)", ("resnet50", "samples_per_second", "", "")),
        ("Mask R-CNN [img/sec, FP16, training]", ("maskrcnn", "samples_per_second", "fp16", "train")),
        ("PyTorch_bert_base_FP32 (sequences/sec)", ("PyTorch_bert_base", "samples_per_second", "fp32", "")),
        ("vgg16 inference (ms per batch)", ("vgg16", "milliseconds", "", "eval")),
        ("gnmt (minutes)", ("gnmt", "minutes", "", "train")),
        ("ssd (epochs)", ("ssd", "epochs", "", "train")),
        ("gnmt (tokens/s)", ("gnmt tokens", "samples_per_second", "", "")),
        ("single_stage_detector (throughput)", ("ssd", "samples_per_second", "", "")),
        ("resnet50 (samples_per_second, batch 64)", ("resnet50 batch 64", "samples_per_second", "", "")),
    ],
)
def test_a_header_states_workload_unit_precision_and_task(tmp_path, header, stated):
    ((entry,), skipped) = read(tmp_path, f"GPU;{header}\nT4;3\n", "a.csv")
    assert (entry.workload, entry.metric, entry.precision, entry.task) == stated
    assert not skipped


@pytest.mark.parametrize(
    "header",
    ["resnet50", "bert", "(images/s)", "resnet50 (images/s/GPU)", "resnet50 (kimg/s)", "watt (W)", "ssd (GB/s)"],
)
def test_a_column_without_a_workload_or_a_unit_is_named(tmp_path, header):
    with pytest.raises(DataError, match=r"\(1 of 1 columns name no workload or have no known unit: ") as error:
        read(tmp_path, f"gpu,{header}\nT4,3\n", "a.csv")
    assert header in str(error.value)


def test_headers_take_precedence_over_columns_and_these_over_the_name_of_the_file(tmp_path):
    text = "gpu,Precision,batch size,ssd,gnmt bf16 (minutes)\nT4,FP32,16,3,4\nT4,,32,5,\n"
    found, _ = read(tmp_path, text, "throughput-fp16.csv")
    stated = [(entry.workload, entry.metric, entry.precision, entry.batch, entry.value) for entry in found]
    assert stated == [
        ("ssd", "samples_per_second", "fp32", 16, 3),
        ("gnmt", "minutes", "bf16", 16, 4),
        ("ssd", "samples_per_second", "fp16", 32, 5),
    ]


def test_a_file_name_of_two_precisions_states_none(tmp_path):
    (entry,), _ = read(tmp_path, "gpu,ssd\nT4,3\n", "throughput_fp16_against_fp32.csv")
    assert entry.precision == ""


@pytest.mark.parametrize(
    ("name", "accelerator", "count"),
    [
        ("T4", "T4", 1),
        ("8x H100 80GB SXM5", "H100 80GB SXM5", 8),
        ("Cloud 4xV100 16GB", "Cloud V100 16GB", 4),
        ("Cloud — 2 × RTX 6000", "Cloud — RTX 6000", 2),
        ("Radeon RX 7900 XTX", "Radeon RX 7900 XTX", 1),
        ("MI250X", "MI250X", 1),
        ("p3.16xlarge", "p3.16xlarge", 1),
        ("GTX 580 xt", "GTX 580 xt", 1),
    ],
)
def test_the_number_of_gpus_is_in_the_name(tmp_path, name, accelerator, count):
    (entry,), _ = read(tmp_path, f"system,ssd\n{name},3\n")
    assert (entry.accelerator, entry.num_accelerators) == (accelerator, count)
    (entry,), _ = read(tmp_path, f"system,gpus,ssd\n{name},{count}.0,3\n")
    assert (entry.accelerator, entry.num_accelerators) == (accelerator, count)


def test_two_numbers_of_gpus_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"\(4x A6000 has 4 or 8 GPUs\): correct the name or the number\.$"):
        read(tmp_path, "system,gpus,ssd\n4x A6000,8.0,3\n")
    with pytest.raises(DataError, match=r"\(2x_site_4xH100 has 2 or 4 GPUs\)"):
        read(tmp_path, "system,ssd\n2x_site_4xH100,3\n")


@pytest.mark.parametrize(
    ("cell", "outcome"), [("OOM", "out of memory"), ("0,0", "failed"), ("Failed", "failed"), ("not run", "not run")]
)
def test_cells_without_a_value_have_an_outcome(tmp_path, cell, outcome):
    found, _ = read(tmp_path, f"gpu;ssd;gnmt\nT4;{cell};3\n")
    assert [(entry.value, entry.outcome) for entry in found] == [(None, outcome), (3, "measured")]


@pytest.mark.parametrize("cell", ["", "-", "n/a", "NaN"])
def test_an_empty_cell_is_no_measurement(tmp_path, cell):
    found, _ = read(tmp_path, f"gpu,ssd,gnmt\nT4,{cell},3\n")
    assert [entry.workload for entry in found] == ["gnmt"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpu,ssd\nT4,TBD\n", "T4, ssd: value must be a number of 0 or more, not TBD"),
        ("gpu,ssd\n,3\n", ", ssd: accelerator must not be empty"),
        ("gpu,gpus,ssd\nT4,many,3\n", "T4, ssd: num_accelerators must be a number of 0 or more, not many"),
        ("ssd,gnmt\n3,4\n", "no column names the systems"),
        ("gpu,ssd\n", "it has no rows"),
    ],
)
def test_an_invalid_table_is_refused_with_the_place(tmp_path, text, reason):
    with pytest.raises(DataError, match=reason):
        read(tmp_path, text)
