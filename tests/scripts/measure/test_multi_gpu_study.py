"""The study of several GPUs: its tables are what the runs say, as SciPy does."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from timetrial.runner.record.run_record import RunState
from timetrial.runner.record.throughput_result import ThroughputResult
from timetrial.scripts.measure import multi_gpu_study, study_page

spec = importlib.util.spec_from_file_location("seed_runs", Path(__file__).with_name("seed_runs.py"))
seed_runs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(seed_runs)


@pytest.fixture
def study(tmp_path):
    """An empty study; study(path, training, throughput=..., ...) adds a run."""

    def add(
        path,
        training=None,
        *,
        throughput=None,
        workload="GPT",
        network=None,
        gpus=1,
        peer_to_peer=True,
        **options,
    ):
        record = seed_runs.make_record(training, recipe=f"{workload}/mini", **options)
        recipe = record.config["recipe"] | {"training": {"network": network}}
        config = {"workload": {"title": workload}, "gpus": gpus, "peer_to_peer": peer_to_peer, "recipe": recipe}
        record = replace(record, config=record.config | config, throughput=throughput)
        seed_runs.write(tmp_path / path, record)

    return add


def measured(rate, tokens=None):
    return ThroughputResult(
        20, rate, tokens, 10.0, 200.0, None, 5.0, 2.0, 0.1, 0.02, 1000, 100, (rate,), (200.0,), 0.5, 1, None, True,
        None, None,
    )  # fmt: skip


def test_training_on_two_gpus_is_a_ratio_to_one(tmp_path, study, ratio_text, welch_ratio):
    epochs = {1: (3.5, 4.2, 3.9), 2: (3.4, 4.4, 3.6)}
    for gpus, values in epochs.items():
        for seed, value in enumerate(values, start=1):
            training = seed_runs.cross_at(value, seconds=10 / gpus + seed, rate=100.0 * gpus + seed)
            study(f"training/{gpus}/{seed}", training, gpus=gpus, seed=seed, joules=1000.0 * seed, global_batch_size=50)
    study("training/2/9", seed_runs.train({"quality": (0.1,)}, {"quality": 0.5}), gpus=2, seed=9, global_batch_size=50)
    one, two = seed_runs.read_table(multi_gpu_study.tables(tmp_path)["training"])
    assert list(one.values()) == ["GPT", "1", "3", "490 ms", "3.86", "", "0.98 s", "12 s", "1.82 kJ"]
    assert (two["runs"], two["epochs"]) == ("4 (1 failed)", ratio_text(epochs[2], epochs[1]))
    _, low, high = welch_ratio(epochs[2], epochs[1], level=0.9)
    assert two["equivalence margin"] == f"{max(high, 1 / low) - 1:.1%}"
    assert two["time-to-train"] == ratio_text((6, 7, 8), (11, 12, 13))


def test_rates_are_multiples_of_one_gpu_and_failures_are_named(tmp_path, study, ratio_text):
    base, double, slow = (100.0, 101.0, 102.0), (199.0, 200.0, 201.0), (150.0, 151.0, 152.0)
    for gpus, peer_to_peer, rates in ((1, True, base), (2, True, double), (2, False, slow)):
        for seed, rate in enumerate(rates):
            options = {"gpus": gpus, "peer_to_peer": peer_to_peer, "global_batch_size": 8 * gpus}
            path = f"networks/{gpus}{peer_to_peer}/{seed}"
            study(path, throughput=measured(rate), workload="CNN", network="vgg16", state=RunState.MEASURED, **options)
    study("networks/big", workload="CNN", network="nasnet", state=RunState.OUT_OF_MEMORY, global_batch_size=999)
    study("scaling/one", throughput=measured(5.0, tokens=70.0), state=RunState.MEASURED, global_batch_size=4)
    study("scaling/open", state=RunState.STOPPED, workload="NCF", global_batch_size=4)
    for gpus in (1, 4):
        options = {"state": RunState.MEASURED, "gpus": gpus, "global_batch_size": 2048}
        study(f"strong/{gpus}", throughput=measured(50.0 * gpus), workload="NCF", **options)
    tables = multi_gpu_study.tables(tmp_path)
    vgg, nasnet = seed_runs.read_table(tables["networks"])
    assert [vgg["network"], vgg["precision"], vgg["batch per GPU"], vgg["one GPU"]] == [
        "vgg16",
        "bf16",
        "8",
        "101 samples/s",
    ]
    assert (vgg["2 GPUs"], vgg["2 GPUs to one"]) == ("200 samples/s", ratio_text(double, base))
    assert vgg["2 GPUs, NVLink off to on"] == ratio_text(slow, double)
    assert (nasnet["batch per GPU"], nasnet["one GPU"], nasnet["2 GPUs"]) == ("999", "out of memory", "")
    (gpt,) = seed_runs.read_table(tables["scaling"])
    assert list(gpt.values()) == ["GPT", "4", "70 tokens/s"]
    (ncf,) = seed_runs.read_table(tables["strong"])
    assert list(ncf.values()) == ["NCF", "2,048", "50 samples/s", "200 samples/s", "4"]


def test_steps_are_means_by_workload_and_exchange(tmp_path, study):
    runs = {"exchange/in_backward/1": 10.0, "exchange/in_backward/2": 13.0, "exchange/none/1": 8.0}
    for path, milliseconds in runs.items():
        study(path, throughput=replace(measured(5.0), train_ms=milliseconds), gpus=4, state=RunState.MEASURED)
    study("exchange/none/ssd", workload="SSD", gpus=4, state=RunState.OUT_OF_MEMORY)
    for gpus in (1, 4):
        throughput = replace(measured(5.0), train_ms=20.0 + gpus)
        study(f"scaling/{gpus}", throughput=throughput, gpus=gpus, state=RunState.MEASURED, global_batch_size=gpus)
    tables = multi_gpu_study.tables(tmp_path)
    cells = [list(row.values()) for row in seed_runs.read_table(tables["exchange"])]
    assert cells[0] == ["in the backward pass, messages of 25 MiB", "11.5 ms"]
    assert cells[1] == ["the same, on 8 multiprocessors", ""]
    assert cells[-1] == ["never", "8 ms"]
    one, waiting, four = seed_runs.read_table(tables["waiting"])
    assert (one["GPT"], waiting["GPT"], four["GPT"]) == ("21 ms", "", "24 ms")


def test_runs_from_jpegs_have_a_speed_per_gpu_and_their_waiting(tmp_path, study):
    for number, (rate, wait) in enumerate(((800.0, 0.5), (640.0, 0.25))):
        throughput = replace(measured(rate), gpus=4, train_seconds=2.0, data_wait_seconds=wait)
        study(f"jpegs/together/{number}", throughput=throughput, gpus=4, state=RunState.MEASURED)
    study("jpegs/deep/1", gpus=4, state=RunState.OUT_OF_MEMORY)
    _, _, together, deep = (
        list(row.values()) for row in seed_runs.read_table(multi_gpu_study.tables(tmp_path)["jpegs"])
    )
    assert together == ["four GPUs", "2", "160 to 200", "12.5% to 25.0%"]
    assert deep[1:] == ["0", "", ""]


def test_losses_are_compared_with_those_of_one_gpu_in_bf16(tmp_path, study):
    baseline = [2.0] * 200
    lines = {
        "precision=bf16": (1, baseline),
        "precision=bf16 gpus=2": (2, [2.0, *[2.002] * 199]),
        "precision=bf16 tuning.micro_batch_size=4": (1, [2.002] * 200),
        "precision=fp32": (1, [2.02] * 200),
        "precision=bf16 seed=2": (1, [2.2] * 200),
        "precision=bf16 recipe.training.dropout=0": (1, [1.0] * 200),
        "precision=bf16 recipe.training.dropout=0 gpus=2": (2, [1.01] * 200),
    }
    (tmp_path / "losses.jsonl").write_text("".join(
        json.dumps({"run": f"recipe=gpt/mini {run}", "workload": "GPT", "gpus": gpus, "losses": losses}) + "\n"
        for run, (gpus, losses) in lines.items()
    ))  # fmt: skip
    two, split, fp32, seed, no_dropout = seed_runs.read_table(multi_gpu_study.tables(tmp_path)["losses"])
    assert list(two.values()) == ["GPT", "2 GPUs", "one GPU", "0.0e+00", "1.0e-03", "1.0e-03", "1.0e-03"]
    assert list(split.values())[2:5] == ["one GPU, micro-batches", "1.0e-03", "0.0e+00"]
    assert list(fp32.values())[1:4] == ["fp32", "one GPU", "1.0e-02"]
    assert list(seed.values())[1:4] == ["another seed", "one GPU", "1.0e-01"]
    assert list(no_dropout.values())[:4] == ["GPT, no dropout", "2 GPUs", "one GPU", "1.0e-02"]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The archive of the page, unpacked."""
    return study_page.unpack(multi_gpu_study.ARCHIVE, tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def published_tables(published):
    return multi_gpu_study.tables(published)


@pytest.mark.integration
def test_page_is_what_the_archive_says(published_tables):
    page = multi_gpu_study.PAGE.read_text()
    assert study_page.fill(page, published_tables) == page


@pytest.mark.integration
def test_published_training_is_recomputed(published, published_tables, ratio_text):
    """From the plain files, with none of timetrial's code."""
    runs = {}
    for path in (published / "training").rglob("status.json"):
        record, quality = json.loads(path.read_text()), pd.read_csv(path.with_name("quality.csv"))
        place = record["config"]["workload"]["title"], record["config"]["gpus"]
        ((metric, target),) = record["training"]["target"].items()
        sign = -1 if record["config"]["recipe"]["lower_is_better"] else 1
        met = int(np.argmax(sign * quality[metric].to_numpy() >= sign * target))
        assert met  # the crossing is between an evaluation that missed the target and the first that met it
        values, epochs = (quality[name][met - 1 : met + 1].to_numpy() for name in (metric, "epoch"))
        epoch = np.interp(sign * target, sign * values, epochs)
        figures = epoch, record["training"]["seconds"], record["telemetry"]["energy_joules"]
        runs.setdefault(place, []).append(figures)
    rows = seed_runs.read_table(published_tables["training"])
    assert len(rows) == len(runs) == 13
    for row in rows:
        epochs, seconds, joules = (
            np.array(column, dtype=float) for column in zip(*runs[row["workload"], int(row["GPUs"])], strict=True)
        )
        base = [np.array(column) for column in zip(*runs[row["workload"], 1], strict=True)]
        if row["GPUs"] == "1":
            assert row["time-to-train"] == f"{stats.gmean(seconds):.3g} s"
            continue
        assert row["epochs"] == ratio_text(epochs, base[0])
        assert row["time-to-train"] == ratio_text(seconds, base[1])
        assert row["energy to target"] == ratio_text(joules, base[2])


@pytest.mark.integration
def test_published_speeds_from_jpegs_are_recomputed(published, published_tables):
    names = ("jpegs", "jpegs_versions", "jpegs_read_ahead")
    rows = [row for name in names for row in seed_runs.read_table(published_tables[name])]
    folders = {
        "one GPU, the others idle": "jpegs/alone",
        "one GPU, a run on each of the others too": "jpegs/beside",
        "four GPUs": "jpegs/together",
        "four GPUs, 8 batches prefetched instead of 2": "jpegs/deep",
        "one GPU, synthetic data": "jpegs_versions/one_synthetic",
        "one GPU, before both changes": "jpegs_versions/one_before",
        "one GPU, workers write batches to memory that the rank maps once": "jpegs_versions/one_not_reserved",
        "one GPU, nvJPEG's memory is reserved too": "jpegs_versions/one",
        "two GPUs, synthetic data": "jpegs_versions/two_synthetic",
        "two GPUs, before both changes": "jpegs_versions/two_before",
        "two GPUs, after both": "jpegs_versions/two",
        "one GPU, 512 images a step, synthetic data": "jpegs_read_ahead/one_synthetic",
        "one GPU, 512 images a step, JPEGs": "jpegs_read_ahead/one",
        "one GPU, 1,632 images a step, synthetic data": "jpegs_read_ahead/one_1632_synthetic",
        "one GPU, 1,632 images a step, JPEGs": "jpegs_read_ahead/one_1632",
        "two GPUs, 512 images a step each, synthetic data": "jpegs_read_ahead/two_synthetic",
        "two GPUs, 512 images a step each, JPEGs": "jpegs_read_ahead/two",
    }
    assert [row["run"] for row in rows] == list(folders)
    for row in rows:
        paths = (published / folders[row["run"]]).rglob("status.json")
        results = [json.loads(path.read_text())["throughput"] for path in paths]
        rates = [result["samples_per_second"] / result["gpus"] for result in results]
        waits = [result["data_wait_seconds"] / result["train_seconds"] for result in results]
        assert row["runs"] == str(len(results))
        for name, values, form in (("samples/s on each GPU", rates, ",.0f"), ("waiting for batches", waits, ".1%")):
            ends = [f"{min(values):{form}}", f"{max(values):{form}}"]
            assert row[name] == (" to ".join(ends) if len(values) > 1 else ends[0])
