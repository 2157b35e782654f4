"""Judge the links of GPUs to the host and to each other: speed, errors, and links that are down."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ...hardware.readings import LinkReading, PcieLink
from ...hardware.sensors import INSTALL_HINT, open_sensors
from .figures import Line, State

LINK, REPLAYS, PEERS, PEER_ERRORS = "PCIe link", "PCIe replays", "GPU links", "GPU link errors"
_MAX_REPLAYS_PER_MINUTE = 8.0  # the most that NVIDIA recommends (DCGM_LIMIT_MAX_PCIREPLAY_RATE of DCGM)
_FATAL = ("recovery", "XGMI")  # DCGM's health check fails a recovery, and warns of other errors of NVLink
_MAX_RING_GPUS = 8
_RESEAT = "Reseat the GPU or its riser, and check the slot's settings in the firmware."
_REPEAT = "Repeat with more --minutes; if it stays, reseat the GPU or its riser."
_SWITCHES = "Check the state of the links (nvidia-smi nvlink -s and -e, or amd-smi xgmi) and the links' connectors."


@contextmanager
def watch_links(num_gpus: int, lines: list[Line]) -> Iterator[None]:
    """Add the lines of the links of each GPU, from their error counts before and after the body."""
    if not num_gpus:
        yield
        return
    sensors = open_sensors(num_gpus)
    if sensors is None:
        reason, remedy = "no management library reports the links", f"Install one: {INSTALL_HINT}."
        lines += [Line(State.NOT_TESTED, REPLAYS, f"GPU {index}", reason, remedy) for index in range(num_gpus)]
        yield
        return
    try:
        started = time.monotonic()
        before = [sensors.read_links(index) for index in range(num_gpus)]
        yield
        after = [sensors.read_links(index) for index in range(num_gpus)]
        lines += judge_errors(before, after, (time.monotonic() - started) / 60, sensors.source)
    finally:
        sensors.close()


def has_nvlink_ring(links: Mapping[str, str], num_gpus: int) -> bool:
    """Return whether NVLink connects all GPUs in a ring, as collectives use it; `links` are by pairs such as "0-1"."""
    pairs = {pair for pair, link in links.items() if "NVLink" in link}
    if num_gpus > _MAX_RING_GPUS:  # only switches connect so many
        return len(pairs) == num_gpus * (num_gpus - 1) // 2

    def is_linked(first: int, second: int) -> bool:
        return f"{min(first, second)}-{max(first, second)}" in pairs

    rings = ((0, *others, 0) for others in itertools.permutations(range(1, num_gpus)))
    return any(all(itertools.starmap(is_linked, itertools.pairwise(ring))) for ring in rings)


def judge_pcie(device: str, links: LinkReading | None) -> Line:
    """Judge the link to the host after transfers beside what the slot and the GPU can do.

    A link that is slower than both could be has failed lanes or a wrong setting; a slot may be slower than its GPU by
    design of the board.
    """
    now = links.pcie if links else PcieLink()
    if links is None or not now.generation or not now.width:
        reason, remedy = "generation and width are not reported", f"Install a management library: {INSTALL_HINT}."
        return Line(State.NOT_TESTED, LINK, device, reason, remedy)
    text = _describe(now)
    if _is_slower(now, links.pcie_of_slot):
        message = f"{text}, but slot and GPU can do {_describe(links.pcie_of_slot)}"
        return Line(State.FAIL, LINK, device, message, _RESEAT)
    if _is_slower(now, links.pcie_of_gpu):
        message = f"{text}, but the GPU can do {_describe(links.pcie_of_gpu)}"
        return Line(State.WARN, LINK, device, message, "Move the GPU to a slot that is as fast, or reseat it.")
    return Line(State.PASS, LINK, device, text)


def _describe(link: PcieLink) -> str:
    generation = f"generation {link.generation}" if link.generation else ""
    return " ".join(filter(None, (generation, f"x{link.width}" if link.width else "")))


def _is_slower(link: PcieLink, other: PcieLink) -> bool:
    pairs = ((link.generation, other.generation), (link.width, other.width))
    return any(value and best and value < best for value, best in pairs)


def judge_errors(
    before: Sequence[LinkReading], after: Sequence[LinkReading], minutes: float, source: str
) -> Iterator[Line]:
    """Judge the growth of each GPU's error counts in some minutes, and links that are down while others are up."""
    most_up = max((sum(reading.peer_links or ()) for reading in after), default=0)
    have_links = len(after) > 1 and any(reading.peer_links for reading in after)
    for index, (first, last) in enumerate(zip(before, after, strict=True)):
        device = f"GPU {index}"
        yield _judge_replays(device, first.pcie_replays, last.pcie_replays, minutes, source)
        if most_up or have_links:
            yield _judge_peers(device, last.peer_links or (), most_up)
        if most_up:
            yield _judge_peer_errors(device, first.peer_errors, last.peer_errors, minutes, source)


def _judge_replays(device: str, before: int | None, after: int | None, minutes: float, source: str) -> Line:
    if before is None or after is None:
        return _not_reported(REPLAYS, device, source)
    replays = max(after - before, 0)
    message = f"{replays} in {minutes:.1f} min"
    if replays > _MAX_REPLAYS_PER_MINUTE * minutes:
        message = f"{message}; more than {_MAX_REPLAYS_PER_MINUTE:g} a minute point to a bad contact"
        return Line(State.FAIL, REPLAYS, device, message, _RESEAT)
    return (
        Line(State.WARN, REPLAYS, device, message, _REPEAT) if replays else Line(State.PASS, REPLAYS, device, message)
    )


def _judge_peers(device: str, links: Sequence[bool], most_up: int) -> Line:
    up, down = sum(links), [str(number) for number, is_up in enumerate(links) if not is_up]
    message = f"{up} of {len(links)} are up" if links else "none is reported"
    if not most_up:
        return Line(State.WARN, PEERS, device, message, f"Without bridges between GPUs, nothing to do. {_SWITCHES}")
    if down:
        message = f"{message}, down: {', '.join(down)}"
    if up < most_up:
        message = f"{message}; another GPU has {most_up} up"
        state = State.FAIL if up else State.WARN  # not every GPU of a node has a bridge
    else:
        state = State.WARN if down else State.PASS
    return Line(state, PEERS, device, message, "" if state is State.PASS else _SWITCHES)


def _judge_peer_errors(
    device: str, before: dict[str, int] | None, after: dict[str, int] | None, minutes: float, source: str
) -> Line:
    if before is None or after is None:
        return _not_reported(PEER_ERRORS, device, source)
    grown = {kind: count - before[kind] for kind, count in after.items() if count > before.get(kind, count)}
    if not grown:
        return Line(State.PASS, PEER_ERRORS, device, f"none of {', '.join(after)} in {minutes:.1f} min")
    listed = ", ".join(f"{count} {kind}" for kind, count in grown.items())
    state = State.FAIL if grown.keys() & set(_FATAL) else State.WARN
    return Line(state, PEER_ERRORS, device, f"{listed} in {minutes:.1f} min", _SWITCHES)


def _not_reported(part: str, device: str, source: str) -> Line:
    remedy = f"Read the system log for PCIe and link errors; a newer driver may report them to {source}."
    return Line(State.NOT_TESTED, part, device, f"{source} does not report them here", remedy)
