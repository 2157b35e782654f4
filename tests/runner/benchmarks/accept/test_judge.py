"""Lines of figures with an injected fault: which line says so."""

import dataclasses

import numpy as np
import pytest

from timetrial.runner.benchmarks.accept import judge
from timetrial.runner.benchmarks.accept.expected import disk_figure, figures_of, together_figure
from timetrial.runner.benchmarks.accept.figures import (
    DeviceResult,
    Difference,
    Figure,
    Host,
    Problem,
    Rates,
    Replay,
    State,
    Sustained,
)
from timetrial.runner.benchmarks.peak_rows import Row
from timetrial.runner.core.errors import Exit
from timetrial.runner.hardware.readings import LinkReading, PcieLink

ROWS = (
    Row("gemm", "8192 x 8192 x 8192", "bf16", "bf16", tflops=711.0, gb_s=1.0),
    Row("gemm", "8192 x 8192 x 8192", "fp32", "tf32", tflops=372.0, gb_s=1.0),
    Row("copy", "1024 MiB", "fp32", gb_s=2900.0),
    Row("transfer", "256 MiB, host to device, pinned", "fp32", gb_s=55.0),
    Row("transfer", "256 MiB, host to device, pageable", "fp32", gb_s=8.0),
)
LINKS = LinkReading(pcie=PcieLink(5, 16))
STEADY = tuple(1000.0 + step % 3 for step in range(12))
TRACE = ({"weight": 1, "bias": 2}, {"weight": 3, "bias": 4})
LOAD = Sustained("LM", "samples/s", 300.0, STEADY, {}, (1700.0, 1750.0, 1980.0), 68.0, 640.0, 0.2)


def h100(rows=ROWS, rates=()):
    return {figure.name: figure for figure in figures_of("GPU 0", DeviceResult(rows, LINKS, rates), "h100")}


def only(lines):
    (line,) = lines
    return line


def test_peaks_of_a_healthy_gpu_pass_beside_the_data_sheet():
    lines = [judge.judge_figure(figure) for figure in h100().values()]
    assert {line.state for line in lines} == {State.PASS}
    texts = {line.part: line.message for line in lines}
    assert texts["matrix product bf16"] == "711 TFLOP/s, 72% of 990 (data sheet)"
    assert texts["memory copy"] == "2,900 GB/s, 87% of 3,350 (data sheet)"
    assert texts["host to device"] == "55 GB/s, 87% of 63 (the PCIe link)"


def test_a_t4_at_its_power_cap_passes():
    rows = (Row("gemm", "4096 x 4096 x 4096", "fp16", "fp16", tflops=24.0, gb_s=1.0),)
    (figure,) = figures_of("GPU 0", DeviceResult(rows), "t4")
    line = judge.judge_figure(figure)
    assert (line.state, line.message) == (State.PASS, "24 TFLOP/s, 100% of 24 (at its power cap)")


@pytest.mark.parametrize(("factor", "state"), [(0.7, State.WARN), (0.5, State.FAIL), (1.6, State.WARN)])
def test_a_gpu_at_another_clock_or_beyond_its_data_sheet_does_not_pass(factor, state):
    figure = h100()["matrix product bf16"]
    line = judge.judge_figure(dataclasses.replace(figure, values=(figure.value * factor,)))
    assert line.state == state
    assert line.remedy
    assert ("impossible" in line.message) == (factor > 1)


def test_a_link_of_a_quarter_of_its_width_fails():
    rows = [dataclasses.replace(row, gb_s=14.0) if "pinned" in row.shape else row for row in ROWS]
    assert judge.judge_figure(h100(rows)["host to device"]).state == State.FAIL


@pytest.mark.parametrize(
    ("rate", "source", "state"),
    [(990, "H100 (2026-11)", State.PASS), (900, "H100 (2026-11)", State.WARN), (500, "H100 (2026-11)", State.FAIL),
     (500, "H100 (older code, 2026-11)", State.WARN), (500, "", State.NOT_TESTED)],
)  # fmt: skip
def test_training_is_judged_by_the_reference_throughput(rate, source, state):
    rates = Rates("LM", "tokens/s", (float(rate),), 8, 1000.0 if source else None, source)
    line = judge.judge_figure(h100(rates=(rates,))["training LM"])
    assert line.state == state
    assert line.message


@pytest.mark.parametrize(
    ("blocks", "state"),
    [((984, 1053, 1085, 1161), State.NOT_TESTED), ((1070, 1071, 1072, 1071), State.WARN), ((1070,), State.WARN),
     ((880, 953, 985, 1061), State.FAIL)],
)  # fmt: skip
def test_a_low_throughput_within_the_noise_of_its_blocks_is_not_tested(blocks, state):
    """The first case is of a healthy H200 (GNMT, thousands of tokens/s)."""
    line = judge.judge_figure(Figure("training LM", "GPU 1", "tokens/s", blocks, 1194.0, "H200 (2026-11)"))
    assert line.state == state
    assert ("within the noise of its blocks" in line.message) == (state == State.NOT_TESTED)
    assert (line.remedy == "Raise --minutes.") == (state == State.NOT_TESTED)


def node(speeds, noise=0.002, seed=1):
    rng = np.random.default_rng(seed)
    return [
        Figure("training LM", f"GPU {gpu}", "tokens/s", tuple(1000 * speed * np.exp(noise * rng.standard_normal(8))))
        for gpu, speed in enumerate(speeds)
    ]


def test_a_slow_gpu_is_named_beside_the_median_of_the_node():
    line = only(judge.judge_stragglers(node([1.0, 1.0, 0.85, 1.0]), {}))
    assert (line.state, line.device) == (State.FAIL, "GPU 2")
    assert "0.85" in line.message


def test_a_gpu_that_may_be_slower_by_less_is_a_warning():
    assert only(judge.judge_stragglers(node([1.0, 0.93, 1.0], noise=0.015), {})).state == State.WARN


def test_a_gpu_that_noise_explains_is_not_tested():
    line = only(judge.judge_stragglers(node([1.0, 0.93, 1.0], noise=0.06), {}))
    assert "within the noise of the blocks" in line.message
    assert (line.state, line.remedy) == (State.NOT_TESTED, "Raise --minutes.")


def test_equal_gpus_have_no_straggler_in_95_of_100_nodes():
    states = [only(judge.judge_stragglers(node([1.0] * 8, noise=0.06, seed=seed), {})).state for seed in range(200)]
    assert states.count(State.FAIL) + states.count(State.WARN) <= 10


def test_blocks_of_different_batches_are_compared_with_the_same_blocks_of_another_gpu():
    work = np.exp(0.2 * np.random.default_rng(1).standard_normal(8))
    slow, *others = (dataclasses.replace(each, values=tuple(work * each.values)) for each in node([0.9, 1.0, 1.0]))
    assert only(judge.judge_stragglers([slow, *others], {})).state == State.FAIL
    assert only(judge.judge_stragglers(others, {})).state == State.PASS


def test_a_single_gpu_has_no_neighbors():
    assert list(judge.judge_stragglers(node([1.0]), {})) == []


def test_gpus_of_different_models_are_no_stragglers_beside_each_other():
    models = {"GPU 0": "T4", "GPU 1": "A100", "GPU 2": "A100"}
    line = only(judge.judge_stragglers(node([0.1, 1.0, 0.999]), models))
    assert (line.state, line.device) == (State.PASS, "GPU 2")


def test_a_steady_load_passes_with_its_sensors():
    line = only(judge.judge_sustained("GPU 0", LOAD))
    assert line.state == State.PASS
    for text in ("5.0 min of LM", "100% of", "1700 to 1980 MHz", "640 W", "68 degrees C", "power cap 20%"):
        assert text in line.message


@pytest.mark.parametrize(
    ("fault", "part", "state"),
    [
        ({"values": (1000.0,) * 6 + (800.0,) * 6}, "sustained load", State.FAIL),
        ({"values": (1000.0,) * 6 + (920.0,) * 6}, "sustained load", State.WARN),
        ({"values": (1000.0,) * 3}, "sustained load", State.NOT_TESTED),
        ({"flags": {"throttled": "clocks were lowered (thermal)"}}, "throttled", State.FAIL),
        ({"flags": {"ECC errors": "2 uncorrected during the run"}}, "ECC errors", State.FAIL),
        ({"flags": {"ECC errors": "2 corrected during the run"}}, "ECC errors", State.WARN),
        ({"flags": {"busy host": "other processes used 60% of the run's 2 processors"}}, "busy host", State.WARN),
        ({"flags": {"other processes": "other processes used a GPU"}}, "other processes", State.WARN),
    ],
)
def test_what_happens_under_load_is_found(fault, part, state):
    lines = {line.part: line for line in judge.judge_sustained("GPU 0", dataclasses.replace(LOAD, **fault))}
    assert lines[part].state == state
    assert lines[part].remedy


def test_a_load_that_other_processes_can_have_slowed_down_is_a_warning():
    slower = dataclasses.replace(LOAD, values=(1000.0,) * 6 + (800.0,) * 6, flags={"busy host": "other processes"})
    assert [line.state for line in judge.judge_sustained("GPU 0", slower)] == [State.WARN, State.WARN]


def replays(**traces):
    return {device: [Replay("LM", 1, 3, trace, None)] for device, trace in traces.items()}


def test_a_difference_between_replays_of_a_gpu_fails_with_step_and_tensor():
    found = {"GPU 0": [Replay("LM", 1, 2, TRACE, Difference(2, 7, "layer.weight"))]}
    line = only(judge.judge_replays(found, are_equal=True))
    assert line.state == State.FAIL
    assert "repeat 2 differs from the first in step 7, layer.weight" in line.message


def test_the_gpu_that_differs_from_two_others_is_named():
    odd = (TRACE[0], {"weight": 3, "bias": 5})
    lines = list(judge.judge_replays(replays(a=TRACE, b=odd, c=TRACE), are_equal=True))
    failed = only(line for line in lines if line.state == State.FAIL)
    assert failed.device == "b"
    assert "differs from a in step 2, bias" in failed.message
    assert "Exclude this GPU" in failed.remedy


def test_of_two_gpus_that_differ_neither_is_accused():
    odd = ({"weight": 9, "bias": 2}, TRACE[1])
    failed = only(line for line in judge.judge_replays(replays(a=TRACE, b=odd), are_equal=True) if line.state == "FAIL")
    assert "step 1, weight" in failed.message
    assert "third GPU" in failed.remedy
    assert all(line.state == State.PASS for line in judge.judge_replays(replays(a=TRACE, b=odd), are_equal=False))


def test_replays_with_other_micro_batches_are_not_comparable():
    odd = ({"weight": 9, "bias": 2}, TRACE[1])
    found = {"a": [Replay("LM", 1, 3, TRACE, None)], "b": [Replay("LM", 2, 3, odd, None)]}
    assert {line.device: line.state for line in judge.judge_replays(found, are_equal=True)} == {
        "a": "PASS",
        "b": "PASS",
    }


@pytest.mark.parametrize(
    ("usable", "num_gpus", "state"),
    [(2, 1, State.FAIL), (6, 1, State.WARN), (8, 1, State.PASS), (16, 8, State.FAIL), (2, 0, State.WARN)],
)
def test_a_host_with_few_cores_is_found(usable, num_gpus, state):
    line = only(judge.judge_host(Host(usable, 64), num_gpus))
    assert (line.part, line.state) == ("cores", state)


@pytest.mark.parametrize(("mb_s", "state"), [(5.0, State.FAIL), (60.0, State.WARN), (900.0, State.PASS)])
def test_a_slow_disk_is_found(mb_s, state):
    line = judge.judge_figure(disk_figure([mb_s] * 3, 0, "cpu"))
    assert (line.part, line.state) == ("disk read", state)
    assert "1,000 images/s of 110 KB" in line.message


def test_eight_h100s_need_more_of_a_disk_than_one():
    assert disk_figure([1.0], 8, "h100").expected == 8 * disk_figure([1.0], 1, "h100").expected > 5000


@pytest.mark.parametrize(
    ("direct", "through_host", "is_ring", "peer_to_peer", "state"),
    [
        (296.0, 27.3, True, True, State.PASS),
        (60.0, 27.3, True, True, State.WARN),
        (30.0, 27.3, True, True, State.FAIL),
        (27.3, 27.3, True, False, State.FAIL),
        (22.0, 18.0, False, True, State.PASS),
        (9.0, 18.0, False, True, State.WARN),
        (0.5, None, False, True, State.PASS),
    ],
)
def test_a_missing_peer_link_is_found(direct, through_host, is_ring, peer_to_peer, state):
    line = judge.judge_all_reduce("all GPUs", direct, through_host, is_ring=is_ring, peer_to_peer=peer_to_peer)
    assert (line.part, line.state) == ("all-reduce", state)


def test_gpus_that_slow_each_other_down_are_found():
    apart = node([1.0, 1.0], noise=0.0)
    assert judge.judge_figure(together_figure("LM", "tokens/s", 1900.0, apart)).state == State.PASS
    assert judge.judge_figure(together_figure("LM", "tokens/s", 1300.0, apart)).state == State.FAIL


def test_another_gpu_than_was_bought_fails():
    assert judge.judge_model("GPU 0", "h100", "h100") == judge.judge_model("GPU 0", None, "a100") == []
    line = only(judge.judge_model("GPU 3", "h100", "a100"))
    assert (line.device, line.message) == ("GPU 3", "h100 was expected and a100 was found")


def test_fewer_or_smaller_gpus_than_were_bought_fail():
    assert judge.judge_number(8, 8) == judge.judge_number(None, 7) == []
    assert only(judge.judge_number(8, 7)).message == "8 were expected and 7 found"
    assert judge.judge_memory("GPU 0", 16, 14.6) == judge.judge_memory("GPU 0", None, 1.0) == []
    assert only(judge.judge_memory("GPU 0", 32, 15.8)).state == State.FAIL


def test_a_gpu_of_which_nothing_could_be_measured_fails():
    line = only(judge.judge_coverage(["GPU 0", "GPU 1"], node([1.0])))
    assert (line.state, line.device) == (State.FAIL, "GPU 1")


@pytest.mark.parametrize(("seconds", "state"), [(15.0, State.WARN), (300.0, State.FAIL)])
def test_a_sample_with_lowered_clocks_in_a_short_load_is_a_warning(seconds, state):
    load = dataclasses.replace(LOAD, seconds=seconds, flags={"throttled": "clocks were lowered (hardware)"})
    assert [line.state for line in judge.judge_sustained("GPU 0", load) if line.part == "throttled"] == [state]


@pytest.mark.parametrize(
    ("code", "state"),
    [(Exit.DEVICE, State.NOT_TESTED), (Exit.OUT_OF_MEMORY, State.NOT_TESTED), (Exit.HARDWARE, State.FAIL)],
)
def test_a_part_that_ends_early_fails_unless_the_machine_cannot_do_it(code, state):
    assert judge.judge_problem("GPU 0", Problem("peaks", code, "a sentence.")).state == state


def test_the_word_for_the_node_is_its_worst_line():
    def lines(*states):
        return [dataclasses.replace(judge.judge_problem("", Problem("", Exit.FAILURE, "")), state=s) for s in states]

    assert judge.worst(lines(State.PASS, State.NOT_TESTED)) == State.PASS
    assert judge.worst(lines(State.PASS, State.WARN)) == State.WARN
    assert judge.worst(lines(State.WARN, State.FAIL, State.PASS)) == State.FAIL
