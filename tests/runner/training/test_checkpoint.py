"""Checkpoints: when they are written, what they hold, and damaged files."""

import itertools

import pytest
import torch

from timetrial.runner.core.errors import DataError
from timetrial.runner.training import checkpoint
from timetrial.runner.training.checkpoint import Checkpointer, load_checkpoint
from timetrial.runner.training.distributed import World
from timetrial.runner.training.events import BlockStarted, EvalEnded, RunInterrupted, RunStarted, RunStopped, StepEnded


class Engine:
    def state_dict(self):
        return {"weight": torch.ones(2)}


class StepCounter:
    """An observer with state."""

    def __init__(self):
        self.steps = 0

    def __call__(self, event):
        self.steps += isinstance(event, StepEnded)

    def state_dict(self):
        return {"steps": self.steps}


@pytest.fixture
def checkpointer(tmp_path):
    """Return checkpointer(every_seconds=..., **observers)."""

    def make(every_seconds=1000.0, world=None, **observers):
        return Checkpointer(
            tmp_path / "checkpoint" / "checkpoint.pt", Engine(), world or World(), observers, every_seconds
        )

    return make


def block(epoch):
    return BlockStarted(first_epoch=epoch, epochs=1)


def test_interrupted_run_is_saved_with_its_completed_epochs(checkpointer):
    saving = checkpointer()
    for event in (RunStarted(params={}), block(1), block(2), block(3)):
        saving(event)
        assert not saving.path.exists()
    saving(RunInterrupted(completed_epochs=2))
    loaded = load_checkpoint(saving.path)
    assert loaded["completed_epochs"] == 2
    assert torch.equal(loaded["engine"]["weight"], torch.ones(2))
    assert loaded["observers"] == {}


def test_nothing_is_saved_past_the_target(checkpointer):
    saving = checkpointer(every_seconds=0.0)
    saving(RunStarted(params={}))
    saving(RunStopped(status="success"))
    saving(block(2))
    saving(RunInterrupted(completed_epochs=1))
    assert not saving.path.exists()
    assert saving.completed_epochs == 1


def test_checkpoint_is_written_at_block_starts_when_the_interval_has_passed(checkpointer, monkeypatch):
    clock = 0.0
    monkeypatch.setattr(checkpoint, "now", lambda: clock)
    saving = checkpointer(every_seconds=10.0)
    saving(RunStarted(time=0.0, params={}))
    saved = []
    for epoch, clock in enumerate((0.0, 9.0, 10.0, 15.0, 19.9, 20.0), 1):  # noqa: B007 - read by now()
        saving(block(epoch))
        saving(EvalEnded(epoch=epoch, quality={}))
        saved.append(load_checkpoint(saving.path)["completed_epochs"] if saving.path.exists() else None)
    assert saved == [None, None, 2, 2, 2, 5]


def test_checkpoint_does_not_depend_on_the_order_of_observers(checkpointer):
    events = [RunStarted(params={}), block(1), StepEnded(epoch=1, samples=1), RunInterrupted(completed_epochs=0)]
    states = []
    for order in itertools.permutations(range(2)):
        counter = StepCounter()
        saving = checkpointer(counter=counter)
        observers = [(counter, saving)[index] for index in order]
        for event in events:
            for observer in observers:
                observer(event)
        states.append(load_checkpoint(saving.path)["observers"])
    assert states == [{"counter": {"steps": 1}}] * 2


def test_only_the_first_rank_writes(checkpointer):
    saving = checkpointer(world=World(rank=1))
    saving.save()
    assert not saving.path.exists()


def test_temporary_files_of_a_killed_writer_are_removed(checkpointer):
    saving = checkpointer()
    saving.save()
    (saving.path.parent / ".checkpoint.pt.7.tmp").write_bytes(b"half")
    load_checkpoint(saving.path)
    assert [path.name for path in saving.path.parent.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize("content", [b"", b"x", b"PK\x03\x04"])
def test_damaged_checkpoint_raises_a_data_error(tmp_path, content):
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(DataError, match=r"checkpoint.pt cannot be read: delete it to start the run over"):
        load_checkpoint(tmp_path / "checkpoint.pt")


def test_each_flipped_bit_is_found_and_pytorch_reads_the_file(checkpointer):
    saving = checkpointer()
    saving.save()
    content = saving.path.read_bytes()
    assert torch.load(saving.path, weights_only=True)["completed_epochs"] == 0
    for bit in range(0, 8 * len(content), 61):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        saving.path.write_bytes(damaged)
        with pytest.raises(DataError):
            load_checkpoint(saving.path)


def test_target_is_saved_at_once_if_the_final_weights_are_kept(checkpointer):
    saving = checkpointer()
    saving.at_end = True
    saving(RunStopped(status="success"))
    assert load_checkpoint(saving.path)["exit_code"] == 0
