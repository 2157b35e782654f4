"""What `timetrial accept` measures on a node, and the lines of its table."""

import statistics
from dataclasses import dataclass, field
from enum import StrEnum

from ...core.errors import Exit
from ...hardware.readings import LinkReading
from ..peak_rows import Row

HOST, ALL_GPUS, CPU = "host", "all GPUs", "CPU"
"""Names of devices that are no single GPU."""


class State(StrEnum):
    """What a line says of its part, the worst first."""

    FAIL = "FAIL"
    WARN = "WARN"
    PASS = "PASS"
    NOT_TESTED = "not tested"


@dataclass(frozen=True)
class Line:
    """A line of the table; every line that is not PASS has a `remedy`, a sentence."""

    state: State
    part: str
    device: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Figure:
    """A measured rate of a device, higher is better; `values` are repeats in the order of time.

    `expected` is what `source` leads to expect, None where nothing does.
    """

    name: str
    device: str
    unit: str
    values: tuple[float, ...]
    expected: float | None = None
    source: str = ""

    @property
    def value(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.values)


@dataclass(frozen=True)
class Problem:
    """Why a part ended without a figure."""

    part: str
    exit_code: Exit
    sentence: str


@dataclass(frozen=True)
class Host:
    """Processors that this process may use at once, and those of the machine; `disk_problem` says why none was read."""

    usable_cores: float
    logical_cores: int
    figures: tuple[Figure, ...] = ()
    disk_problem: str = ""


@dataclass(frozen=True)
class Rates:
    """Training throughput of one workload, by block; `expected` is the reference throughput of the same GPU.

    `micro_batch` are the samples of a forward pass.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    micro_batch: int
    expected: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Sustained:
    """Minutes of training without a pause: the throughput of each block, and what the sensors said meanwhile.

    `flags` are the validity flags of a run; the sensors' values are None where nothing reports them.
    """

    name: str
    unit: str
    seconds: float
    values: tuple[float, ...]
    flags: dict[str, str] = field(default_factory=dict)
    core_mhz: tuple[float, ...] | None = None
    highest_temperature_c: float | None = None
    mean_watts: float | None = None
    at_power_cap: float | None = None


@dataclass(frozen=True)
class Difference:
    """The first difference between two replays: 1-based repeat and step, and the tensor."""

    repeat: int
    step: int
    tensor: str


@dataclass(frozen=True)
class Replay:
    """Repeated training of the same steps from the same state.

    `micro_batches` is how many micro-batches a step has. `trace` has the checksum of each tensor after each step, of
    the first repeat.
    """

    name: str
    micro_batches: int
    repeats: int
    trace: tuple[dict[str, int], ...]
    difference: Difference | None


@dataclass(frozen=True)
class DeviceResult:
    """What one process measured on its device; `links` were read right after transfers over PCIe."""

    rows: tuple[Row, ...] = ()
    links: LinkReading | None = None
    rates: tuple[Rates, ...] = ()
    sustained: Sustained | None = None
    replays: tuple[Replay, ...] = ()
    problems: tuple[Problem, ...] = ()
