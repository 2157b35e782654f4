"""From log entries to a run: clock, status, quality, epochs; every inference is recorded."""

import json

import pytest

from timetrial.runner.results.parse.mllog import read_log
from timetrial.runner.results.parse.run_reader import read_run


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
    assert [evaluation.progress for evaluation in run.evaluations] == [3, 7]
    assert any("before run_start" in sentence for sentence in run.inferred)


def test_sorts_lines_by_time(log, read):
    writer = log()("run_start").evaluate(4, 0.7).evaluate(8, 0.73).evaluate(12, 0.76).stop()
    head, start, *evaluations, stop = writer.lines
    run = read(writer.write("\n".join([head, *reversed(evaluations), stop, start]) + "\n"), round_="v0.7")
    assert [evaluation.progress for evaluation in run.evaluations] == [4, 8, 12]
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
    assert [evaluation.progress for evaluation in run.evaluations] == [4, 8]


def test_ssd_is_retinanet_since_v20(log, read):
    path = log(benchmark="ssd")("run_start").evaluate(4, 0.3).stop("aborted").write()
    assert read(path, round_="v1.1").target == {"mAP": 0.23}
    assert read(path, round_="v2.0").target == {"mAP": 0.34}


def test_logged_target_has_the_metric_of_the_rules(log, read):
    """Flux logs a target of 0.586, of which less is better."""
    writer = log(benchmark="flux1")("target_accuracy", 0.586)("run_start")
    for samples, loss in ((262_144, 0.59), (524_288, 0.585)):
        writer("eval_accuracy", loss, 10.0, samples_count=samples)
    run = read(writer("run_stop", after=1.0, samples_count=524_288).write())
    assert (run.target, run.success, run.samples_to_converge) == ({"loss": 0.586}, True, 524_288)
    loss = log("a", benchmark="llama31_8b")("target_accuracy", 3.3)("run_start")("eval_accuracy", 3.2, samples_count=8)
    assert read(loss.stop().write()).target == {"log_perplexity": 3.3}
    percent = log("b", benchmark="resnet")("quality_target", 75.9)("run_start").evaluate(1, 75.95).stop().write()
    assert read(percent).target == {"accuracy": pytest.approx(0.759)}


@pytest.mark.parametrize(("metadata", "epochs"), [({"lower_is_better": True}, 8), ({}, 4)])
def test_logged_direction_of_the_quality(log, read, metadata, epochs):
    """A loss of an own benchmark: 1.62 misses its target of 1.5, and neither is a percentage."""
    writer = log(benchmark="gpt")("quality_target", 1.5, **metadata)("run_start")
    writer.evaluate(4, 1.62).evaluate(8, 1.49).stop(after=0.0, status=None)
    run = read(writer.write(), round_="v0.7")
    assert (run.success, run.epochs_to_converge) == (True, epochs)
    if metadata:
        assert (run.target, run.last_quality) == ({"value": 1.5}, {"value": 1.49})


def test_samples_to_converge(log, read):
    """LoRA: labels are samples, a loss above 1 is no percentage, and the first loss at the target counts."""
    writer = log(benchmark="llama2_70b_lora")("global_batch_size", 8)("run_start")
    for samples, loss in ((384, 1.31), (768, 0.9251), (1152, 0.9249), (1536, 0.91)):
        writer("eval_accuracy", loss, 50.0, samples_count=samples)
    run = read(writer.stop(after=4.0).write(), round_="v5.0")
    assert (run.samples_to_converge, run.epochs_to_converge, run.progress_to_converge) == (1152, None, 1152)
    assert (run.progress_unit, run.eval_spacing, run.epoch_offset) == ("samples", 384, 0)
    assert run.pace == pytest.approx(204 / 1152)
    assert run.last_quality == {"value": 0.91}


@pytest.fixture
def diffusion(log):
    """Stable Diffusion: checkpoints are evaluated after the clock has stopped, in any order, metric by metric."""

    def write(qualities, stop_step, status="success"):
        writer = log(benchmark="stable_diffusion")("global_batch_size", 256)("run_start")
        started = writer.seconds
        writer.seconds += 1000.0
        for step, (fid, clip) in qualities.items():
            writer("eval_start", after=10.0, samples_count=256 * step)
            for metric, value in (("FID", fid), ("CLIP", clip)):
                writer("eval_accuracy", value, 100.0, samples_count=256 * step, metric=metric)
            writer("eval_stop", samples_count=256 * step)
        writer.seconds = started + 600.0
        return writer("run_stop", status=status, step_num=stop_step).write()

    return write


@pytest.mark.parametrize(
    ("qualities", "stop_step", "samples"),
    [
        ({4000: (116.2, 0.135), 6000: (82.4, 0.173)}, 6000, 1_536_000),
        ({8000: (80.0, 0.17), 6000: (95.0, 0.16), 4000: (89.0, 0.14)}, 8000, 2_048_000),
        # The run stopped later than its first good checkpoint: time and samples are those of run_stop.
        ({8000: (80.0, 0.17), 6000: (88.0, 0.16)}, 8000, 2_048_000),
    ],
)
def test_stable_diffusion_needs_both_metrics(read, diffusion, qualities, stop_step, samples):
    run = read(diffusion(qualities, stop_step), round_="v5.0")
    assert (run.duration, run.success, run.samples_to_converge) == (600.0, True, samples)
    assert [entry.progress for entry in run.evaluations] == sorted(256 * step for step in qualities)
    assert list(run.last_quality) == ["FID", "CLIP"]
    assert (run.eval_seconds, run.train_seconds) == (0.0, 600.0)


def test_first_value_of_a_metric_counts(log, read):
    """Some logs repeat the last evaluation, rounded and with the time of run_stop."""
    writer = log(benchmark="stable_diffusion")("run_start")
    for fid, clip in ((87.31119719415199, 0.18498794734477997), (87.31119719415199, 0.18498795)):
        for metric, value in (("CLIP", clip), ("FID", fid)):
            writer("eval_accuracy", value, 100.0, samples_count=2_560_000, metric=metric)
    (evaluation,) = read(writer.stop(after=0.0).write(), round_="v5.0").evaluations
    assert evaluation.quality == {"FID": 87.31119719415199, "CLIP": 0.18498794734477997}
    assert evaluation.seconds == 200.0


def test_stable_diffusion_without_both_metrics_failed(read, diffusion):
    run = read(diffusion({4000: (646.0, 0.16), 6000: (80.0, 0.149)}, 6000, status=None), round_="v5.0")
    assert (run.success, run.samples_to_converge, run.progress_unit) == (False, None, "samples")


def test_checkpoint_is_evaluated_after_run_stop_in_the_file(log, read):
    writer = log(benchmark="stable_diffusion")("global_batch_size", 256)("run_start")(
        "run_stop", after=60, step_num=4000
    )
    for step in (4000, 6000):
        writer("eval_accuracy", 80.0, 10.0, step_num=step, metric="FID")
        writer("eval_accuracy", 0.16, 10.0, step_num=step, metric="CLIP")
    run = read(writer.write(), round_="v3.1")
    assert (run.success, run.samples_to_converge, run.duration) == (True, 1_024_000, 60.0)
    assert "1 evaluations are after run_stop" in run.inferred


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
    assert (run.epochs_to_converge, run.pace, run.train_pace) == (1, 200.0, 180.0)


def test_file_without_entries_is_no_run(tmp_path):
    (tmp_path / "log").write_text("nothing here\n")
    assert read_run(read_log(tmp_path / "log")) is None
