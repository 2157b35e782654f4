"""Studies for batch systems: a manifest of elements, each brought to one result, however often it is asked for.

A study is a folder: `manifest.txt` has one line an element, its name and its overrides; `runs/<name>/` is its run;
`attempts/<name>/<n>/` what became of attempts before that one. What there is to do follows from these files alone, so
that any process on any node may be killed at any time and any other may go on.
"""

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import initialize_config_module
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from ..config import schema
from ..core.atomic_files import to_json, write_atomically
from ..core.error_messages import format_error
from ..core.errors import ConfigurationError, Exit, OutOfMemory, RunDirLocked, RunError
from ..record.run_dir import RunDir, slug
from . import rendezvous

# Ends that are a result, whether the target was reached or not; a loss that diverged will diverge again.
_RESULTS = (Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED, Exit.TIME_LIMIT, Exit.DIVERGED, Exit.NOT_COMPLIANT)
# Failures that a further attempt on the same node may not meet again.
_AGAIN_HERE = (Exit.OUT_OF_MEMORY, Exit.LOST_RANK, Exit.FAILURE)
_OF_THE_STUDY = {"run_dir", "resume", "runs"}
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Element:
    """One line of a manifest."""

    index: int
    name: str
    overrides: tuple[str, ...]

    def value(self, key: str, default: str) -> str:
        """What the element's overrides give `key`, a name without dots."""
        return next((word.split("=", 1)[1] for word in self.overrides if word.startswith(f"{key}=")), default)


@dataclass(frozen=True)
class State:
    """How far an element has come: `done`, `running`, `waiting` (for a first or a further attempt), or `failed`.

    `status` is that of its run, or else of its last attempt; `failures` are all attempts that failed.
    """

    word: str
    status: dict[str, Any] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)


class Study:
    """A study's folder; `most_attempts` is after how many failures an element is given up."""

    def __init__(self, path: Path, most_attempts: int) -> None:
        self.path = path
        self.runs = path / "runs"
        self._manifest = path / "manifest.txt"
        self._most_attempts = most_attempts

    def elements(self) -> list[Element]:
        """The manifest's elements in its order."""
        if not self._manifest.exists():
            raise ConfigurationError(f"{self._manifest} is missing: make it with timetrial batch plan {self.path} ...")
        lines = [shlex.split(line) for line in self._manifest.read_text().splitlines()]
        return [Element(index, line[0], tuple(line[1:])) for index, line in enumerate(lines)]

    def plan(self, overrides: Sequence[str]) -> None:
        """Writes the manifest of the sweep over `overrides`, each element checked; refuses to write another one."""
        elements = _expanded(overrides)
        text = "".join(f"{shlex.join([element.name, *element.overrides])}\n" for element in elements)
        if self._manifest.exists():
            if self._manifest.read_text() != text:
                raise ConfigurationError(f"{self._manifest} plans other runs: name another folder for these.")
            return
        for element in elements:
            _checked(element)
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self._manifest, text)

    def folder(self, element: Element) -> RunDir:
        """Where the element runs; its log's name, which tells the seed, is of no concern here."""
        return RunDir(self.runs / element.name, seed=0)

    def state(self, element: Element, *, mine: bool = False) -> State:
        """How far an element has come; with `mine`, this process holds its folder."""
        folder, failures = self.folder(element), self._set_aside(element)
        status = folder.status()
        code, open_ = status.get("exit_code"), status.get("state") == "running"
        if not mine and folder.in_use():
            return State("running", status, failures)
        if code in _RESULTS and not open_:
            return State("done", status, failures)
        if code not in (None, Exit.STOPPED) and not open_:
            failures = [*failures, status]
        given_up = len(failures) >= self._most_attempts
        return State("failed" if given_up else "waiting", status or (failures[-1] if failures else {}), failures)

    def run(self, element: Element, console: Console) -> Exit:
        """Brings the element to its end, or as far as this process can; raises the error of a failure, kept before."""
        while True:
            if (end := self._ended(element)) is not None:
                console.print(f"{element.name} has its result: nothing to do.", soft_wrap=True, markup=False)
                return end
            from .launcher import launch

            try:
                code, _ = launch(self._composed(element), console)
            except RunDirLocked:
                raise
            except (RunError, HydraException, OmegaConfBaseException) as error:
                code = getattr(error, "exit_code", Exit.CONFIGURATION)
                told = self.folder(element).status().get("exit_code") == code
                if rendezvous.is_first() and not told:
                    self._keep_failure(element, {"exit_code": int(code), "error": format_error(error)})
                if code not in _AGAIN_HERE:
                    raise
            if code not in _AGAIN_HERE:
                return code

    def _ended(self, element: Element) -> Exit | None:
        """The exit code of an element that has its result; else None, and its folder is ready for an attempt."""
        folder = self.folder(element)
        with folder.held() if rendezvous.is_first() and folder.path.exists() else nullcontext():
            state = self.state(element, mine=True)
            if state.word == "done":
                return Exit(state.status["exit_code"])
            if state.word == "failed":
                raise RunError(
                    f"{element.name} has failed {len(state.failures)} times: mend what is said here, then raise "
                    f"--attempts. {state.failures[-1]['error']}"
                )
            if rendezvous.is_first() and len(state.failures) > len(self._set_aside(element)):
                if state.status["exit_code"] == Exit.OUT_OF_MEMORY:  # with a smaller micro-batch it will be another run
                    self._next_attempt(element).parent.mkdir(parents=True, exist_ok=True)
                    folder.path.rename(self._next_attempt(element))
                else:
                    self._keep_failure(element, state.status)
                    folder.update_status(exit_code=None, state="stopped")
        return None

    def _composed(self, element: Element) -> DictConfig:
        """The element's configuration on this machine, with the micro-batch that its attempts have left over."""
        from . import job

        node = schema.compose(job.with_accelerator(element.overrides))
        node.run_dir, node.resume = str(self.runs / element.name), True
        halvings = sum(failure["exit_code"] == Exit.OUT_OF_MEMORY for failure in self._set_aside(element))
        if halvings:
            node.tuning.micro_batch_size = schema.micro_batch(schema.check(node), halvings)
            if not node.tuning.micro_batch_size:
                raise OutOfMemory(f"{element.name} does not fit into memory sample by sample: use a larger card.")
        return node

    def _set_aside(self, element: Element) -> list[dict[str, Any]]:
        """What earlier attempts ended with, in their order."""
        folders = (self.path / "attempts" / element.name).glob("*/status.json")
        return [RunDir(file.parent, seed=0).status() for file in sorted(folders, key=lambda f: int(f.parent.name))]

    def _next_attempt(self, element: Element) -> Path:
        return self.path / "attempts" / element.name / str(len(self._set_aside(element)) + 1)

    def _keep_failure(self, element: Element, status: dict[str, Any]) -> None:
        folder = self._next_attempt(element)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "status.json", to_json(status))


def _expanded(overrides: Sequence[str]) -> list[Element]:
    """The elements of a sweep in Hydra's order, named by number and by what tells them apart."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    schema.register()
    with initialize_config_module("timetrial.conf", version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parsed = parser.parse_overrides(list(overrides))
    taken = _OF_THE_STUDY & {override.key_or_group for override in parsed}
    if taken:
        raise ConfigurationError(f"{min(taken)} is the study's own to choose: leave it out.")
    batches = BasicSweeper.split_arguments(parsed, None)[0]
    shared = set.intersection(*map(set, batches))
    digits = len(str(len(batches) - 1))
    elements = []
    for index, batch in enumerate(batches):
        apart = "-".join(slug(word) for word in batch if word not in shared)
        name = f"{index:0{digits}}-{apart}"[:_LONGEST_NAME].rstrip("-")
        elements.append(Element(index, name, tuple(batch)))
    return elements


def _checked(element: Element) -> None:
    """Refuses an element that no machine could run; which card it gets is not known yet."""
    card = [] if element.value("accelerator", "") else ["accelerator=auto"]
    try:
        schema.check(schema.compose([*card, *element.overrides]))
    except (RunError, HydraException, OmegaConfBaseException) as error:
        raise ConfigurationError(f"{shlex.join(element.overrides)}: {format_error(error)}") from error
