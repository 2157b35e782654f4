"""The MLPerf log of a resumed run."""

import contextlib
import json

import pytest

from timetrial.runner.core.errors import DataError
from timetrial.runner.mlperf import log_writer
from timetrial.runner.mlperf.log_writer import MLPerfLog
from timetrial.runner.training.events import (
    BlockEnded,
    BlockStarted,
    EvalEnded,
    EvalStarted,
    InitStarted,
    RunStarted,
    RunStopped,
)


def entries(path):
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()]


def block(epoch, time):
    yield BlockStarted(time=time, first_epoch=epoch, epochs=1)
    yield BlockEnded(time=time + 1, first_epoch=epoch, epochs=1, samples=10, loss=1.0)
    yield EvalStarted(time=time + 1, epoch=epoch)
    yield EvalEnded(time=time + 2, epoch=epoch, quality={"accuracy": 0.1 * epoch})


def write(log, *events):
    for event in events:
        log(event)


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """Return the log of a run killed in its third epoch, its state after the first, and its text until then."""
    monkeypatch.setattr(log_writer, "now", lambda: 15.0)
    path = tmp_path / "result_1.txt"
    with contextlib.closing(MLPerfLog(path, {"seed": 1}, {"accuracy": 0.5})) as log:
        write(log, InitStarted(time=1.0), RunStarted(time=10.0, params={"opt_name": "sgd"}), *block(1, 11.0))
        state, text = log.state_dict(), path.read_text()
        write(log, *block(2, 20.0), BlockStarted(time=30.0, first_epoch=3, epochs=1))
    return path, state, text


def test_state_is_the_length_of_the_log_and_the_completed_epochs(interrupted):
    _, state, text = interrupted
    assert state == {"bytes": len(text), "completed_epochs": 1, "time": 15.0}


def test_resumed_log_is_cut_back_and_has_one_resumed_line(interrupted):
    path, state, text = interrupted
    with contextlib.closing(MLPerfLog(path, {"seed": 1}, {"accuracy": 0.5})) as log:
        log.load_state_dict(state)
        write(log, InitStarted(time=100.0), RunStarted(time=105.0, params={"opt_name": "sgd"}), *block(2, 105.0))
        log(RunStopped(time=107.0, status="aborted"))
        assert log.state_dict()["completed_epochs"] == 2
    assert path.read_text().startswith(text)
    added = entries(path)[len(text.splitlines()) :]
    assert (added[0]["key"], added[0]["value"]) == ("timetrial_resumed", {"epochs_done": 1, "lost_seconds": 90.0})
    keys = [entry["key"] for entry in entries(path)]
    for key in ("timetrial_resumed", "cache_clear", "init_start", "init_stop", "run_start", "run_stop", "seed"):
        assert keys.count(key) == 1, key
    assert keys.count("epoch_start") == keys.count("epoch_stop") == 2


@pytest.mark.parametrize("removed", [True, False])
def test_rejects_log_that_is_shorter_than_the_checkpoint(interrupted, removed):
    path, state, text = interrupted
    path.unlink() if removed else path.write_text(text[:-5])
    with contextlib.closing(MLPerfLog(path, {}, {"accuracy": 0.5})) as log:
        log.load_state_dict(state)
        with pytest.raises(DataError, match="start the run over in a new run directory"):
            log(RunStarted(params={}))
    assert not path.exists() or path.read_text() == text[:-5]
