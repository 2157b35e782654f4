"""Runs in Weights & Biases without a network, read back from the files that `wandb sync` uploads."""

import json
import struct

import pytest

from timetrial.runner.core.errors import Exit

pytestmark = pytest.mark.integration  # importing wandb and starting its service take seconds

_BLOCK, _HEADER = 32768, struct.Struct("<IHB")  # of LevelDB's log format: checksum, length, type


def read_records(path):
    """Return the records of a .wandb file: protocol buffers in LevelDB's log format, behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, parts, records = path.read_bytes(), 7, [], []
    while position + _HEADER.size <= len(content):
        if _BLOCK - position % _BLOCK < _HEADER.size:
            position += _BLOCK - position % _BLOCK
            continue
        _, length, kind = _HEADER.unpack_from(content, position)
        position += _HEADER.size + length
        parts.append(content[position - length : position])
        if kind in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(b"".join(parts)))
            parts = []
    return records


def values(items):
    """Return the values of items by their key."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_stopped_and_resumed_run_is_one_wandb_run(stop_and_resume, recorded_curves, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_dir = stop_and_resume("observers.wandb=true")
    files = sorted(run_dir.path.glob("wandb/offline-run-*/*.wandb"))
    first, second = (read_records(file) for file in files)
    runs = [next(record.run for record in records if record.HasField("run")) for records in (first, second)]
    assert runs[0].run_id == runs[1].run_id
    for run in runs:
        assert (run.project, run.display_name) == ("timetrial", "NCF embedded, 1 x cpu, fp32, seed 1")
        config = values(run.config.update)
        assert config["recipe"]["global_batch_size"] == 2048
        assert config["seed"] == 1

    exits = [record.exit.exit_code for records in (first, second) for record in records if record.HasField("exit")]
    assert exits == [Exit.TIME_LIMIT, 0]
    training = run_dir.record().training
    points = [values(record.history.item) for record in second if record.HasField("history")]
    assert not any(record.HasField("history") for record in first)
    curves = recorded_curves(training)
    assert {name: [(point["epoch"], point[name]) for point in points if name in point] for name in curves} == curves
    assert {name for point in points for name in point if name[0] != "_"} == {"epoch", *curves}
    assert [point["_timestamp"] for point in points if "quality/hit_rate" in point] == pytest.approx(
        [block.ended_at for block in training.blocks], abs=1e-3
    )
    summary = {}
    for record in second:
        summary |= values(record.summary.update)
    assert {name: value for name, value in summary.items() if name.startswith("result/")} == {
        "result/seed": 1,
        "result/exit_code": Exit.TARGET_NOT_REACHED,
        "result/hit_rate": training.blocks[-1].quality["hit_rate"],
        "result/epochs": 4,
    }
