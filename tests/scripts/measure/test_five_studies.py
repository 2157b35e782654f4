"""The five studies: published values and runs side by side, as SciPy and a few lines compute them."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from timetrial.runner.record.run_record import Cost, RunState
from timetrial.runner.record.throughput_result import ThroughputResult
from timetrial.scripts.measure import five_studies, study_page

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
        usd=None,
        network=None,
        gpus=1,
        link=True,
        name="cnn",
        steps="",
        **options,
    ):
        record = seed_runs.make_record(training, **{"global_batch_size": 64} | options)
        config = record.config | {
            "workload": {"name": name, "title": name.upper()},
            "gpus": gpus,
            "peer_to_peer": link,
            "recipe": record.config["recipe"] | {"training": {"network": network}},
        }
        environment = {"gpus": [{"name": "H100"}]}
        cost = usd and Cost(usd, 3.0)
        record = replace(record, config=config, environment=environment, throughput=throughput, cost=cost)
        record = replace(record, execution_paths={"steps": steps})
        seed_runs.write(tmp_path / path, record)

    return add


def measured(rate, train_ms=10.0, eval_ms=5.0, tflops=None):
    return ThroughputResult(
        20, rate, None, train_ms, 200.0, None, eval_ms, 2.0, 0.1, 0.02, 1000, 100, (rate,), (200.0,), 0.5, 1, tflops,
        True, None, None,
    )  # fmt: skip


def rows_of(root, name):
    """Return the rows of a table as dictionaries by the header."""
    return seed_runs.read_table(five_studies.tables(root)[name])


def test_published_epochs_fall_with_gpus_and_ours_are_a_ratio(tmp_path, study, ratio_text):
    epochs = {1: (3.5, 4.2, 3.9), 2: (3.4, 4.4, 3.6)}
    for gpus, values in epochs.items():
        for seed, value in enumerate(values, start=1):
            training = seed_runs.cross_at(value, seconds=10 / gpus + seed)
            study(f"multi_gpu/training/{gpus}-{seed}", training, gpus=gpus, seed=seed, name="gnmt")
    *borrowed, own = rows_of(tmp_path, "epochs")
    assert list(borrowed[0].values()) == ["GNMT", "2 x T4", "12", "7", "0.583", "3.1"]
    assert list(borrowed[2].values()) == ["GNMT", "4 x T4", "12", "4", "0.333", "10.4"]
    assert list(borrowed[-1].values()) == ["Transformer", "3 x V100-PCIe", "8", "4", "0.5", ""]
    assert list(own.values()) == [
        "GNMT", "2 x H100", "3.86", "3.78", ratio_text(epochs[2], epochs[1]), ratio_text((11, 12, 13), (6, 7, 8)),
    ]  # fmt: skip


def test_passes_are_predicted_by_the_published_peaks(tmp_path, study):
    for seed, ms in enumerate((20.0, 21.0)):
        study(f"five_studies/passes/{seed}", throughput=measured(1.0, ms, 7.0, 67.0), network="vgg16", precision="fp32")
    for steps, factor in (("not captured", 1), ("captured", 2)):
        throughput = measured(1.0, 6.0 / factor, 2.0 / factor, 990.0)
        study(f"five_studies/passes/{steps}", throughput=throughput, network="vgg16", precision="fp16", steps=steps)
    evaluation, training, *half = rows_of(tmp_path, "passes")
    assert [row["measured"] for row in half] == ["1 ms", "3 ms", "2 ms", "6 ms"]
    assert [row["training steps"] for row in half] == ["captured", "captured", "not captured", "not captured"]
    assert {row["predicted"] for row in half} == {""}
    peaks = np.array([14.9, 11.34, 14.13, 13.45, 8.14, 12.74])
    speeds = 1e3 / np.array([108.8, 131.9, 83.5, 102.9, 223.6, 146.9])
    fit = stats.linregress(np.log(peaks), np.log(speeds))
    predicted = 1e3 / np.exp(fit.intercept + fit.slope * np.log(67.0))
    assert training["predicted"].split()[0] == f"{predicted:.3g}"
    assert training["measured over predicted"] == f"{np.sqrt(20.0 * 21.0) / predicted:.3g}"
    assert (training["R² about zero"], training["R² about the mean"]) == ("0.975", "0.66")
    assert (evaluation["measured"], evaluation["R² about zero"]) == ("7 ms", "0.976")


def test_links_are_compared_at_equal_settings(tmp_path, study, ratio_text):
    rates = {(1, True): (100.0, 101.0), (2, True): (199.0, 200.0), (2, False): (150.0, 151.0)}
    for (gpus, link), values in rates.items():
        for seed, rate in enumerate(values):
            options = {"gpus": gpus, "link": link, "network": "nasnet_mobile", "global_batch_size": 512 * gpus}
            study(f"multi_gpu/networks/{gpus}{link}{seed}", throughput=measured(rate), precision="fp16", **options)
    for path, gpus, rate in (("four", 4, 402.0), ("one", 1, 110.0)):  # of another sitting
        options = {"gpus": gpus, "network": "nasnet_mobile", "global_batch_size": 512 * gpus}
        study(f"multi_gpu/links/{path}", throughput=measured(rate), precision="fp16", **options)
    row, four = rows_of(tmp_path, "links")
    assert list(row.values()) == [
        "nasnet_mobile", "fp16", "512", "2", f"{990.81 / 432.60:.3g}", ratio_text(rates[2, True], rates[1, True]),
        f"{999.52 / 990.81:.3g}", ratio_text(rates[2, False], rates[2, True]),
    ]  # fmt: skip
    assert list(four.values())[3:] == [
        "4", f"{1968.20 / 432.60:.3g}", f"{402 / 110:.3g}", f"{1982.17 / 1968.20:.3g}", ""
    ]  # fmt: skip


def test_batches_have_rates_or_the_state_of_the_failure(tmp_path, study):
    folder = "five_studies/batches"
    for seed, accuracy in enumerate((0.88, 0.90)):
        training = seed_runs.train({"accuracy": (0.5, 0.7, accuracy)}, {"accuracy": 0.99}, seconds=120.0, rate=200.0)
        study(
            f"{folder}/{seed}", training, network="cnn10", name="cifar10", global_batch_size=128, seed=seed, joules=1.0
        )
    study(f"{folder}/rate", throughput=measured(300.0), network="wrn28_10", global_batch_size=128)
    study(f"{folder}/big", network="wrn28_10", state=RunState.OUT_OF_MEMORY, global_batch_size=2048)
    trained, rate, big = rows_of(tmp_path, "batches")
    assert list(trained.values())[:4] == ["cnn10", "128", "1", "19.6 min"]
    assert (trained["images/s"], trained["100 epochs"], trained["first epoch longer by"]) == ("200", "2 min", "0.00 s")
    assert trained["accuracy"] == "0.8800 to 0.9000"
    assert (rate["published, 100 epochs"], rate["images/s"]) == ("190 min", "300")
    assert (big["images/s"], big["published, 100 epochs"]) == ("out of memory", "")


def test_precisions_have_speed_energy_and_cost(tmp_path, study, ratio_text):
    for precision, rate in (("fp32", 100.0), ("tf32", 200.0)):
        for seed in (1, 2):
            training = seed_runs.cross_at(3.5, seconds=1e3 / rate, rate=rate + seed)
            options = {"precision": precision, "seed": seed, "joules": 5000.0, "name": "resnet50"}
            study(f"seeds/precision/resnet50_mini/{precision}{seed}", training, **options)
    other_gpu = {"precision": "fp32", "name": "resnet50", "accelerator": "h200"}
    study("seeds/precision/resnet50_mini/other", seed_runs.cross_at(3.5, rate=300.0), **other_gpu)
    study("five_studies/cifar10/1", seed_runs.cross_at(3.5, seconds=2.0), usd=0.0017, name="cifar10")
    fp32, tf32, other, cifar = rows_of(tmp_path, "precisions")
    assert list(fp32.values())[:5] == ["RESNET50", "H100", "fp32", "2 of 2", "101"]
    assert list(other.values())[:5] == ["RESNET50", "H200", "fp32", "1 of 1", "300"]
    assert tf32["to fp32"] == ratio_text((201, 202), (101, 102))
    assert (tf32["time-to-train"], tf32["energy"], tf32["cost"]) == ("5 s", "5 kJ", "")
    assert (cifar["precision"], cifar["time-to-train"], cifar["cost"]) == ("bf16", "2 s", "0.0017 USD")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The archives of the page, unpacked."""
    folder = tmp_path_factory.mktemp("archives")
    for archive in five_studies.ARCHIVES:
        study_page.unpack(archive, folder)
    return folder


def read(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("status.json"))]


@pytest.mark.integration
def test_page_is_what_the_archives_say(published):
    page = five_studies.PAGE.read_text()
    assert study_page.fill(page, five_studies.tables(published)) == page


@pytest.mark.integration
def test_published_precisions_are_recomputed(published, ratio_text):
    """Those of CIFAR-10, from the plain files, with none of timetrial's code."""
    runs = {}
    for record in read(published / "five_studies" / "cifar10"):
        training = record["training"]  # of one block
        figures = [training["samples"] / training["train_seconds"], training["seconds"]]
        figures += [record["telemetry"]["energy_joules"] / 1e3, record["cost"]["usd"]]
        runs.setdefault(record["config"]["precision"]["name"], []).append(figures)
    rows = [row for row in rows_of(published, "precisions") if row["workload"] == "CIFAR-10"]
    assert [row["precision"] for row in rows] == ["fp32", "tf32", "bf16", "fp16"]
    for row in rows:
        rate, *others = stats.gmean(runs[row["precision"]])
        seconds, kilojoules, usd = others
        assert (row["samples/s"], row["time-to-train"]) == (f"{rate:,.0f}", f"{seconds:.3g} s")
        assert (row["energy"], row["cost"]) == (f"{kilojoules:.3g} kJ", f"{usd:.2g} USD")
        if row["precision"] != "fp32":
            sides = (np.array(runs[precision])[:, 0] for precision in (row["precision"], "fp32"))
            assert row["to fp32"] == ratio_text(*sides)


@pytest.mark.integration
def test_published_speeds_on_several_gpus_are_recomputed(published, ratio_text):
    """From the plain files; cells of one run have no interval."""
    rates = {}
    for folder in ("multi_gpu/networks", "multi_gpu/links", "five_studies/batches"):
        for record in read(published / folder):
            recipe, gpus = record["config"]["recipe"], record["config"]["gpus"]
            place = folder, recipe["training"]["network"], record["config"]["precision"]["name"]
            setting = recipe["global_batch_size"], gpus, record["config"]["peer_to_peer"]
            if record["throughput"]:  # not of 100 epochs
                rates.setdefault((*place, *setting), []).append(record["throughput"]["samples_per_second"])

    def text(values, base):
        if not values or not base:
            return ""
        return (
            ratio_text(values, base)
            if min(len(values), len(base)) > 1
            else f"{stats.gmean(values) / stats.gmean(base):.3g}"
        )

    for row in rows_of(published, "links"):
        batch, several = int(row["batch per GPU"]), int(row["GPUs"])
        place = "multi_gpu/links" if several == 4 else "multi_gpu/networks", row["network"], row["precision"]
        settings = (1, True), (several, True), (several, False)
        one, linked, unlinked = (rates.get((*place, batch * gpus, gpus, link)) for gpus, link in settings)
        assert row["speed over one GPU"] == text(linked, one)
        assert row["NVLink off to on"] == text(unlinked, linked)
    for row in rows_of(published, "batches"):
        place, batch = ("five_studies/batches", row["network"], "fp32"), int(row["batch"].replace(",", ""))
        if row["GPUs"] == "2":
            one, two = (rates.get((*place, batch, gpus, True)) for gpus in (1, 2))
            assert row["speed to one GPU"] == text(two, one)
