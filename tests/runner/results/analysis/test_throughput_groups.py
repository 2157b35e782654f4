"""Throughput groups, comparisons and measurements of real run directories whose rates are then replaced."""

import math
import shutil
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from timetrial.runner.cli.app import app
from timetrial.runner.launch.run import launch
from timetrial.runner.record.record_file import encode_record, read_record
from timetrial.runner.record.run_record import RunState
from timetrial.runner.record.throughput_result import ThroughputResult
from timetrial.runner.results.analysis import throughput_groups
from timetrial.runner.results.analysis.intervals import LogEstimate
from timetrial.runner.results.analysis.own_measurements import measure_throughput, split_by_run
from timetrial.runner.results.analysis.throughput_comparison import (
    ThroughputComparison,
    compare_closest,
    compare_peer_to_peer,
)
from timetrial.runner.results.analysis.throughput_groups import ThroughputGroup
from timetrial.runner.results.analysis.verdicts import Verdict
from timetrial.runner.results.report import build
from timetrial.runner.results.report.speed_text import setting_differences, throughput_phrase, throughput_reasons

TINY = ["workload=cifar10", "model=cnn10", "scale=reference", "+recipe.training.width=2", "data=synthetic"]
TINY += ["recipe.global_batch_size=8", "+recipe.data.eval_batch_size=4", "throughput.steps=1", "throughput.blocks=2"]


def read_groups(tree):
    unreadable = []
    groups = throughput_groups.read_throughput_groups([tree], unreadable.append)
    assert unreadable == []
    return groups


@pytest.fixture
def measured(compose, tmp_path):
    """Return measured(name, rates, *overrides), which makes one run directory per rate; None is out of memory."""

    def make(name, rates, *overrides):
        composed = compose(*TINY, "launcher=inline", f"runs_dir={tmp_path}/first", *overrides)
        folder = launch(composed, Console(quiet=True)).run_dir
        record = folder.record()
        # As if two GPUs had run it, on a machine that is not busy with other tests.
        record = replace(record, config=record.config | {"gpus": 2}, flags={}, disturbed_share=0.0)
        for number, rate in enumerate(rates):
            copy = tmp_path / "runs" / f"{name}_{number}"
            shutil.copytree(folder.path, copy)
            if rate is None:
                changed = replace(record, state=RunState.OUT_OF_MEMORY, throughput=None)
            else:
                rates_of_run = {"samples_per_second": rate, "train_ms": 8000 / rate, "eval_ms": 2.0}
                changed = replace(record, throughput=replace(record.throughput, **rates_of_run))
            (copy / "status.json").write_text(encode_record(changed))
        shutil.rmtree(folder.path)
        return tmp_path / "runs"

    return make


def test_groups_runs_by_setting_and_peer_to_peer(measured):
    measured("enabled", [100.0, 102.0, 98.0])
    tree = measured("disabled", [99.0, 101.0, 100.0], "peer_to_peer=false", "seed=2")
    enabled, disabled = sorted(read_groups(tree), key=lambda group: group.interconnect, reverse=True)
    assert (enabled.network, enabled.num_accelerators, enabled.batch) == ("cnn10", 2, 4)
    assert enabled.interconnect == "peer-to-peer"
    assert (disabled.interconnect, len(enabled.results), len(disabled.results)) == ("no peer-to-peer", 3, 3)
    (comparison,) = compare_closest([enabled], [disabled])
    assert setting_differences(comparison) == ["peer_to_peer: True vs. False"]
    assert comparison.speed.log == pytest.approx(0.0, abs=1e-3)
    assert throughput_phrase(comparison).startswith("equal within 5% (1.000 times, 95% CI: 0.9")
    assert throughput_phrase(comparison).endswith("by samples per second, 3 vs. 3 runs")
    (comparison,) = compare_peer_to_peer([enabled, disabled])
    assert throughput_phrase(comparison).startswith("equal within 5%")
    assert [len(group.attempts) for group in (enabled, disabled)] == [3, 3]


def test_finds_difference_and_keeps_out_of_memory(measured):
    measured("enabled", [200.0, 202.0, 198.0])
    measured("big", [None], "recipe.global_batch_size=16")
    tree = measured("disabled", [100.0, 101.0, 99.0], "peer_to_peer=false")
    groups = read_groups(tree)
    (comparison,) = compare_peer_to_peer(groups)
    assert "faster (2.000 times" in throughput_phrase(comparison)
    (big,) = (group for group in groups if group.batch == 8)
    assert (big.out_of_memory, big.results) == (1, [])
    assert {entry.outcome for entry in measure_throughput([big])} == {"out of memory"}
    measurements = [entry for entry in measure_throughput(groups) if entry.metric == "milliseconds" and entry.value]
    milliseconds = {(entry.task, entry.batch, entry.interconnect): entry.value for entry in measurements}
    assert milliseconds["train", 4, "peer-to-peer"] == pytest.approx(40.0, rel=1e-3)
    assert milliseconds["eval", 4, "no peer-to-peer"] == pytest.approx(2.0)


def test_commands_read_run_directories_without_log(measured, tmp_path, monkeypatch):
    measured("enabled", [100.0, 102.0, 101.0])
    price = "accelerator.usd_per_gpu=5000"
    tree = measured("disabled", [50.0, 51.0, 50.5], "peer_to_peer=false", price)
    report = build.build_report([tree])
    assert len(report.measurements) == 7
    (blocks,) = [found for found in report.findings if "in blocks" in found.message]
    assert (blocks.kind, blocks.subject) == ("flag", "peer_to_peer")
    output = CliRunner().invoke(app, ["study", str(tree)]).stdout
    assert "no peer-to-peer" in output
    assert "$ per sample/s" in output
    assert "Peer-to-peer enabled vs. disabled: faster (2.000 times" in output
    output = CliRunner().invoke(app, ["compare", str(tree / "enabled_0"), str(tree / "disabled_0")]).stdout
    assert "peer_to_peer: True vs. False" in output
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["report", str(tree)], catch_exceptions=False)
    page = (tmp_path / "report" / "report.md").read_text()
    assert "timetrial throughput on" in page


def test_ignores_training_runs(launch, tmp_path):
    launch()
    assert read_groups(tmp_path) == []


def test_damaged_run_record_is_a_finding(measured):
    tree = measured("part", [100.0, 101.0])
    (tree / "part_1" / "status.json").write_text('{"schema_version": 1, "state": "measured", "throughput": 7}')
    report = build.build_report([tree])
    assert [len(group.results) for group in report.throughput_groups] == [1]
    (finding,) = [entry for entry in report.findings if entry.kind == "flag"]
    assert "part_1" in finding.subject
    assert finding.message.startswith("Passed over: ")
    assert "throughput is no object" in finding.message


def test_incomplete_configuration_is_a_finding(measured):
    tree = measured("part", [100.0, 101.0])
    status = tree / "part_1" / "status.json"
    status.write_text(status.read_text().replace('"global_batch_size"', '"another_key"'))
    report = build.build_report([tree])
    assert [len(group.results) for group in report.throughput_groups] == [1]
    (finding,) = [entry for entry in report.findings if entry.kind == "flag"]
    assert "its configuration is incomplete, KeyError: 'recipe.global_batch_size'" in finding.message


def test_groups_runs_by_threads(measured):
    measured("one", [100.0], "accelerator.threads=1")
    tree = measured("two", [50.0], "accelerator.threads=2")
    assert len(read_groups(tree)) == 2


def test_notes_number_of_runs_out_of_memory(measured):
    tree = measured("part", [100.0, None])
    notes = {entry.note for entry in measure_throughput(read_groups(tree))}
    assert notes == {"1 more out of memory"}


@pytest.mark.parametrize(
    ("first", "second", "precisions"),
    [
        (
            "engine.compile=null",
            "engine.compile=default",
            ["fp32 compile=default capture=false", "fp32 compile=null capture=true"],
        ),
        ("engine.capture=false", "engine.capture=true", ["fp32 capture=false", "fp32 capture=true"]),
        ("engine.compile=default", "recipe.global_batch_size=16", ["fp32", "fp32"]),  # no two executions of the same
        ("seed=1", "seed=2", ["fp32"]),
    ],
)
def test_runs_that_differ_in_execution_alone_are_measurements_of_their_own(measured, first, second, precisions):
    measured("first", [100.0], first)
    measurements = measure_throughput(read_groups(measured("second", [150.0], second)))
    found = [entry.precision for entry in measurements if entry.metric == "samples_per_second"]
    assert sorted(found) == precisions


def test_out_of_memory_run_has_no_evaluation(measured):
    tree = measured("big", [None])
    assert {entry.task for entry in measure_throughput(read_groups(tree))} == {"train"}


def test_single_gpu_has_no_peer_to_peer_effect():
    def group(peer_to_peer):
        return ThroughputGroup("c", {"gpus": 1, "peer_to_peer": peer_to_peer, "workload.name": "net"})

    assert not compare_peer_to_peer([group(True), group(False)])


def test_verdicts_and_batch_per_gpu():
    group = ThroughputGroup("c", {"recipe.global_batch_size": 256, "gpus": 3, "precision.name": "bf16"})
    assert group.precision_label == "bf16"
    assert ThroughputGroup("c", group.config | {"engine.compile": "default"}).precision_label == "bf16 compiled"
    assert group.batch == 86
    for estimate, words in (
        (LogEstimate(math.log(0.9), 0.01, 10, 3), "slower (0.900 times, 95% CI: 0.8"),
        (LogEstimate(math.log(1.1), 0.01, 10, 3), "faster (1.100 times"),
        (LogEstimate(0.0, 0.01, 10, 3), "equal within 5% (1.000 times"),
        (LogEstimate(0.0, 0.1, 10, 3), "cannot tell (1.000 times"),
        (LogEstimate(math.log(1.3), math.nan, math.nan, 1), "cannot tell (1.300 times, not repeated"),
        (LogEstimate(math.nan, math.nan, math.nan, 0), "no ratio, because one of them ran out of memory"),
    ):
        assert throughput_phrase(ThroughputComparison(group, group, [], estimate)).startswith(words)


def test_many_configurations_are_tested_together():
    """A difference that one pair shows is not shown among twenty; that of 1.5 times is."""
    rates = {"a": (100.0, 103.0, 101.0, 99.0), "b": (104.0, 105.0, 107.0, 103.0), "c": (150.0, 151.0, 152.0, 153.0)}

    def group(name, network):
        results = [
            ThroughputResult(
                *(8, rate, None, 1.0, rate, None, 1.0, 1.0, 0.0, 0.0, 8, 8, (rate,), (rate,), 0.0),
                *(1, None, False, None, None),
            )
            for rate in rates[name]
        ]
        return ThroughputGroup("c", {"workload.name": network, "precision.name": name}, results=results)

    def verdicts(names):
        pairs = [(group("a", str(number)), group(name, str(number))) for number, name in enumerate(names)]
        baselines, others = zip(*pairs, strict=True)
        return [comparison.verdict for comparison in compare_closest(baselines, others)]

    assert verdicts("b") == ["faster"]
    assert verdicts("b" * 20) == ["cannot tell"] * 20
    assert verdicts("b" * 19 + "c") == ["cannot tell"] * 19 + ["faster"]


def test_split_by_run_shows_repeats(measured):
    tree = measured("part", [100.0, 102.0, None])
    rates = measure_throughput(split_by_run(read_groups(tree)))
    assert sorted(entry.value for entry in rates if entry.metric == "samples_per_second") == [100.0, 102.0]
    assert len({entry.title for entry in rates if entry.metric == "samples_per_second"}) == 1


@pytest.mark.parametrize(("share", "verdict"), [(0.1, Verdict.SLOWER), (0.6, Verdict.CANNOT_TELL)])
def test_disturbed_throughput_bears_no_plain_verdict(measured, tmp_path, share, verdict):
    """Half as fast as the other side, in runs that may have lost this share of their time to other work."""
    measured("calm", [100.0, 102.0, 98.0])
    tree = measured("busy", [50.0, 51.0, 49.0], "recipe.global_batch_size=16")
    for number in range(3):
        folder = tree / f"busy_{number}"
        record = replace(read_record(folder), flags={"busy host": "other processes used 40%"}, disturbed_share=share)
        (folder / "status.json").write_text(encode_record(record))
    busy, calm = sorted(read_groups(tree), key=lambda group: group.batch, reverse=True)
    (comparison,) = compare_closest([calm], [busy])
    assert comparison.verdict is verdict
    assert comparison.distorting is None or comparison.distorting.cause == "disturbed runs (busy host)"
    assert throughput_reasons(comparison)[-1] == f"validity flags of {busy.title}: busy host"
    assert ("cannot tell because of disturbed runs" in throughput_phrase(comparison)) == (
        verdict is Verdict.CANNOT_TELL
    )


def test_waiting_for_batches_is_a_part_of_a_loaders_speed(measured):
    measured("one", [100.0, 102.0, 98.0])
    tree = measured("other", [50.0, 51.0, 49.0], "recipe.global_batch_size=16")
    for number in range(3):
        folder = tree / f"other_{number}"
        record = replace(
            read_record(folder), flags={"loader-bound": "50% of training was spent waiting"}, disturbed_share=0.5
        )
        (folder / "status.json").write_text(encode_record(record))
    other, one = sorted(read_groups(tree), key=lambda group: group.batch, reverse=True)
    (comparison,) = compare_closest([one], [other])
    assert (comparison.verdict, comparison.distorting) == (Verdict.SLOWER, None)
