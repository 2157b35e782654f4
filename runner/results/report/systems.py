"""Systems as the page names them, by GPU and number, and the table of systems and benchmarks with its baseline."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..analysis.groups import UNOFFICIAL, RunGroup
from ..parse.runs import Run

# Words of device names that do not tell devices apart, or only repeat the maker.
_NOISE = re.compile(r"(?i)nvidia|tesla|amd|instinct|geforce|google|sxm\d?|hbm\w*|accelerator|\(.*")
_CHIP = re.compile(r"\(([A-Z]+\d[^)]*)\)")  # "Blackwell GPU (B200-SXM-180GB)", but not "(400W)"


def gpu_name(accelerator: str) -> str:
    """Return the short name of a device, such as "V100 16GB" for "Tesla V100-SXM2-16GB"; empty if it is unknown."""
    chip = _CHIP.search(accelerator)
    full_name = chip[1] if chip else accelerator
    words = [word for word in re.split(r"[\s_-]+", full_name) if word and not _NOISE.fullmatch(word)]
    name = " ".join(words).partition("(")[0].strip()
    if name.lower() in ("", "na", "n/a", "none"):
        return ""
    return re.sub(r"(?i)^(tpu|cpu)(?=v?\d|\b)", lambda match: match[0].upper(), name)


def device_label(accelerator: str, number: int | None) -> str:
    """Return number and name, such as "8 × V100 16GB"; empty if the device is unknown."""
    name = gpu_name(accelerator)
    return f"{number} × {name}" if name and number else name


def maker_label(run: Run) -> str:
    """Return who submitted a run, such as "NVIDIA DGX"; empty for own runs."""
    if run.run_record is not None or run.submitter in ("", UNOFFICIAL):
        return ""
    submitter = run.submitter.title() if run.submitter.islower() else run.submitter
    return f"{submitter} DGX" if run.system.lower().startswith("dgx") else submitter


@dataclass(frozen=True)
class System:
    """A row of the table: devices, maker, and what else tells it apart from rows with the same devices."""

    devices: str
    gpu: str
    maker: str
    remark: str = ""

    @property
    def label(self) -> str:
        """The full name."""
        return ", ".join(part for part in (self.devices, self.maker, self.remark) if part)


@dataclass
class Lineup:
    """The systems and benchmarks of one round or scale; `groups` holds one run group per (system, workload).

    `is_ranked` says that its systems are ranked, not compared with the baseline.
    """

    title: str
    baseline: System
    systems: list[System]
    workloads: list[str]
    groups: dict[tuple[System, str], RunGroup]
    is_ranked: bool = False

    @cached_property
    def baselines(self) -> dict[str, System]:
        """The baseline of each benchmark: of the systems that ran it, the first, which are in order of their rank."""
        return {
            workload: next(system for system in self.systems if (system, workload) in self.groups)
            for workload in self.workloads
        }

    def groups_of(self, system: System) -> list[RunGroup]:
        """Return the run groups of a system."""
        return [group for (row, _), group in self.groups.items() if row == system]

    @property
    def pairs(self) -> list[tuple[RunGroup, RunGroup]]:
        """The group of each benchmark's baseline with each other group of the benchmark; none if they are ranked."""
        if self.is_ranked:
            return []
        return [
            (self.groups[self.baselines[workload], workload], self.groups[system, workload])
            for system in self.systems
            for workload in self.workloads
            if system != self.baselines[workload] and (system, workload) in self.groups
        ]

    @property
    def rounds(self) -> list[str]:
        """The rounds of its benchmarks."""
        return sorted({group.round for group in self.groups.values()})


def line_up(groups: Iterable[RunGroup], baseline: str = "") -> list[Lineup]:
    """Return a lineup for every scale of own runs and every round of published ones, the one with most runs first.

    Its baseline is the system that shares the most benchmarks with others, of several the one with the most converged
    runs, then the slowest; `baseline` is text in the name of another.
    """
    editions: dict[str, list[RunGroup]] = {}
    for group in groups:
        edition = group.runs[0].scale or (f"MLPerf {group.round}" if group.round else "MLPerf logs")
        editions.setdefault(edition, []).append(group)
    named = {edition: name_systems(same) for edition, same in editions.items()}
    lineups = [_line_up(edition, same, named[edition], baseline) for edition, same in editions.items()]
    return sorted(lineups, key=lambda lineup: -sum(len(group.runs) for group in lineup.groups.values()))


def name_systems(groups: Sequence[RunGroup]) -> dict[str, System]:
    """Return the system of each group by the group's title; groups of one workload have different systems."""
    systems = {group.title: _base_system(group) for group in groups}
    by_cell: dict[tuple[System, str], list[RunGroup]] = {}
    for group in groups:
        by_cell.setdefault((systems[group.title], group.workload), []).append(group)
    for (system, _), same in by_cell.items():
        if len(same) > 1:
            remarks = _remarks(same)
            for group, remark in zip(same, remarks, strict=True):
                systems[group.title] = replace(system, remark=remark)
    for (system, _), same in by_cell.items():
        if len(same) == 1 and (found := _remark_elsewhere(same[0], system, groups, systems)):
            systems[same[0].title] = replace(system, remark=found)
    return systems


def _remark_elsewhere(
    group: RunGroup, system: System, groups: Sequence[RunGroup], named: Mapping[str, System]
) -> str | None:
    """Return what tells the system of a group apart in other benchmarks, if it is one remark and holds of the group."""
    others = [named[other.title] for other in groups if other.system == group.system]
    remarks = {other.remark for other in others if replace(other, remark="") == system and other.remark}
    parts = {group.system, *group.setting.split(", ")}
    return remarks.pop() if len(remarks) == 1 and parts.issuperset(next(iter(remarks)).split(", ")) else None


def _base_system(group: RunGroup) -> System:
    run = group.runs[0]
    devices, maker = device_label(run.accelerator, run.num_accelerators), maker_label(run)
    return System(devices or ("" if maker else group.system) or "unknown device", gpu_name(run.accelerator), maker)


def _remarks(groups: Sequence[RunGroup]) -> list[str]:
    """Return what tells groups of one workload on the same devices apart: settings, else the system, else a number."""
    settings = [group.setting.split(", ") for group in groups]
    common = set(settings[0]).intersection(*settings[1:])
    remarks = [", ".join(part for part in setting if part not in common) for setting in settings]
    if len(set(remarks)) < len(groups):
        remarks = [
            ", ".join(part for part in (group.system, remark) if part)
            for group, remark in zip(groups, remarks, strict=True)
        ]
    if len(set(remarks)) < len(groups):
        remarks = [f"{remark} ({number})" for number, remark in enumerate(remarks, start=1)]
    return remarks


def _line_up(title: str, groups: Sequence[RunGroup], names: dict[str, System], wanted: str) -> Lineup:
    cells = {(names[group.title], group.workload): group for group in groups}
    workloads = sorted({workload for _, workload in cells})
    rivals = {workload: sum(other == workload for _, other in cells) - 1 for workload in workloads}
    systems = list(dict.fromkeys(system for system, _ in cells))

    def rank(system: System) -> tuple[bool, int, int, float]:
        own = [(workload, group) for (row, workload), group in cells.items() if row == system]
        shared, runs = sum(rivals[workload] for workload, _ in own), sum(len(group.converged_runs) for _, group in own)
        minutes = math.prod(group.mean_minutes.estimate if group.converged_runs else 1.0 for _, group in own)
        return bool(wanted) and has_name(system, (group for _, group in own), wanted), shared, runs, minutes

    ranks = {system: rank(system) for system in systems}
    systems.sort(key=ranks.__getitem__, reverse=True)
    is_published = all(group.round and group.runs[0].run_record is None for group in groups)
    is_ranked = is_published and not wanted and max(rivals.values()) > 1
    return Lineup(title, systems[0], systems, workloads, cells, is_ranked)


def has_name(system: System, groups: Iterable[RunGroup], wanted: str) -> bool:
    """Return whether the name of the system contains the text, or the text is `system` of one of its groups."""

    def normalized(text: str) -> str:
        return " ".join(text.lower().replace("×", "x").split())

    text = normalized(wanted)
    return text in normalized(system.label) or text in (normalized(group.system) for group in groups)
