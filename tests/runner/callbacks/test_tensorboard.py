"""TensorBoard event files, read back by TensorBoard itself."""

import pytest

from timetrial.runner.callbacks.tensorboard import TensorBoard
from timetrial.runner.training.events import BlockEnded, BlockStarted, EvalEnded, EvalStarted

pytestmark = pytest.mark.integration  # importing TensorBoard may import TensorFlow

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def test_curves_by_epoch(tmp_path):
    board = TensorBoard(tmp_path)
    for epoch in (2, 4):
        start = 100.0 * epoch
        board(BlockStarted(time=start, first_epoch=epoch - 1, epochs=2))
        board(BlockEnded(time=start + 10, first_epoch=epoch - 1, epochs=2, samples=50, loss=1 / epoch))
        board(EvalStarted(time=start + 10, epoch=epoch))
        board(EvalEnded(time=start + 13, epoch=epoch, quality={"BBOX": 0.1 * epoch, "SEGM": 0.05 * epoch}))
    board.close()
    events = accumulators.EventAccumulator(str(tmp_path)).Reload()
    points = {
        name: [(event.wall_time, event.step, pytest.approx(event.value)) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }
    assert points == {
        "train/loss": [(210.0, 2, 0.5), (410.0, 4, 0.25)],
        "train/samples_per_second": [(210.0, 2, 5.0), (410.0, 4, 5.0)],
        "quality/BBOX": [(213.0, 2, 0.2), (413.0, 4, 0.4)],
        "quality/SEGM": [(213.0, 2, 0.1), (413.0, 4, 0.2)],
        "evaluation/seconds": [(213.0, 2, 3.0), (413.0, 4, 3.0)],
    }
