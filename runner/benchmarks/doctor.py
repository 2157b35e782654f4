"""`timetrial doctor`: is this machine fit to run, and what mends it where it is not?"""

import os
import resource
import shlex
import shutil
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.markup import escape

from ...datasets.build.store import DatasetStore
from ...datasets.registry import catalog
from ..core.errors import Exit, RunError
from ..hardware import devices, host, wheels
from ..hardware.readings import Cards, GpuReading
from ..hardware.wheels import Wheel
from ..training import all_reduce

_GIB = 2**30
_FREE_GIB, _SHARED_GIB, _OPEN_FILES, _FEWEST_FILES = 10, 1, 4096, 1024
_BUSY, _LOOK_SECONDS = 0.25, 0.3  # of the processors, taken by others, over so long
_COLOURS = {"ok": "green", "note": "yellow", "bad": "red"}
_MARGIN = 21  # columns of a line before what was found
_WORDS = {"ok": "ok", "note": "note", "bad": "BAD"}


@dataclass(frozen=True)
class Check:
    """A line of the list: `state` is ok, note or bad; a bad one has the `remedy`, a command, and an exit code."""

    name: str
    state: str
    found: str
    remedy: str = ""
    code: Exit = Exit.DEVICE


@dataclass(frozen=True)
class Seen:
    """A card as its vendor's tool sees it: what stays, what it shows now, and the tool."""

    facts: dict[str, Any]
    now: GpuReading
    source: str


@dataclass(frozen=True)
class Machine:
    """What is looked at.

    `usable` are the cards that PyTorch can use, `seen` the same in the same order as their vendor's tool sees them, or
    empty; `there` are all cards that vendors' tools see, and `vendors` has whose are on the bus.
    """

    wheel: Wheel
    usable: Sequence[dict[str, Any]]
    seen: Sequence[Seen] = ()
    name: str = "cpu"
    links: dict[str, str] = field(default_factory=dict)
    there: Sequence[Seen] = ()
    vendors: Collection[str] = ()


def look() -> Machine:
    """This machine."""
    there = [seen for cards in sensors.open_all_sensors() for seen in _seen(cards)]
    own = sensors.open_sensors(devices.device_count()) if devices.device_count() else None
    links = own.links() if own is not None else {}
    seen = _seen(own) if own is not None else []
    name, cards = devices.detect_accelerator(), devices.describe_gpus()
    return Machine(devices.installed_build(), cards, seen, name, links, there, host.pci_gpu_vendors())


def _seen(cards: Cards) -> list[Seen]:
    found = [Seen(cards.describe(index), cards.read(index), cards.source) for index in range(len(cards))]
    cards.close()
    return found


def examine(machine: Machine, runs: Path, data: Path, sum_up: bool = True) -> Iterator[Check]:
    """All checks, the quick ones first; `sum_up` has the ranks add up a tensor, which takes seconds."""
    cards = list(of_cards(machine))
    yield from cards
    yield from _of_host()
    yield from _of_disks(runs=runs, data=data)
    yield from _of_data(data)
    if sum_up and not any(check.state == "bad" for check in cards):  # which could not
        yield _of_ranks(machine)


def of_cards(machine: Machine) -> Iterator[Check]:
    """The installed PyTorch against the cards, and the state that the cards are in."""
    wheel = machine.wheel
    built = f"{wheel.version}, built for {', '.join(wheel.architectures)}" if wheel.architectures else wheel.version
    yield Check("PyTorch", "ok", built)
    tool, vendor = wheel.sensors
    # Of another vendor are, for one, graphics that a processor brings along: no matter where there are cards.
    there = [seen for seen in machine.there if seen.source == tool or not machine.usable]
    if len(there) > len(machine.usable):
        yield _unusable(machine, there)
    elif not machine.usable and vendor in machine.vendors:
        words = (
            f"a card of {vendor} is on the bus and PyTorch sees none: this job or container was not given it, or its "
        )
        words += f"driver is missing, or older than this PyTorch ({wheels.DRIVERS[vendor]})"
        yield Check("cards", "note", words)
    elif not machine.usable:
        others = f" (on the bus: {', '.join(sorted(machine.vendors))})" if machine.vendors else ""
        yield Check("cards", "ok", f"none: runs are on the CPU, with accelerator=cpu{others}")
    for index, card in enumerate(machine.usable):
        yield _fit(machine.wheel, index, card, machine.seen[index].facts if machine.seen else {})
    for index, seen in enumerate(machine.seen):
        yield from _state(index, seen)
    if machine.usable and not machine.seen:
        words = f"no vendor's tool is there, telemetry.csv will lack the cards: {sensors.INSTALL_HINT}"
        yield Check("sensors", "note", words)
    for pair, link in machine.links.items():
        yield Check(f"cards {pair}", "ok", link)


def _unusable(machine: Machine, there: Sequence[Seen]) -> Check:
    """Cards that are there, but not for PyTorch: hidden, or of another kind or age than it was built for."""
    hidden = next((name for name in devices.VISIBILITY_VARIABLES if os.environ.get(name) is not None), None)
    count = f"{len(there)} cards are there, PyTorch sees {len(machine.usable)}"
    if hidden and machine.usable:
        return Check("cards", "note", f"{count}: {hidden}={os.environ[hidden]} hides the others")
    facts, (tool, vendor) = there[0].facts, machine.wheel.sensors
    runtime = facts.get("driver_runtime")
    why = ""
    if not wheels.driver_runs(machine.wheel, runtime):
        why = (
            f": driver {facts.get('driver')} runs programs up to {runtime}, this PyTorch is of {machine.wheel.runtime}"
        )
    elif hidden:
        return Check("cards", "bad", f"{count}: {hidden} hides them", f"unset {hidden}")
    elif there[0].source == tool and wheels.holds_code(machine.wheel, facts.get("capability")):
        return Check("cards", "bad", f"{count}, though driver and build fit: its device files are not to be had",
                     wheels.DEVICE_FILES[vendor])  # fmt: skip
    return Check("cards", "bad", count + why, wheels.remedy(facts.get("capability"), runtime))


def _fit(wheel: Wheel, index: int, card: dict[str, Any], told: dict[str, Any]) -> Check:
    """Whether the wheel holds code for a card."""
    capability = card.get("capability")
    memory = f", {card['memory_bytes'] / _GIB:.0f} GiB" if card.get("memory_bytes") else ""
    name = f"{card['name']}{memory}" + (f", {capability}" if capability else "")
    if wheels.holds_code(wheel, capability):
        driver = f", driver {told['driver']}" if told.get("driver") else ""
        return Check(f"card {index}", "ok", name + driver)
    words = f"{name}: the installed PyTorch {wheel.version} holds no code for it"
    return Check(f"card {index}", "bad", words, wheels.remedy(capability, told.get("driver_runtime")))


def _state(index: int, seen: Seen) -> Iterator[Check]:
    """What a card shows now that would spoil a measurement."""
    facts, now, name = seen.facts, seen.now, f"card {index}"
    if now.ecc_uncorrected:
        words = f"{now.ecc_uncorrected} memory errors that could not be corrected: exclude it, or reset the machine"
        yield Check(name, "bad", words, "sudo reboot")
    if now.neighbours:
        yield Check(name, "note", f"{now.neighbours} other processes are on it: times will not be its own")
    lowered = [word for word in (now.throttle or "").split("+") if word in ("thermal", "hardware")]
    if lowered:
        yield Check(name, "note", f"clocks are lowered ({', '.join(lowered)}) at {now.temperature_c or 0:.0f} degrees")
    cap, usual = facts.get("power_cap_watts"), facts.get("default_power_cap_watts")
    if cap and usual and cap < usual:
        yield Check(name, "note", f"power is capped at {cap:.0f} W, {usual:.0f} W are usual")
    if facts.get("persistence") is False:
        yield Check(name, "note", "persistence mode is off: the first start after a pause is slow")
    if now.core_mhz and facts.get("highest_core_mhz"):
        state = f"{now.core_mhz:.0f} of {facts['highest_core_mhz']:.0f} MHz"
        degrees = f", {now.temperature_c:.0f} degrees" if now.temperature_c is not None else ""
        yield Check(f"{name} now", "ok", f"{state}{degrees} ({seen.source})")


def _of_host() -> Iterator[Check]:
    """Memory, processors, limits and neighbours of the host."""
    facts = host.describe()
    each = psutil.cpu_percent(_LOOK_SECONDS, percpu=True)
    mine = [each[one] for one in facts["affinity"] if one < len(each)] if facts["affinity"] else each
    usable = len(facts["affinity"] or each)
    memory = psutil.virtual_memory()
    yield Check(
        "host", "ok", f"{usable} processors, {memory.available / _GIB:.0f} of {memory.total / _GIB:.0f} GiB free"
    )
    limit, cores = host.cgroup_limits()
    if cores is not None and cores < usable:
        yield Check(
            "cgroup", "note", f"{usable} processors are shown, {cores:.3g} may be used: lower recipe.data.workers"
        )
    if limit is not None and limit < memory.total:
        yield Check("cgroup", "note", f"{limit / _GIB:.1f} GiB of {memory.total / _GIB:.0f} GiB may be used")
    busy = sum(mine) / 100 / max(len(mine), 1)
    if busy > _BUSY:
        yield Check("neighbours", "note", f"{busy:.0%} of these processors are busy: others slow what is measured")
    governor = facts["governor"]
    if governor not in (None, "performance"):
        yield Check(
            "governor", "note", f"{governor}: processors start slow (sudo cpupower frequency-set -g performance)"
        )
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    state = "ok" if files >= _OPEN_FILES else "note" if files >= _FEWEST_FILES else "bad"
    enough = 65536 if most == resource.RLIM_INFINITY else min(most, 65536)
    raised = f"ulimit -n {enough}" if enough >= _OPEN_FILES else "sudo prlimit --pid $$ --nofile=65536"
    more = "" if state == "ok" else f": many reading processes need more ({raised})"
    yield Check("open files", state, f"{files} at most{more}", raised)
    shared = Path("/dev/shm")
    if shared.exists():
        room = shutil.disk_usage(shared)
        words = f"{room.free / _GIB:.1f} GiB free in {shared}, through which reading processes hand their batches"
        few = room.free < _SHARED_GIB * _GIB
        words += ": start a container with --shm-size=8g" if few else ""
        mend = f"sudo mount -o remount,size={room.total / _GIB + 8:.0f}G {shared}"
        yield Check("shared memory", "bad" if few else "ok", words, mend)


def _of_disks(**places: Path) -> Iterator[Check]:
    for name, place in places.items():
        nearest = host.nearest_existing(place)
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            words, state = f"{nearest} is no folder that may be written to", "bad" if name == "runs" else "note"
            yield Check(f"disk for {name}", state, words, "mkdir -p ~/timetrial && cd ~/timetrial")
            continue
        kind = host.describe_storage(place)
        free = kind["free_bytes"] / _GIB
        words = f"{free:,.0f} GiB free in {place}/, {kind['file_system'] or 'unknown'} file system"
        # Embedded runs need megabytes, reference data more than any check can know.
        state = "bad" if free < 1 else "ok" if free >= _FREE_GIB else "note"
        yield Check(f"disk for {name}", state, words, f"du -xh --max-depth=3 {shlex.quote(str(nearest))} | sort -h")


def _of_data(data: Path) -> Iterator[Check]:
    """Every set that lies there; those that do not are no fault."""
    store, known = DatasetStore(data), catalog.read()
    states = {name: store.state(source) for name, source in known.items()}
    there = [name for name, state in states.items() if state in ("ready", "unmanaged")]
    yield Check(
        "data", "ok", f"{len(there)} of {len(known)} sets in {data}/" + (f": {', '.join(there)}" if there else "")
    )
    for name, state in states.items():
        if state == "partial":
            yield Check(name, "note", f"partial: timetrial data fetch {name} continues")
        if state == "damaged":
            accepted = " --accept-license" if known[name].requires_acceptance else ""
            folder, place = (shlex.quote(str(path)) for path in (data / name, data))
            mend = f"rm -r {folder} && timetrial data fetch {name} --data-dir {place}{accepted}"
            yield Check(name, "bad", "damaged: files are missing or of another size", mend, Exit.DATA)


def _of_ranks(machine: Machine) -> Check:
    ranks = max(len(machine.usable), 2 if machine.name == "cpu" else 1)
    if ranks == 1:
        return Check("ranks", "ok", "one card: nothing to add up")
    try:
        speed = all_reduce.measure(machine.name, ranks)
    except RunError as error:
        if machine.name != "cpu" and _adds_up(machine.name, ranks):
            words = f"{error} Through the host's memory they do: slower, and every result says so"
            return Check("ranks", "bad", words, "export NCCL_P2P_DISABLE=1")
        return Check("ranks", "bad", str(error), f"NCCL_DEBUG=INFO python -P -m torch.distributed.run --standalone "
                     f"--nproc-per-node {ranks} -m timetrial.runner.training.all_reduce {machine.name}")  # fmt: skip
    return Check("ranks", "ok", f"{ranks} ranks add up a tensor, {speed:.1f} GB/s of bus bandwidth")


def _adds_up(name: str, ranks: int) -> bool:
    try:
        return all_reduce.measure(name, ranks, peer_to_peer=False) > 0
    except RunError:
        return False


def show(console: Console, checks: Iterable[Check]) -> list[Check]:
    """Prints each check as it is made; a bad one ends in the command that mends it. Returns them all."""
    made = []
    room = max(console.width - _MARGIN, _MARGIN) if console.is_terminal else None  # a file has no edge to fold at
    for check in checks:
        made.append(check)
        mark = f"[{_COLOURS[check.state]}]{_WORDS[check.state]:<5}[/]"
        lines = textwrap.wrap(check.found, room, break_long_words=False) if room else [check.found]
        found = escape(f"\n{'':{_MARGIN}}".join(lines))
        console.print(f"{mark} [bold]{escape(check.name):<14}[/bold] {found}", highlight=False, soft_wrap=True)
        if check.state == "bad":
            console.print(f"{'':<20} mend it: [bold]{escape(check.remedy)}[/bold]", highlight=False, soft_wrap=True)
    return made


def as_table(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """The checks for a script; a remedy and a code only where something is bad."""
    fine: dict[str, Any] = {"remedy": "", "code": 0}
    return [asdict(check) | ({} if check.state == "bad" else fine) for check in checks]


def verdict(checks: Sequence[Check]) -> Exit:
    """0 where nothing is bad, else the device's code before that of data."""
    codes = {check.code for check in checks if check.state == "bad"}
    return Exit.TARGET_REACHED if not codes else Exit.DEVICE if Exit.DEVICE in codes else Exit.DATA
