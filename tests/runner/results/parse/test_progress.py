"""Labels of evaluations: epochs or samples, and epochs counted from 0 or 1."""

import pytest

from timetrial.runner.results.parse.mllog import LogEntry
from timetrial.runner.results.parse.progress import progress_unit, read_label


def epochs(read, writer):
    run = read(writer.stop().write(), round_="v0.7")
    return run.epochs_to_converge, run.epoch_offset


def test_epoch_labels_from_zero(log, read):
    """Blocks of 4 epochs from 0 are evaluated as 3 and 7, so label 7 is epoch 8."""
    writer = log()("run_start")
    writer("block_start", first_epoch_num=0, epoch_count=4).evaluate(3, 0.7)
    writer("block_start", first_epoch_num=4, epoch_count=4).evaluate(7, 0.76)
    assert epochs(read, writer) == (8, 1)


def test_blocks_from_zero_with_evaluations_from_one(log, read):
    writer = log(benchmark="ssd")("run_start")
    writer("block_start", first_epoch_num=0, epoch_count=5).evaluate(5, 0.2)
    writer("block_start", first_epoch_num=5, epoch_count=5).evaluate(10, 0.24)
    assert epochs(read, writer) == (10, 0)


def test_single_block_from_zero(log, read):
    writer = log()("run_start")("block_start", first_epoch_num=0, epoch_count=4).evaluate(3, 0.76)
    assert epochs(read, writer) == (4, 1)


def test_evaluation_zero_after_start_of_next_block(log, read):
    writer = log()("run_start")("block_start", first_epoch_num=0, epoch_count=1)
    writer("block_start", first_epoch_num=1, epoch_count=1).evaluate(0, 0.7)
    writer("block_start", first_epoch_num=2, epoch_count=1).evaluate(1, 0.76)
    assert epochs(read, writer) == (2, 1)


def test_zero_based_labels_during_next_block(log, read):
    writer = log()("run_start")("block_start", first_epoch_num=0, epoch_count=4)
    writer("block_start", first_epoch_num=4, epoch_count=4).evaluate(3, 0.7)
    writer("block_start", first_epoch_num=8, epoch_count=4).evaluate(7, 0.76)
    assert epochs(read, writer) == (8, 1)


def test_evaluation_of_untrained_model_causes_no_offset(log, read):
    writer = log()("run_start")("block_start", first_epoch_num=1, epoch_count=44)
    writer.evaluate(0, 0.001).evaluate(40, 0.7).evaluate(44, 0.76)
    assert epochs(read, writer) == (44, 0)


def test_epoch_starts_from_zero_without_blocks(log, read):
    writer = log(benchmark="ssd")("run_start")("epoch_start", epoch_num=0).evaluate(1, 0.2)
    writer("epoch_start", epoch_num=1).evaluate(2, 0.24)
    assert epochs(read, writer) == (2, 0)


def test_repeated_labels_are_replaced_by_eval_start(log, read):
    writer = log(dialect="v0.6", benchmark="transformer")("run_start")
    for label, (eval_label, bleu) in enumerate([(1, 20.0), (1, 23.0), (2, 25.1)], start=1):
        writer("eval_start", epoch_num=label).evaluate(eval_label, bleu)
    run = read(writer.stop().write())
    assert run.epochs_to_converge == 3
    assert any("eval_start" in sentence for sentence in run.inferred)


def test_evaluations_that_end_out_of_order_keep_their_labels(log, read):
    """Evaluations beside the training: that of epoch 20 ends before that of 15, and 70 epochs reach the target."""
    writer = log(dialect="v0.7", benchmark="ssd")("run_start")
    labels = [10, 20, 15, 30, 40, 50, 60, 65, 70]
    for label in sorted(labels):
        writer("eval_start", epoch_num=label)
    for label in labels:
        writer.evaluate(label, 0.24 if label == 70 else 0.1)
    run = read(writer.stop().write())
    assert run.epochs_to_converge == 70
    assert [entry.progress for entry in run.evaluations] == labels


@pytest.mark.parametrize(
    ("labels", "trained_first", "expected"),
    [([0, 1, 2], True, (3, 1)), ([-1, 0, 1], True, (3, 2)), ([-1, 0, 1], False, (2, 1))],
)
def test_v05_labels_start_at_zero_or_minus_one(log, read, labels, trained_first, expected):
    writer = log(dialect="v0.5", benchmark="transformer")("run_start")
    for number, label in enumerate(labels):
        if trained_first or number:
            writer("train_epoch", number if trained_first else number - 1)
        writer.evaluate(label, 25.1 if number == 2 else 20.0)
    run = read(writer("eval_target", 25.0).stop().write())
    assert (run.epochs_to_converge, run.epoch_offset) == expected


def test_evaluation_overlaps_with_the_next_epoch(log, read):
    """RetinaNet trains epochs from 0 and evaluates them from 1, while the next one is already training."""
    writer = log(benchmark="retinanet")("run_start")("epoch_start", epoch_num=0, after=1.0)
    for epoch, quality in ((1, 0.24), (2, 0.3), (3, 0.33), (4, 0.344)):
        writer("epoch_stop", epoch_num=epoch - 1, after=600.0)("eval_start", epoch_num=epoch)
        writer("epoch_start", epoch_num=epoch, after=80.0).evaluate(epoch, quality, after=5.0)
        writer("eval_stop", epoch_num=epoch)
    assert epochs(read, writer) == (4, 0)


def test_first_evaluation_after_single_epochs_from_zero(log, read):
    """Epochs 0 to 3 are trained, then the evaluation labelled 3 meets the target: four epochs."""
    writer = log()("run_start")
    for epoch in range(4):
        writer("epoch_start", epoch_num=epoch, after=50.0)
    assert epochs(read, writer("eval_start", epoch_num=3).evaluate(3, 0.76)) == (4, 1)


def test_eval_start_is_logged_before_its_epochs(log, read):
    """SSD of v0.7 logs eval_start together with block_start."""
    writer = log(benchmark="ssd")("run_start")
    for first, quality in ((0, 0.1), (5, 0.24)):
        writer("block_start", first_epoch_num=first, epoch_count=5)("eval_start", epoch_num=first + 5)
        writer.evaluate(first + 5, quality)
    assert epochs(read, writer) == (10, 0)


def entry(key="eval_accuracy", **metadata):
    return LogEntry(key, 0.0, 0.5, metadata, "v0.7")


@pytest.mark.parametrize(
    ("metadata", "unit", "label"),
    [
        ({"samples_count": 3072}, "samples", 3072),
        ({"samples_count": 3072, "epoch_num": 1}, "samples", 3072),
        ({"samples_count": 1_024_000, "step_num": 500}, "samples", 1_024_000),
        ({"step_num": 500}, "samples", 1_024_000),
        ({"epoch_num": 149_839}, "samples", 149_839),  # BERT
        ({"epoch_num": 1_245_708_288}, "samples", 1_245_708_288),  # GPT-3, in tokens
        ({"epoch_num": 9_980}, "epochs", 9_980),  # UNet3D
        ({"epoch_num": 0.85}, "epochs", 0.85),  # RGAT
        ({"epoch_num": 4, "step_num": 500}, "epochs", 4),
        ({"epoch_num": None}, "epochs", None),
        ({}, "epochs", None),
    ],
)
def test_unit_and_label(metadata, unit, label):
    assert progress_unit([entry(), entry(**metadata)]) == unit
    assert read_label(entry(**metadata), unit, 2048) == label


def test_steps_without_batch_size_are_unknown():
    assert read_label(entry(step_num=500), "samples", None) is None


def test_blocks_tell_the_unit_of_a_run_without_evaluations():
    assert progress_unit([entry("block_start", samples_count=0)]) == "samples"
    assert progress_unit([entry("block_start", first_epoch_num=0)]) == "epochs"


@pytest.mark.parametrize(
    ("labels", "block", "spacing"),
    [([33, 43, 49, 54, 59], 5, 5.5), ([8], 4, 4), ([8], None, None), ([], 4, 4), ([0.05, 0.1, 0.15], 1, 0.05)],
)
def test_eval_spacing(log, read, labels, block, spacing):
    writer = log()("run_start")("block_start", first_epoch_num=1, **({"epoch_count": block} if block else {}))
    for label in labels:
        writer.evaluate(label, 0.1)
    assert read(writer.stop("aborted").write()).eval_spacing == pytest.approx(spacing)


def test_eval_spacing_of_one_evaluation_in_samples(log, read):
    writer = log(benchmark="flux1")("evaluation_frequency", 262_144)("run_start")
    run = read(writer("eval_accuracy", 0.6, samples_count=262_144).stop("aborted").write())
    assert (run.progress_unit, run.eval_spacing) == ("samples", 262_144)
