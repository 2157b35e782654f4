"""Links of GPUs with injected faults: slow slots, errors, links that are down, and libraries that report nothing."""

from dataclasses import replace

import pytest

from timetrial.runner.benchmarks.accept import links
from timetrial.runner.benchmarks.accept.figures import State
from timetrial.runner.hardware.readings import LinkReading, PcieLink

FULL = PcieLink(4, 16)
NVLINK = LinkReading(FULL, FULL, FULL, 7, (True,) * 12, {"replay": 1, "recovery": 2, "CRC": 3})


@pytest.mark.parametrize(
    ("now", "slot", "gpu", "state", "words"),
    [
        (FULL, FULL, FULL, State.PASS, "generation 4 x16"),
        (PcieLink(4, 8), FULL, FULL, State.FAIL, "slot and GPU can do generation 4 x16"),
        (PcieLink(1, 16), FULL, FULL, State.FAIL, "generation 1 x16, but slot"),
        (PcieLink(4, 8), PcieLink(4, 8), FULL, State.WARN, "the GPU can do generation 4 x16"),
        (FULL, FULL, PcieLink(5, None), State.WARN, "the GPU can do generation 5"),
        (FULL, PcieLink(), PcieLink(), State.PASS, "generation 4 x16"),
        (PcieLink(None, 16), FULL, FULL, State.NOT_TESTED, "not reported"),
    ],
)
def test_a_slow_link_to_the_host_is_found(now, slot, gpu, state, words):
    line = links.judge_pcie("GPU 0", LinkReading(now, slot, gpu))
    assert (line.state, bool(line.remedy)) == (state, state is not State.PASS)
    assert words in line.message


def test_without_a_management_library_the_link_is_not_tested():
    assert links.judge_pcie("GPU 0", None).state == State.NOT_TESTED


def judge(first, last, *others, minutes=10.0):
    """Return the lines of the first GPU by part; `others` are readings of further GPUs."""
    found = links.judge_errors([first, *others], [last, *others], minutes, "NVML")
    return {line.part: line for line in found if line.device == "GPU 0"}


@pytest.mark.parametrize(("replays", "state"), [(0, State.PASS), (1, State.WARN), (80, State.WARN), (81, State.FAIL)])
def test_replays_are_judged_by_their_growth_a_minute(replays, state):
    line = judge(NVLINK, replace(NVLINK, pcie_replays=7 + replays))["PCIe replays"]
    assert (line.state, line.message.startswith(f"{replays} in 10.0 min")) == (state, True)


@pytest.mark.parametrize(
    ("errors", "state", "words"),
    [
        ({"replay": 1, "recovery": 2, "CRC": 3}, State.PASS, "none of replay, recovery, CRC"),
        ({"replay": 5, "recovery": 2, "CRC": 4}, State.WARN, "4 replay, 1 CRC in 10.0 min"),
        ({"replay": 1, "recovery": 3, "CRC": 3}, State.FAIL, "1 recovery"),
        (None, State.NOT_TESTED, "NVML does not report them"),
    ],
)
def test_errors_between_gpus_are_judged_by_their_growth(errors, state, words):
    line = judge(NVLINK, replace(NVLINK, peer_errors=errors))["GPU link errors"]
    assert line.state == state
    assert words in line.message


@pytest.mark.parametrize(
    ("up", "other_up", "state", "words"),
    [
        (12, 12, State.PASS, "12 of 12 are up"),
        (11, 12, State.FAIL, "11 of 12 are up, down: 11; another GPU has 12 up"),
        (8, 8, State.WARN, "8 of 12 are up, down: 8, 9, 10, 11"),
        (0, 12, State.WARN, "another GPU has 12 up"),
        (0, 0, State.WARN, "0 of 12 are up"),
    ],
)
def test_links_that_are_down_are_found(up, other_up, state, words):
    def with_up(number):
        return replace(NVLINK, peer_links=tuple(link < number for link in range(12)))

    line = judge(NVLINK, with_up(up), with_up(other_up))["GPU links"]
    assert line.state == state
    assert words in line.message


@pytest.mark.parametrize(
    ("pairs", "num_gpus", "expected"),
    [
        ("0-1", 2, True),
        ("", 2, False),
        ("0-1 2-3", 4, False),  # bridges in pairs
        ("0-1 0-2 1-3 2-3", 4, True),
        ("0-1 0-2 0-3 1-2", 4, False),  # GPU 3 hangs on one link
        ("0-1 0-2 0-3 0-4 1-2 1-3 1-5 2-3 2-6 3-7 4-5 4-6 4-7 5-6 5-7 6-7", 8, True),  # a hybrid cube mesh
    ],
)
def test_collectives_need_a_ring_of_nvlinks(pairs, num_gpus, expected):
    found = dict.fromkeys(pairs.split(), "NVLink, 2 links per GPU")
    assert links.has_nvlink_ring({"0-9": "one PCIe switch"} | found, num_gpus) == expected


def test_sixteen_gpus_need_switches():
    pairs = {f"{first}-{second}": "NVLink, 6 links per GPU" for second in range(16) for first in range(second)}
    assert links.has_nvlink_ring(pairs, 16)
    assert not links.has_nvlink_ring({pair: link for pair, link in pairs.items() if pair != "3-7"}, 16)


def test_gpus_without_links_to_each_other_have_no_line_of_them():
    alone = LinkReading(FULL, pcie_replays=0)
    assert judge(alone, alone).keys() == {"PCIe replays"}
    assert judge(LinkReading(), LinkReading())["PCIe replays"].state == State.NOT_TESTED


class Counters:
    """Sensors of two GPUs whose PCIe replays a test sets."""

    source = "NVML"

    def __init__(self):
        self.replays, self.is_open = [10, 10], True

    def read_links(self, index):
        return LinkReading(pcie_replays=self.replays[index])

    def close(self):
        self.is_open = False


def test_what_happens_between_two_readings_is_a_line(monkeypatch):
    counters, lines = Counters(), []
    monkeypatch.setattr(links, "open_sensors", lambda count: counters)
    with links.watch_links(2, lines):
        counters.replays[1] += 1000
    assert [(line.device, line.state) for line in lines] == [("GPU 0", State.PASS), ("GPU 1", State.FAIL)]
    assert not counters.is_open


def test_without_a_library_errors_are_not_tested_and_without_gpus_there_is_no_line(monkeypatch):
    monkeypatch.setattr(links, "open_sensors", lambda count: None)
    lines = []
    with links.watch_links(2, lines):
        pass
    assert [(line.device, line.state) for line in lines] == [(f"GPU {gpu}", State.NOT_TESTED) for gpu in range(2)]
    assert all("pip install" in line.remedy for line in lines)
    with links.watch_links(0, lines):
        pass
    assert len(lines) == 2
