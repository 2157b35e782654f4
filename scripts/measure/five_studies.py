"""Write the tables of docs/studies/five_studies.md: what five studies published, beside runs of timetrial.

    .venv/bin/python -P scripts/measure/five_studies.py [--check]

The published values are those of runner/results/reference_data/studies. The runs are in docs/studies: those that
other pages show in `seeds.tar.xz` and `multi_gpu.tar.xz`, the others in `five_studies.tar.xz`. With --check nothing is
written, and the exit code is 1 if the page differs.
"""

import functools
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import pandas as pd

from timetrial.runner.record.run_record import RunRecord
from timetrial.runner.results.analysis.regression import fit_power_law, fit_through_origin
from timetrial.runner.results.parse.external import REFERENCE_DATA, ExternalMeasurement, read_measurements
from timetrial.scripts.measure import seed_outcomes, study_page
from timetrial.scripts.measure.multi_gpu_study import rates
from timetrial.scripts.measure.study_page import mean, ratio, span

PAGE = study_page.STUDIES / "five_studies.md"
ARCHIVES = tuple(study_page.STUDIES / f"{name}.tar.xz" for name in ("seeds", "multi_gpu", "five_studies"))
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# Names of networks in the published tables, where they differ from ours.
_PUBLISHED = {
    "inception_v3": "inception-v3",
    "inception_v4": "inception-v4",
    "nasnet_mobile": "nasnet",
    "vgg16": "vgg-16",
    "wrn28_10": "wrn-28-10",
}


def tables(root: Path) -> dict[str, str]:
    """Return the tables in Markdown by the name of their place on the page."""
    study = root / "five_studies"
    return {
        "epochs": _epochs(_tabulate(root / "multi_gpu" / "training")),
        "passes": _passes(_tabulate(study / "passes")),
        "links": _links(_tabulate(root / "multi_gpu" / "networks"), _tabulate(root / "multi_gpu" / "links")),
        "batches": _batches(_tabulate(study / "batches")),
        "precisions": _precisions(_tabulate(root / "seeds" / "precision"), _tabulate(study / "cifar10")),
    }


def _tabulate(folder: Path) -> pd.DataFrame:
    """Return a row per ended run: its outcome and its setting."""
    records = seed_outcomes.read_ended(folder)
    runs = seed_outcomes.tabulate(records)
    settings: dict[str, Callable[[RunRecord], Any]] = {
        "workload": lambda record: record.config["workload"]["name"],
        "title": lambda record: record.config["workload"]["title"],
        "network": lambda record: record.config["recipe"]["training"].get("network"),
        "precision": lambda record: record.config["precision"]["name"],
        "gpus": lambda record: record.config["gpus"],
        "steps": lambda record: record.execution_paths.get("steps", ""),
        "batch": lambda record: record.config["recipe"]["global_batch_size"],
        "link": lambda record: "NVLink" if record.config["peer_to_peer"] else "no NVLink",
        "gpu": lambda record: next((gpu["name"] for gpu in record.environment["gpus"]), ""),
    }
    return runs.assign(**{name: list(map(setting, records)) for name, setting in settings.items()})


@functools.cache
def _read_study(name: str) -> list[ExternalMeasurement]:
    return read_measurements(REFERENCE_DATA / "studies" / f"{name}.csv")


def find(study: str, **wanted: object) -> list[ExternalMeasurement]:
    """Return the measurements of a published study whose fields have the values of `wanted`."""
    return [row for row in _read_study(study) if all(getattr(row, name) == value for name, value in wanted.items())]


def published(study: str, **wanted: object) -> list[float]:
    """Return the values of these measurements; one that failed has none."""
    return [row.value for row in find(study, **wanted) if row.value is not None]


# A study of time-to-train whose epochs depend on the number of GPUs (2019)


def _epochs(runs: pd.DataFrame) -> str:
    """Return epochs and speed on several GPUs beside one: published ones, then those at one global batch size."""
    rows = [*_published_epochs()]
    for title, same in runs.groupby("title", sort=False):
        one = same[same.gpus == 1]
        for (gpu, gpus), group in same[same.gpus > 1].groupby(["gpu", "gpus"]):
            means = (mean(side.fractional, "{:.3g}".format) for side in (one, group))
            ratios = ratio(group.fractional, one.fractional), ratio(one.seconds, group.seconds)
            rows.append([str(title), f"{gpus} x {gpu}", *means, *ratios])
    header = ["workload", "GPUs", "epochs on one", "epochs on all", "ratio", "speedup over one"]
    return study_page.markdown_table(header, rows)


def _published_epochs() -> Iterator[list[str]]:
    for workload, title in (("gnmt", "GNMT"), ("transformer", "Transformer")):
        for gpu in ("T4", "V100-PCIe"):
            query = {"workload": workload, "accelerator": gpu}
            by_gpus = {row.num_accelerators: row.value for row in find("t4_v100_2019", metric="epochs", **query)}
            for gpus, epochs in by_gpus.items():
                if gpus > 1 and epochs and by_gpus[1]:
                    wanted = query | {"num_accelerators": gpus, "baseline": f"1 x {gpu}"}
                    speedup = "".join(f"{row.value:.3g}" for row in find("t4_v100_2019", metric="speedup", **wanted))
                    cells = [f"{by_gpus[1]:g}", f"{epochs:g}", f"{epochs / by_gpus[1]:.3g}"]
                    yield [title, f"{gpus} x {gpu}", *cells, speedup]


# A study that predicts passes of a batch by the peak of a GPU (2022)


def _passes(runs: pd.DataFrame) -> str:
    """Return the milliseconds of a pass, and in fp32 what the published passes and peaks predict for this GPU.

    A network that was measured with training steps that are captured and with others has rows of both.
    """
    networks = list(runs.network.unique())
    settings = sorted(
        runs.groupby(["network", "precision", "steps"]),
        key=lambda item: (networks.index(item[0][0]), _PRECISIONS.index(item[0][1]), item[0][2]),
    )
    rows = []
    for (network, precision, steps), group in settings:
        for task in ("eval", "train"):
            results = [record.throughput for record in group.record if record.throughput]
            own = [result.eval_ms if task == "eval" else result.train_ms for result in results]
            cells = ["", "", "", ""]
            if precision == "fp32" and results and results[0].datasheet_tflops:
                cells = _predict(network, task, results[0].datasheet_tflops, own)
            rows.append([str(network), str(precision), str(steps), task, mean(own, "{:.3g} ms".format), *cells])
    header = ["network", "precision", "training steps", "pass", "measured", "predicted", "measured over predicted"]
    return study_page.markdown_table([*header, "R² about zero", "R² about the mean"], rows)


def _predict(network: object, task: str, tflops: float, own: Sequence[float]) -> list[str]:
    """Return the milliseconds that a power law of the published speeds on fp32 peaks predicts, and measured over them.

    With them comes R² of the line through the origin that the study fits.
    """
    peaks: list[float] = []
    speeds: list[float] = []
    for gpu in ("Titan V", "1080 Ti", "V100", "2080 Ti", "Tesla T4", "RTX 3060"):
        query = {"accelerator": gpu, "precision": "fp32"}
        peaks += published("rtx3060_2022", metric="peak_tflops", **query)
        speeds += (
            1e3 / ms for ms in published("rtx3060_2022", metric="milliseconds", workload=network, task=task, **query)
        )
    speed = fit_power_law(peaks, speeds).predict(tflops)
    predicted = speed.inverse.scaled(1e3)
    line = fit_through_origin(peaks, speeds)
    quotient = mean(own, lambda ms: f"{ms / predicted.estimate:.3g}")
    return [f"{predicted} ms", quotient, f"{line.r2_uncentered:.3f}", f"{line.r2_centered:.2f}"]


# A study of NVLink (2020)


def _links(*sittings: pd.DataFrame) -> str:
    """Return ratios of throughput: of several GPUs to one of the same sitting, and without NVLink to with it."""
    rows = []
    for sitting in sittings:
        runs = sitting.assign(per_gpu=sitting.batch // sitting.gpus)
        for (network, precision, per_gpu), group in runs.groupby(["network", "precision", "per_gpu"], sort=False):
            query = {"workload": _PUBLISHED.get(str(network), network), "precision": precision, "task": "train"}
            for several in sorted({*group.gpus} - {1}):
                one, linked, unlinked = (1, "NVLink"), (several, "NVLink"), (several, "no NVLink")
                cells = (*_speedup(linked, one, group, query), *_speedup(unlinked, linked, group, query))
                rows.append([str(network), str(precision), f"{per_gpu:,}", f"{several}", *cells])
    header = ["network", "precision", "batch per GPU", "GPUs", "published: speed over one GPU", "speed over one GPU"]
    return study_page.markdown_table([*header, "published: NVLink off to on", "NVLink off to on"], rows)


def _speedup(
    setting: tuple[int, str], base: tuple[int, str], runs: pd.DataFrame, query: Mapping[str, object]
) -> tuple[str, str]:
    """Return the published ratio of two settings' throughputs, and that of the runs; a setting is (GPUs, link)."""
    theirs, own = [], []
    for gpus, link in (setting, base):
        theirs.append(published("rtx8000_nvlink_2020", num_accelerators=gpus, interconnect=link, **query))
        own.append(rates(list(runs.record[(runs.gpus == gpus) & (runs.link == link)])))
    return f"{theirs[0][0] / theirs[1][0]:.3g}" if all(theirs) else "", ratio(*own)


# A study of batch sizes on CIFAR-10, on one and two GPUs (2019)


def _batches(runs: pd.DataFrame) -> str:
    """Return a row for each network, batch size and number of GPUs, of training runs and of throughput runs."""
    rows = []
    for (network, batch), same in runs.groupby(["network", "batch"]):
        query = {"accelerator": "RTX 2080 Ti", "metric": "minutes_total", "batch": batch}
        query["workload"] = _PUBLISHED.get(str(network), str(network))
        for gpus, group in same.groupby("gpus"):
            theirs = find("rtx2080ti_tpuv2_2019", num_accelerators=gpus, **query)
            minutes = {n: published("rtx2080ti_tpuv2_2019", num_accelerators=n, **query) for n in (1, gpus)}
            is_ratio = gpus > 1 and all(minutes.values())
            trained = group[group.record.map(lambda record: record.training is not None)]
            results = [record.training for record in trained.record]
            failed = sorted({r.state.value for r in group.record if not (r.throughput or r.training)})
            accuracy = [result.quality["accuracy"] for result in results]
            measured = [record for record in group.record if record.throughput] or list(trained.record)
            watts = [telemetry.mean_watts for record in measured if (telemetry := record.telemetry)]
            speeds = _speeds(group)
            rows.append([
                str(network), f"{batch:,}", f"{gpus}",
                "".join(f"{row.value:.3g} min" if row.value else row.outcome for row in theirs),
                f"{minutes[1][0] / minutes[gpus][0]:.3g}" if is_ratio else "",
                mean(speeds, "{:,.0f}".format) or ", ".join(failed),
                ratio(speeds, _speeds(same[same.gpus == 1])) if gpus > 1 else "",
                mean([result.seconds / 60 for result in results], "{:.3g} min".format),
                _seconds_of_first_epoch(trained.record),
                span(accuracy, "{:.4f}".format),
                mean(filter(None, watts), "{:.0f} W".format),
            ])  # fmt: skip
    header = ["network", "batch", "GPUs", "published, 100 epochs", "published speed to one GPU", "images/s"]
    header += ["speed to one GPU", "100 epochs", "first epoch longer by", "accuracy", "power of all GPUs"]
    filled = [any(column) for column in zip(*rows, strict=True)]
    return study_page.markdown_table(list(compress(header, filled)), [list(compress(row, filled)) for row in rows])


def _speeds(runs: pd.DataFrame) -> list[float]:
    """Return the images per second of throughput runs, or without one those of training runs."""
    return rates(list(runs.record)) or list(runs.rate.dropna())


def _seconds_of_first_epoch(records: pd.Series) -> str:
    """Return the median over runs of the seconds that the first block trained longer than the median of the others."""
    seconds = (pd.Series([block.train_seconds for block in record.training.blocks]) for record in records)
    extra = [float(blocks[0] - blocks[1:].median()) for blocks in seconds]
    return f"{pd.Series(extra).median():.2f} s" if extra else ""


# A study of Tensor Cores (2018)


def _precisions(resnet: pd.DataFrame, cifar: pd.DataFrame) -> str:
    """Return speed, time, energy and cost to the target in each number format."""
    rows = []
    resnet = resnet[resnet.workload == "resnet50"]
    for runs in (*(own for _, own in resnet.groupby("processor", sort=False)), cifar):
        for precision in (name for name in _PRECISIONS if (runs.precision == name).any()):
            group = runs[runs.precision == precision]
            base = runs[runs.precision == "fp32"]
            usd = [record.cost.usd for record in group.record[group.reached] if record.cost]
            reached = f"{int(group.reached.sum())} of {len(group)}"
            rows.append([
                str(group.title.iloc[0]), str(group.processor.iloc[0]), precision, reached,
                mean(group.rate, "{:,.0f}".format), "" if precision == "fp32" else ratio(group.rate, base.rate),
                mean(group.fractional, "{:.3g}".format), mean(group.seconds, "{:.3g} s".format),
                mean(group.joules, lambda joules: f"{joules / 1e3:.3g} kJ"), mean(usd, "{:.2g} USD".format),
            ])  # fmt: skip
    header = ["workload", "GPU", "precision", "reached the target", "samples/s", "to fp32", "epochs", "time-to-train"]
    return study_page.markdown_table([*header, "energy", "cost"], rows)


def main() -> int:
    """Write the page, or compare it with what would be written."""
    check = study_page.only_checks(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        for archive in ARCHIVES:
            study_page.unpack(archive, Path(folder))
        page = study_page.fill(PAGE.read_text(), tables(Path(folder)))
    return study_page.write_or_compare({PAGE: page}, check=check)


if __name__ == "__main__":
    sys.exit(main())
