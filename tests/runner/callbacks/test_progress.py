"""What the progress observer prints: a line per evaluation stays on a terminal, and its bar takes one line."""

import io
import re

import pytest
from rich.console import Console

from timetrial.runner.callbacks.progress import ProgressBar
from timetrial.runner.training.events import BlockEnded, BlockStarted, EvalEnded, EvalStarted, RunStarted
from timetrial.runner.training.loop import TrainingPlan

PLAN = TrainingPlan(target={"hit_rate": 0.9}, first_eval_epoch=1, eval_every_epochs=1, max_epochs=100)


def follow(samples=1_000_000, **options):
    """Return what is printed of a run of three epochs."""
    console = Console(file=io.StringIO(), **options)
    show = ProgressBar(console, PLAN, train_size=1_000_000)
    show(RunStarted(time=0.0, params={}))
    for epoch in (1, 2, 3):
        show(BlockStarted(time=epoch, first_epoch=epoch, epochs=1))
        show(BlockEnded(time=epoch + 0.5, first_epoch=epoch, epochs=1, samples=samples, loss=1.0))
        show(EvalStarted(time=epoch + 0.5, epoch=epoch))
        show(EvalEnded(time=epoch + 0.6, epoch=epoch, quality={"hit_rate": epoch / 10}))
    show.close()
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_evaluations_stay_and_the_bar_fits_the_terminal(width):
    output = follow(force_terminal=True, width=width)
    for epoch in (1, 2, 3):
        assert f"epoch {epoch}/100  hit_rate 0.{epoch}000/0.9" in output
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    bars = [line for part in shown.split("\n") for line in part.split("\r") if "evaluating" in line]
    assert all(len(line.rstrip()) <= width for line in bars)


def test_without_a_terminal_there_is_a_line_per_evaluation():
    assert len(follow(force_terminal=False, width=200).splitlines()) == 3


def test_resumed_block_of_which_nothing_was_left_to_train_has_no_rate():
    assert "2,000,000/s" in follow()
    assert "/s" not in follow(samples=0)
