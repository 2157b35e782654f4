"""status.json: written and read back without loss, checked on reading, refused if another version wrote it."""

import contextlib
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timetrial.runner.core.found_files import UnreadableFile
from timetrial.runner.record.attempt import Attempt
from timetrial.runner.record.record_file import encode_record, read_record
from timetrial.runner.record.run_record import (
    ComplianceVerdict,
    Cost,
    RunClass,
    RunRecord,
    RunState,
    TelemetrySummary,
)
from timetrial.runner.record.throughput_result import StepCost, ThroughputResult
from timetrial.runner.record.training_result import Block, TrainingResult, time_to_train

BLOCKS = [
    Block(epoch, 1, 100, 0, 0.5, 10.0, 0.1, 1.0, {"top1": 0.1 * epoch}, 11.0 * epoch, False) for epoch in (1, 2, 3)
]
TRAINING = TrainingResult.from_blocks(
    BLOCKS, target={"top1": 0.3}, reached=True, started_at=0.0, stopped_at=33.0, lost_seconds=3.0
)
THROUGHPUT = ThroughputResult(
    20, 100.0, None, 10.0, 200.0, None, 5.0, 2.0, 0.1, 0.02, 1000, 100, (99.0, 101.0), (200.0,), 0.5, 2, 990.0, True,
    None, StepCost(2, 20.0, 0.0, 1e9, 1e8, 1e7),
)  # fmt: skip
RECORD = RunRecord(
    state=RunState.TARGET_REACHED,
    run_class=RunClass.RESUMED,
    exit_code=0,
    attempts=(Attempt(1.0, "a", 1), Attempt(2.0, "b", 2)),
    environment={"gpus": [{"name": "H200"}]},
    config={"gpus": 2},
    training=TRAINING,
    verdict=ComplianceVerdict(False, "0.7.0", ("A line is missing.",)),
    telemetry=TelemetrySummary(
        1, 1.0, 33.0, 5e3, "NVML", 5e3, None, None, 150.0, 160.0, 90.0, 0.1, (1.0, 2.0), 70.0, 1e3, 0.0
    ),
    cost=Cost(0.1, 2.5),
    flags={"throttled": "clocks were lowered"},
)


def write(folder, values):
    (folder / "status.json").write_text(values if isinstance(values, str) else json.dumps(values))
    return folder


@pytest.mark.parametrize("record", [RunRecord(), RECORD, replace(RECORD, training=None, throughput=THROUGHPUT)])
def test_written_record_is_read_back_unchanged(tmp_path, record):
    assert read_record(write(tmp_path, encode_record(record))) == record


def test_missing_or_empty_file_has_no_record(tmp_path):
    assert read_record(tmp_path) is None
    assert read_record(write(tmp_path, "")) is None
    assert read_record(write(tmp_path, "{}")) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": "fine"}, "fine"),
        ({"exit_code": "0"}, "exit_code is '0', not a int"),
        ({"exit_code": True}, "exit_code"),
        ({"attempts": {}}, "attempts is no list"),
        ({"attempts": [{"started_at": 1.0}]}, r"attempts\[0\].hostname is missing"),
        ({"surprise": 1}, "surprise is unknown"),
        ({"schema_version": 99}, r"made by another version of timetrial\): use that version, or run again"),
        ({"schema_version": "1"}, "made by another version"),
        ({"flags": {"a": 1}}, "flags.a is '1'"),
        ({"training": None, "throughput": {}}, "throughput.data_wait_seconds is missing"),
        ({"throughput": asdict(THROUGHPUT)}, "training or throughput, not both"),
        ({"config": {"a": [float("nan")]}}, "it holds nan beyond any result"),
        ({"config": {"gpus": "x"}}, "config.gpus is 'x', not a int"),
        ({"config": {"gpus": 0}}, "config.gpus is 0"),
        ({"config": {"recipe": []}}, "config.recipe is no object"),
    ],
)
def test_rejects_damaged_record(tmp_path, change, message):
    with pytest.raises(UnreadableFile, match=message):
        read_record(write(tmp_path, json.loads(encode_record(RECORD)) | change))


@pytest.mark.parametrize("name", [name for name in asdict(RECORD) if name != "schema_version"])
def test_record_of_an_earlier_version_without_a_field_is_read(tmp_path, name):
    values = json.loads(encode_record(RECORD))
    del values[name]
    assert getattr(read_record(write(tmp_path, values)), name) == getattr(RunRecord(), name)


def test_record_without_a_version_is_another_versions(tmp_path):
    with pytest.raises(UnreadableFile, match="made by another version of timetrial"):
        read_record(write(tmp_path, {"state": "target reached", "exit_code": 0, "pid": 7, "host": "vm"}))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_rejects_numbers_that_are_not_finite(tmp_path, number):
    with pytest.raises(UnreadableFile, match="beyond any result"):
        read_record(write(tmp_path, encode_record(RECORD).replace('"usd": 0.1', f'"usd": {number}')))


@pytest.mark.parametrize("text", ["{", "[]", "1", "null", '{"a":', "[" * 100_000, "\x00", '{"schema_version": 1} {}'])
def test_rejects_text_that_is_not_a_record(tmp_path, text):
    with pytest.raises(UnreadableFile, match="cannot be read"):
        read_record(write(tmp_path, text))


def test_rejects_file_that_is_too_large(tmp_path):
    with open(tmp_path / "status.json", "wb") as file:
        file.truncate(2**30)
    with pytest.raises(UnreadableFile, match="larger than 16 MiB"):
        read_record(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(key=st.sampled_from([*asdict(RECORD)]), value=JSON, versioned=st.booleans())
def test_arbitrary_values_are_read_or_rejected(tmp_path_factory, key, value, versioned):
    values = json.loads(encode_record(RECORD)) | {key: value}
    if not versioned:
        del values["schema_version"]
    folder = write(tmp_path_factory.mktemp("run"), values)
    with contextlib.suppress(UnreadableFile):
        assert isinstance(read_record(folder), RunRecord | None)


def test_time_to_train_is_none_for_a_clock_that_runs_backwards():
    assert time_to_train(1.0, 3.5) == 2.5
    assert time_to_train(3.5, 1.0) is None
    assert time_to_train(float("nan"), 1.0) is None


def test_steady_throughput_excludes_the_first_block():
    slow = replace(BLOCKS[0], train_seconds=100.0)
    result = TrainingResult.from_blocks(
        [slow, *BLOCKS[1:]], target={"top1": 0.9}, reached=False, started_at=0.0, stopped_at=130.0, lost_seconds=0.0
    )
    assert (result.samples_per_second, result.first_block_samples_per_second) == (10.0, 1.0)
    assert (result.reached, result.epochs, result.epochs_to_converge) == (False, 3, None)
