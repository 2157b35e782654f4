"""From log entries to a run: clock, status, quality, epochs; every inference is recorded."""

import json

import pytest

from timetrial.runner.results.parse.mllog import read_log
from timetrial.runner.results.parse.runs import read_run


def test_reads_plain_run(log, read):
    writer = log()("seed", 7)("global_batch_size", 1664)("run_start")
    writer("block_start", first_epoch_num=1, epoch_count=4).evaluate(4, 0.7).evaluate(8, 0.76).stop(after=0.0)
    run = read(writer.write(), round_="v0.7")
    assert (run.duration, run.success, run.epochs_to_converge) == (200.0, True, 8)
    assert (run.seed, run.global_batch_size, run.target) == (7, 1664, {"accuracy": 0.759})
    assert [evaluation.seconds for evaluation in run.evaluations] == [100.0, 200.0]
    assert run.last_quality == {"value": 0.76}
    assert run.inferred == ["the target is that of the rules of v0.7"]


@pytest.mark.parametrize(
    ("stop", "success"),
    [
        ({"metadata": {"status": "success"}}, True),
        ({"metadata": {"status": "SUCCESS"}}, True),
        ({"metadata": {"status": "aborted"}}, False),
        ({"metadata": {"status": "abort"}}, False),
        ({"metadata": {"status": "fail"}}, False),
        ({"metadata": {}, "value": {"success": True}}, True),
        ({"metadata": {}, "value": {"success": False}}, False),
        ({"metadata": {}, "value": {"status": "success"}}, True),
        ({"metadata": {}, "value": "success"}, True),
        ({"metadata": {"status": None}}, True),  # inferred from the quality, which was reached
        ({"metadata": {}}, True),
    ],
)
def test_reads_status_in_all_forms(log, read, stop, success):
    writer = log()("run_start").evaluate(4, 0.76)
    entry = {"key": "run_stop", "value": None, "time_ms": writer.seconds * 1000} | stop
    writer.lines.append(f":::MLLOG {json.dumps(entry)}")
    run = read(writer.write(), round_="v0.7")
    assert run.success is success
    is_inferred = any("inferred from the quality" in sentence for sentence in run.inferred)
    assert is_inferred == (
        "success" not in json.dumps(stop).lower() and "abort" not in str(stop) and "fail" not in str(stop)
    )


def test_run_without_status_below_target_failed(log, read):
    run = read(log()("run_start").evaluate(4, 0.7)("run_stop", after=1).write(), round_="v0.7")
    assert (run.success, run.epochs_to_converge, run.duration) == (False, None, 101.0)


def test_run_without_run_stop_is_censored_at_last_entry(log, read):
    run = read(log()("run_start").evaluate(4, 0.76).write(), round_="v0.7")
    assert (run.success, run.duration, run.observed) == (False, None, 100.0)
    assert any("no run_stop" in sentence for sentence in run.inferred)


def test_ignores_wrong_times_before_run_start(log, read):
    writer = log()
    writer.lines[0] = writer.lines[0].replace(str(round(writer.seconds * 1000)), "0")
    writer.seconds -= 4e8
    writer("init_start")
    writer.seconds += 4e8
    run = read(writer("run_start").evaluate(1, 0.76, after=50.0).stop(after=0.0).write(), round_="v0.7")
    assert run.duration == 50.0


def test_ignores_evaluation_after_run_stop(log, read):
    writer = log(benchmark="ssd")("run_start").evaluate(40, 0.231).stop().evaluate(50, 0.24)
    run = read(writer.write(), round_="v0.7")
    assert (run.last_quality, run.epochs_to_converge) == ({"value": 0.231}, 40)
    assert any("after run_stop" in sentence for sentence in run.inferred)


def test_finds_evaluation_logged_after_run_stop(log, read):
    run = read(log(benchmark="ssd")("run_start").stop(after=90).evaluate(50, 0.24, after=0.0).write(), round_="v0.7")
    assert (run.success, run.epochs_to_converge) == (True, 50)


def test_ignores_evaluation_before_run_start(log, read):
    writer = log().evaluate(3, 0.76)("run_start", after=5.0).evaluate(3, 0.3).evaluate(7, 0.76)
    run = read(writer.stop().write(), round_="v0.7")
    assert [evaluation.epoch for evaluation in run.evaluations] == [3, 7]
    assert any("before run_start" in sentence for sentence in run.inferred)


def test_sorts_lines_by_time(log, read):
    writer = log()("run_start").evaluate(4, 0.7).evaluate(8, 0.73).evaluate(12, 0.76).stop()
    head, start, *evaluations, stop = writer.lines
    run = read(writer.write("\n".join([head, *reversed(evaluations), stop, start]) + "\n"), round_="v0.7")
    assert [evaluation.epoch for evaluation in run.evaluations] == [4, 8, 12]
    assert (run.epochs_to_converge, run.duration) == (12, 301.0)


@pytest.mark.parametrize(
    ("benchmark", "value", "quality"),
    [
        ("resnet", 0.76, {"value": 0.76}),
        ("resnet", 76.0, {"value": 0.76}),
        ("resnet", "0.76", {"value": 0.76}),
        ("resnet", "76.0%", {"value": 0.76}),
        ("resnet", [0.76], {"value": 0.76}),
        ("resnet", "[0.76]", {"value": 0.76}),
        ("resnet", {"value": 0.76}, {"value": 0.76}),
        ("resnet", {"accuracy": {"top1": 0.76}}, {"top1": 0.76}),
        ("maskrcnn", {"BBOX": 0.38, "SEGM": 0.34}, {"BBOX": 0.38, "SEGM": 0.34}),
        ("maskrcnn", {"accuracy": {"BBOX": 0.38, "SEGM": 0.34}}, {"BBOX": 0.38, "SEGM": 0.34}),
        ("maskrcnn", {"bbox": {"AP": 0.38}, "segm": {"AP": 0.34}}, {"BBOX": 0.38, "SEGM": 0.34}),
        ("maskrcnn", [0.38, 0.34], {"BBOX": 0.38, "SEGM": 0.34}),
    ],
)
def test_reads_quality_in_all_forms(log, read, benchmark, value, quality):
    run = read(log(benchmark=benchmark)("run_start").evaluate(1, value).stop().write(), round_="v0.7")
    assert list(run.last_quality.values()) == pytest.approx(list(quality.values()))
    assert run.epochs_to_converge == 1


def test_early_bleu_below_one_is_percent(log, read):
    writer = log(dialect="v0.6", benchmark="gnmt")("run_start").evaluate(1, 0.67).evaluate(2, 24.1).stop()
    run = read(writer.write())
    assert [evaluation.quality["value"] for evaluation in run.evaluations] == pytest.approx([0.0067, 0.241])
    assert (run.epochs_to_converge, run.round) == (2, "v0.6")
    single = read(log("b", dialect="v0.6", benchmark="gnmt")("run_start").evaluate(1, 0.67).stop("aborted").write())
    assert single.last_quality["value"] == pytest.approx(0.0067)
    assert any("interpreted as percent" in sentence for sentence in single.inferred)


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


def test_duplicate_lines_change_nothing(log, read):
    writer = log(dialect="v0.5", benchmark="resnet")("run_start").evaluate(3, 0.7).evaluate(7, 0.75).stop()
    plain = read(writer.write())
    doubled = read(writer.write("\n".join(f"{line}\nINFO:mlperf_compliance:{line}" for line in writer.lines)))
    assert (doubled.duration, doubled.epochs_to_converge, len(doubled.evaluations)) == (202.0 - 1.0 + 0.0, 8, 2)
    assert doubled.duration == plain.duration
    assert any("duplicates" in sentence for sentence in doubled.inferred)


def test_evaluations_repeated_by_ranks_count_once(log, read):
    writer = log()("run_start")
    for label, quality in ((4, 0.7), (8, 0.76)):
        for rank in range(3):
            writer.evaluate(label, quality, after=100.0 if rank == 0 else 0.001)
    run = read(writer.stop().write(), round_="v0.7")
    assert [evaluation.epoch for evaluation in run.evaluations] == [4, 8]


def test_ssd_is_retinanet_since_v20(log, read):
    path = log(benchmark="ssd")("run_start").evaluate(4, 0.3).stop("aborted").write()
    assert read(path, round_="v1.1").target == {"mAP": 0.23}
    assert read(path, round_="v2.0").target == {"mAP": 0.34}


def test_ignores_train_samples_that_are_iterations(log, read):
    path = log(benchmark="transformer")("train_samples", 1300)("run_start").evaluate(4, 0.26).stop().write()
    run = read(path, round_="v0.7")
    assert run.train_samples is None
    assert any("iterations" in sentence for sentence in run.inferred)


def test_transformer_batch_size_in_tokens(log, read):
    path = log(benchmark="transformer")("global_batch_size", 81920)("run_start").evaluate(4, 0.26).stop().write()
    assert read(path, round_="v0.7").batch_unit == "tokens"


def test_train_seconds_exclude_evaluation(log, read):
    writer = log()("run_start")
    for epoch in (1, 2):
        writer("eval_start", after=90.0, epoch_num=epoch).evaluate(epoch, 0.75 + epoch / 100, after=10.0)
        writer("eval_stop", epoch_num=epoch)
    run = read(writer.stop(after=0.0).write(), round_="v0.7")
    assert (run.duration, run.eval_seconds, run.train_seconds) == (200.0, 20.0, 180.0)
    assert run.seconds_per_epoch == 200.0 or run.epochs_to_converge == 1


def test_file_without_entries_is_no_run(tmp_path):
    (tmp_path / "log").write_text("nothing here\n")
    assert read_run(read_log(tmp_path / "log")) is None
