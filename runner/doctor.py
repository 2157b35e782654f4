"""`timetrial doctor`: is this machine fit to run, and what mends it where it is not?"""

import os
import resource
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.markup import escape

from timetrial.datasets import catalogue
from timetrial.datasets.acquire import Store
from timetrial.runner import accelerator, all_reduce
from timetrial.runner.errors import Exit, RunError
from timetrial.runner.hardware import host, wheels
from timetrial.runner.hardware.reading import CardReading
from timetrial.runner.hardware.wheels import Wheel

_GIB = 2**30
_FREE_GIB, _SHARED_GIB, _OPEN_FILES, _FEWEST_FILES = 10, 1, 4096, 1024
_BUSY = 0.25  # of the processors, taken by others
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
    now: CardReading
    source: str


@dataclass(frozen=True)
class Machine:
    """What is looked at; `usable` are the cards that PyTorch can use, `seen` those that vendors' tools see."""

    wheel: Wheel
    usable: Sequence[dict[str, Any]]
    seen: Sequence[Seen] = ()
    name: str = "cpu"
    links: dict[str, str] = field(default_factory=dict)


def look() -> Machine:
    """This machine."""
    seen: list[Seen] = []
    links: dict[str, str] = {}
    for cards in accelerator.all_sensors():
        seen += [Seen(cards.facts(index), cards.read(index), cards.source) for index in range(len(cards))]
        links |= cards.links()
        cards.close()
    return Machine(accelerator.wheel(), accelerator.cards(), seen, accelerator.detect(), links)


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
    if not machine.usable and not machine.seen:
        yield Check("cards", "ok", "none: runs are on the CPU, with accelerator=cpu")
    if len(machine.seen) > len(machine.usable):
        yield _unusable(machine)
    for index, card in enumerate(machine.usable):
        told = machine.seen[index].facts if len(machine.seen) == len(machine.usable) else {}
        yield _fit(machine.wheel, index, card, told)
    for index, seen in enumerate(machine.seen):
        yield from _state(index, seen)
    if machine.usable and not machine.seen:
        words = f"no vendor's tool is there, telemetry.csv will lack the cards: {accelerator.TOOLS}"
        yield Check("sensors", "note", words)
    for pair, link in machine.links.items():
        yield Check(f"cards {pair}", "ok", link)


def _unusable(machine: Machine) -> Check:
    """Cards that are there, but not for PyTorch: hidden, or of another kind or age than it was built for."""
    hidden = next((name for name in accelerator.HIDING if os.environ.get(name) is not None), None)
    count = f"{len(machine.seen)} cards are there, PyTorch sees {len(machine.usable)}"
    if hidden and machine.usable:
        return Check("cards", "note", f"{count}: {hidden}={os.environ[hidden]} hides the others")
    facts = machine.seen[0].facts
    runtime = facts.get("driver_runtime")
    why = ""
    if not wheels.driver_runs(machine.wheel, runtime):
        why = (
            f": driver {facts.get('driver')} runs programs up to {runtime}, this PyTorch is of {machine.wheel.runtime}"
        )
    elif hidden:
        return Check("cards", "bad", f"{count}: {hidden} hides them", f"unset {hidden}")
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
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = psutil.virtual_memory()
    yield Check(
        "host", "ok", f"{usable} processors, {memory.available / _GIB:.0f} of {memory.total / _GIB:.0f} GiB free"
    )
    limit, cores = host.limits()
    if cores is not None and cores < usable:
        yield Check(
            "cgroup", "note", f"{usable} processors are shown, {cores:.3g} may be used: lower recipe.data.workers"
        )
    if limit is not None and limit < memory.total:
        yield Check("cgroup", "note", f"{limit / _GIB:.1f} GiB of {memory.total / _GIB:.0f} GiB may be used")
    busy = os.getloadavg()[0] / usable
    if busy > _BUSY:
        yield Check("neighbours", "note", f"the load is {busy:.0%} of the processors: others slow what is measured")
    governor = host.facts()["governor"]
    if governor not in (None, "performance"):
        yield Check(
            "governor", "note", f"{governor}: processors start slow (sudo cpupower frequency-set -g performance)"
        )
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    state = "ok" if files >= _OPEN_FILES else "note" if files >= _FEWEST_FILES else "bad"
    raised = f"ulimit -n {min(max(most, _OPEN_FILES), 65536)}"
    more = "" if state == "ok" else f": many reading processes need more ({raised})"
    yield Check("open files", state, f"{files} at most{more}", raised)
    shared = Path("/dev/shm")
    if shared.exists():
        free = shutil.disk_usage(shared).free / _GIB
        words = f"{free:.1f} GiB free in {shared}, through which reading processes hand their batches"
        mend = f"sudo mount -o remount,size=8G {shared}  (in a container: docker run --shm-size=8g)"
        yield Check("shared memory", "ok" if free >= _SHARED_GIB else "bad", words, mend)


def _of_disks(**places: Path) -> Iterator[Check]:
    for name, place in places.items():
        kind = host.storage(place)
        free = kind["free_bytes"] / _GIB
        words = f"{free:,.0f} GiB free in {place}/, {kind['file_system'] or 'unknown'} file system"
        # Embedded runs need megabytes, reference data more than any check can know.
        state = "bad" if free < 1 else "ok" if free >= _FREE_GIB else "note"
        yield Check(f"disk for {name}", state, words, f"du -xsh {place} | sort -h")


def _of_data(data: Path) -> Iterator[Check]:
    """Every set that lies there; those that do not are no fault."""
    store, known = Store(data), catalogue.read()
    states = {name: store.state(source) for name, source in known.items()}
    there = [name for name, state in states.items() if state in ("there", "by hand")]
    yield Check(
        "data", "ok", f"{len(there)} of {len(known)} sets in {data}/" + (f": {', '.join(there)}" if there else "")
    )
    for name, state in states.items():
        if state == "begun":
            yield Check(name, "note", f"begun and not finished: timetrial data fetch {name} goes on")
        if state == "damaged":
            mend = f"rm -r {data / name} && timetrial data fetch {name}"
            yield Check(name, "bad", "damaged: files are missing or of another size", mend, Exit.DATA)


def _of_ranks(machine: Machine) -> Check:
    ranks = max(len(machine.usable), 2 if machine.name == "cpu" else 1)
    if ranks == 1:
        return Check("ranks", "ok", "one card: nothing to add up")
    try:
        speed = all_reduce.measure(machine.name, ranks)
    except RunError as error:
        return Check("ranks", "bad", str(error), f"python -P -m torch.distributed.run --standalone --nproc-per-node "
                     f"{ranks} -m timetrial.runner.all_reduce {machine.name}")  # fmt: skip
    return Check("ranks", "ok", f"{ranks} ranks add up a tensor, {speed:.1f} GB/s of bus bandwidth")


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
    """The checks for a script; a remedy only where something is bad."""
    return [asdict(check) | {"remedy": check.remedy if check.state == "bad" else ""} for check in checks]


def verdict(checks: Sequence[Check]) -> Exit:
    """0 where nothing is bad, else the device's code before that of data."""
    codes = {check.code for check in checks if check.state == "bad"}
    return Exit.TARGET_REACHED if not codes else Exit.DEVICE if Exit.DEVICE in codes else Exit.DATA
