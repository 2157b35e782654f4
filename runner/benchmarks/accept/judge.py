"""Judge what was measured on a node: pure functions from figures to lines."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...core.errors import Exit
from ...core.formatting import format_number
from ...record import validity
from ...results.analysis.intervals import LogEstimate, Sample, geometric_ratio, log_mean, serial_error
from ...results.analysis.verdicts import ALPHA, MARGIN
from .expected import DISK, PHYSICAL, TOGETHER
from .figures import ALL_GPUS, HOST, Figure, Host, Line, Problem, Replay, State, Sustained
from .replay import first_difference

_NO_SUPPORT = (Exit.DEVICE, Exit.OUT_OF_MEMORY, Exit.CONFIGURATION)
_MIN_CORES_PER_GPU, _GOOD_CORES_PER_GPU = 4, 8
_MIN_BLOCKS = 6  # to tell the start of the sustained load from its end
_MIN_DISK_MB_S = 11.0  # 100 images of ImageNet a second
_MIN_MEMORY = 0.85  # of that of the data sheet, of which ECC and the driver take some
_MIN_THROTTLED_SECONDS = 120.0  # a single one of so many samples is less than the 1% that the flag allows
_MIN_SUSTAINED, _GOOD_SUSTAINED = 0.85, 0.95  # of the throughput at its start
_MAX_SHARE = 1.05  # of what is physically possible: timer and counting are not exact
# Of an all-reduce over NVLink, over that through host memory. We measured 11 to 13; a single NVLink 2 may give 2.
_MIN_DIRECT_GAIN, _GOOD_DIRECT_GAIN = 1.5, 3.0

# Shares of what is expected below which a line is FAIL and WARN, by the beginning of a figure's name. Peaks that we
# measured are 73 to 80% of the data sheet for matrix products and 88% for copies (docs/peaks.md); equal GPUs differ by
# up to 5%.
_SHARES = {
    "matrix product": (0.40, 0.55),
    "memory copy": (0.60, 0.70),
    "host to": (0.50, 0.70),
    "device to": (0.50, 0.70),
    "training": (0.85, 0.93),
    TOGETHER: (0.70, 0.85),
}
_MEASURE_LONGER = "Raise --minutes."
_REMEDIES = {
    "matrix product": "Check power cap, clocks and other processes with nvidia-smi -q or its like, then have the GPU "
    "replaced.",
    "memory copy": "Check memory clock, ECC and remapped rows, then have the GPU replaced.",
    "host to": "Check the generation and width of the PCIe link, and reseat the GPU or its riser.",
    "device to": "Check the generation and width of the PCIe link, and reseat the GPU or its riser.",
    "training": "Repeat on an idle machine; if the peaks are as expected, compare PyTorch and driver versions.",
    DISK: "Put the data on a faster disk, or stage them: TIMETRIAL_STAGING_DIR.",
    TOGETHER: "Check the links between the GPUs and the cores per GPU.",
}


def worst(lines: Iterable[Line]) -> State:
    """Return the one word for a node: FAIL or WARN if a line says so, else PASS."""
    states = {line.state for line in lines}
    return next((state for state in (State.FAIL, State.WARN) if state in states), State.PASS)


def judge_model(device: str, bought: str | None, found: str) -> list[Line]:
    """Judge whether the accelerator config of a device is the one that was `bought`, if any was named."""
    if bought is None or bought == found:
        return []
    remedy = "Compare the delivery with the order."
    return [Line(State.FAIL, "GPU model", device, f"{bought} was expected and {found} was found", remedy)]


def judge_number(bought: int | None, found: int) -> list[Line]:
    """Judge whether there are as many GPUs as were `bought`, if a number was named."""
    if bought is None or bought <= found:
        return []
    remedy = "Look for the others: dmesg, nvidia-smi or its like, and lspci."
    return [Line(State.FAIL, "number of GPUs", ALL_GPUS, f"{bought} were expected and {found} found", remedy)]


def judge_memory(device: str, bought_gib: float | None, found_gib: float) -> list[Line]:
    """Judge whether a GPU has about the memory of the accelerator config that was bought, if any was named."""
    if bought_gib is None or found_gib >= _MIN_MEMORY * bought_gib:
        return []
    message = f"{bought_gib:g} GiB were expected and {found_gib:.0f} found"
    return [Line(State.FAIL, "GPU memory", device, message, "Compare the delivery with the order.")]


def judge_coverage(devices: Iterable[str], figures: Iterable[Figure]) -> Iterator[Line]:
    """Judge GPUs of which nothing could be measured, such as one whose memory another process holds."""
    measured = {figure.device for figure in figures}
    for device in devices:
        if device not in measured:
            remedy = "Look at its processes and memory (nvidia-smi, amd-smi), then at what was not tested and why."
            yield Line(State.FAIL, "figures", device, "nothing could be measured", remedy)


def judge_problem(device: str, problem: Problem) -> Line:
    """Judge a part that ended without a figure: not tested where this machine does not support it."""
    state = State.NOT_TESTED if problem.exit_code in _NO_SUPPORT else State.FAIL
    return Line(state, problem.part, device, problem.sentence, "Run timetrial doctor, then the same workload alone.")


def judge_figure(figure: Figure) -> Line:
    """Judge a rate by the share of what is expected of it."""
    text = f"{format_number(figure.value)} {figure.unit}"
    if figure.expected is None:
        reason = f"{text}, nothing to compare with"
        return Line(
            State.NOT_TESTED,
            figure.name,
            figure.device,
            reason,
            "Compare with other nodes by timetrial accept --compare.",
        )
    kind = next(kind for kind in _REMEDIES if figure.name.startswith(kind))
    share = figure.value / figure.expected
    message = f"{text}, {share:.0%} of {format_number(figure.expected)} ({figure.source})"
    if figure.source in PHYSICAL and share > _MAX_SHARE:
        remedy = "Check that the accelerator config is this GPU's, and the clock of the host."
        return Line(State.WARN, figure.name, figure.device, f"{message}, which is impossible", remedy)
    # The needs of many fast GPUs are beyond most disks, which are no defect.
    minimum, good = (_MIN_DISK_MB_S / figure.expected, 1.0) if kind == DISK else _SHARES[kind]
    state = State.PASS if share >= good else State.WARN if share >= minimum else State.FAIL
    if state is State.FAIL and "older code" in figure.source:  # the difference may be the code's
        state = State.WARN
    elif state is State.WARN and kind == "training" and _mean(figure.values).interval().high >= good * figure.expected:
        message = f"{message}, within the noise of its blocks"
        return Line(State.NOT_TESTED, figure.name, figure.device, message, _MEASURE_LONGER)
    return Line(state, figure.name, figure.device, message, "" if state is State.PASS else _REMEDIES[kind])


def judge_stragglers(figures: Iterable[Figure], models: Mapping[str, str]) -> Iterator[Line]:
    """Judge the slowest GPU against the median of its model in each workload that several have trained.

    `models` has the model of each GPU.

    The ratio is that of the same blocks, which have the same batches. It has a t interval of the logs, whose neighbors
    may correlate, at Bonferroni's level over all GPUs and workloads: at most 5% of nodes with equal GPUs have a FAIL or
    WARN. Where the estimate is slower by more than 5%, the line is a FAIL if the whole interval is so, a WARN if the
    interval is slower at all, and not tested if it is not.
    """
    groups: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        if figure.name.startswith("training") and len(figure.values) > 1:
            groups.setdefault((figure.name, models.get(figure.device, "")), []).append(figure)
    groups = {key: same for key, same in groups.items() if len(same) > 1}
    tests = sum(map(len, groups.values()))
    for (name, _), same in groups.items():
        ordered = sorted(same, key=lambda figure: log_mean(Sample(figure.values)).log)
        slowest, median = ordered[0], ordered[len(ordered) // 2]
        ratios = [value / other for value, other in zip(slowest.values, median.values, strict=False)]
        interval = _mean(ratios).interval(1 - ALPHA / tests)
        bounds = f"{interval.low:.3f} to {interval.high:.3f}"
        message = f"{name}: {interval.estimate:.3f} of the median GPU of the node ({bounds})"
        limit = 1 - MARGIN
        state, remedy = State.PASS, ""
        if interval.estimate < limit and interval.high >= 1:
            state, remedy, message = State.NOT_TESTED, _MEASURE_LONGER, f"{message}, within the noise of the blocks"
        elif interval.estimate < limit:
            state = State.FAIL if interval.high < limit else State.WARN
            remedy = "Look at this GPU's clocks, temperature and processes beside another's."
        yield Line(state, "straggler", slowest.device, message, remedy)


def _mean(values: Sequence[float]) -> LogEstimate:
    """Return the geometric mean of successive values, whose neighbors may correlate."""
    mean = log_mean(Sample(tuple(values)))
    return replace(mean, error=math.hypot(mean.error, serial_error(values)))


def judge_sustained(device: str, load: Sustained) -> Iterator[Line]:
    """Judge minutes under load: the throughput at the end, and what the sensors said meanwhile."""
    third = len(load.values) // 3
    part, minutes = "sustained load", f"{load.seconds / 60:.1f} min of {load.name}"
    if len(load.values) < _MIN_BLOCKS:
        yield Line(State.NOT_TESTED, part, device, f"{minutes} are too short", _MEASURE_LONGER)
    else:
        ratio = geometric_ratio(load.values[-third:], load.values[:third]).estimate
        message = f"{minutes}: {ratio:.0%} of the throughput at its start{_describe_sensors(load)}"
        state = State.PASS if ratio >= _GOOD_SUSTAINED else State.WARN if ratio >= _MIN_SUSTAINED else State.FAIL
        if state is State.FAIL and {validity.BUSY_HOST, "other processes"} & load.flags.keys():
            state = State.WARN  # the others may have slowed it down
        remedy = "Check cooling, fans, power supply and neighbors, then repeat with more --minutes."
        yield Line(state, part, device, message, "" if state is State.PASS else remedy)
    for name, sentence in load.flags.items():
        if name == validity.THROTTLED:
            state = State.FAIL if load.seconds >= _MIN_THROTTLED_SECONDS else State.WARN
            yield Line(state, name, device, sentence, "Check cooling and power supply, and repeat with more --minutes.")
        elif name == "ECC errors" and "uncorrected" in sentence:
            yield Line(State.FAIL, name, device, sentence, "Have the GPU replaced.")
        elif name not in ("telemetry", "energy"):
            remedy = "Repeat on an idle machine." if "process" in sentence else "Repeat; if it stays, check the GPU."
            yield Line(State.WARN, name, device, sentence, remedy)


def _describe_sensors(load: Sustained) -> str:
    clocks = f"core clock {load.core_mhz[0]:.0f} to {load.core_mhz[-1]:.0f} MHz" if load.core_mhz else ""
    watts = f"{load.mean_watts:.0f} W" if load.mean_watts else ""
    heat = f"at most {load.highest_temperature_c:.0f} degrees C" if load.highest_temperature_c else ""
    cap = f"at the power cap {load.at_power_cap:.0%} of the time" if load.at_power_cap else ""
    known = ", ".join(filter(None, (clocks, watts, heat, cap)))
    return f"; {known}" if known else "; no sensors of clocks, power and temperature"


def judge_replays(replays: Mapping[str, Sequence[Replay]], *, are_equal: bool) -> Iterator[Line]:
    """Judge the replays of each device, then whether equal devices agree; of three or more, odd ones are named.

    Replays are comparable if their steps have equally many micro-batches.
    """
    remedy = "Exclude the device and have it replaced: it computes wrong without an error."
    for device, of_device in replays.items():
        for each in of_device:
            if found := each.difference:
                text = f"{each.name}: repeat {found.repeat} differs from the first in step {found.step}, {found.tensor}"
                yield Line(State.FAIL, "replay", device, text, remedy)
        if equal := [each for each in of_device if each.difference is None]:
            listed = ", ".join(f"{each.name} {each.repeats} x {len(each.trace)} steps" for each in equal)
            yield Line(State.PASS, "replay", device, f"bit-equal: {listed}")
    groups: dict[tuple[str, int], dict[str, Replay]] = {}
    for device, of_device in replays.items():
        for each in of_device:
            groups.setdefault((each.name, each.micro_batches), {})[device] = each
    for (name, _), same in groups.items():
        if len(same) > 1 and are_equal:
            yield from _judge_agreement(name, same)


def _judge_agreement(name: str, replays: Mapping[str, Replay]) -> Iterator[Line]:
    texts = {device: str(each.trace) for device, each in replays.items()}
    common, votes = Counter(texts.values()).most_common(1)[0]
    reference = next(device for device, text in texts.items() if text == common)
    odd = [device for device, text in texts.items() if text != common]
    if not odd:
        yield Line(State.PASS, "replay", ALL_GPUS, f"{name}: bit-equal on {len(replays)} GPUs")
    for device in odd:
        found = first_difference(replays[reference].trace, replays[device].trace, 1)
        assert found is not None
        text = f"{name}: differs from {reference} in step {found.step}, {found.tensor}"
        remedy = "Exclude this GPU and have it replaced." if votes > 1 else "Replay both beside a third GPU."
        yield Line(State.FAIL, "replay", device, text, remedy)


def judge_host(host: Host, num_gpus: int) -> Iterator[Line]:
    """Judge the cores that may be used; a machine without GPUs should offer all that it has."""
    text = f"{host.usable_cores:g} of {host.logical_cores} may be used"
    if num_gpus:
        per_gpu = host.usable_cores / num_gpus
        levels = (_MIN_CORES_PER_GPU, _GOOD_CORES_PER_GPU)
        state = State.FAIL if per_gpu < levels[0] else State.WARN if per_gpu < levels[1] else State.PASS
        text = f"{text}, {per_gpu:g} a GPU; data loaders need {levels[0]}, better {levels[1]}"
    else:
        state = State.PASS if host.usable_cores >= host.logical_cores else State.WARN
    remedy = "" if state is State.PASS else "Ask for more cores (--cpus-per-task), or widen taskset and cgroup."
    yield Line(state, "cores", HOST, text, remedy)
    if host.disk_problem:
        yield Line(State.NOT_TESTED, DISK, HOST, host.disk_problem, "Name a folder on a disk with --data-dir.")


def judge_all_reduce(
    device: str, gb_s: float, through_host_gb_s: float | None, *, is_ring: bool, peer_to_peer: bool
) -> Line:
    """Judge the bus bandwidth of an all-reduce over all GPUs, beside that through host memory where that is known.

    `is_ring` says whether NVLink connects all of them, and `peer_to_peer` whether direct transfers are allowed.
    """
    text, part = f"{format_number(gb_s)} GB/s bus bandwidth", "all-reduce"
    if through_host_gb_s is None:
        return Line(State.PASS, part, device, text)
    text = f"{text}, {format_number(through_host_gb_s)} through host memory"
    if not peer_to_peer:
        message = f"{text}; direct transfers are switched off"
        return Line(State.FAIL, part, ALL_GPUS, message, "unset NCCL_P2P_DISABLE, and repeat.")
    gain = gb_s / through_host_gb_s
    if is_ring and gain < _GOOD_DIRECT_GAIN:
        message = f"{text}, over NVLink only {gain:.2g} times as much"
        state = State.FAIL if gain < _MIN_DIRECT_GAIN else State.WARN
        return Line(state, part, ALL_GPUS, message, "Check the state of the links (nvidia-smi nvlink -s).")
    if gain < 0.9:
        message = f"{text}: direct transfers are slower"
        return Line(State.WARN, part, ALL_GPUS, message, "Check ACS and IOMMU settings of the PCIe switches.")
    return Line(State.PASS, part, ALL_GPUS, text)
