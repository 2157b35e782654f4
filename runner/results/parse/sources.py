"""Find logs and read them as runs: run directories of timetrial, published result trees, single log files."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ...core.found_files import PassOver, UnreadableFile, as_name, make_visible, read_json, read_text
from ...record.record_file import read_record
from ...record.run_record import RunClass, RunRecord, RunState
from ...record.validity import CLOCK
from . import rules
from .mllog import parse_literal, read_log, to_float
from .run_reader import count_runs, read_run
from .runs import Run
from .system_description import apply_system_description

_ROUND = re.compile(r"(?:.*(?:results|training|mlperf)[_-])?v?(\d\.\d)(?:\.0)?(?:[_-].*)?", re.IGNORECASE)
_RESULT_FILE = re.compile(r"result_[\w-]+\.(txt|log|out)(\.(gz|xz|bz2))?")
# Files next to logs that are no logs, although some contain the marker as text.
_OTHER_SUFFIXES = {".py", ".json", ".csv", ".md", ".html", ".yaml", ".yml", ".sh", ".cc", ".cu", ".cpp", ".h", ".ipynb"}
_OTHER_SUFFIXES |= {".pt", ".npz", ".tar", ".zip", ".pdf", ".png", ".svg", ".patch", ".diff"}
_FILES_OF_A_RUN = {"status.json", "quality.csv"}  # of one that trained; its log is there before both
_MAX_SYSTEM_FOLDERS = 18  # searched for the description of a published system


# What numbers at the edge of any type can raise; the log is then passed over.
_WITH_RUN_STOP = (RunState.TARGET_REACHED, RunState.TARGET_NOT_REACHED)
_LOG_ERRORS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class LogLocation:
    """A log file, the folder that was searched, and what the names of its folders say."""

    path: Path
    base: Path
    round: str = ""
    submitter: str = ""
    system: str = ""
    benchmark: str = ""


def ignore(error: UnreadableFile) -> None:
    """Pass over a file without reporting it."""


def read_runs(paths: Iterable[Path], *, needed: bool = True, pass_over: PassOver = ignore) -> list[Run]:
    """Return all runs at or below `paths`, in order of path; raise `DataError` if `needed` and there are none.

    `pass_over` receives the error of each file that cannot be used.
    """
    locations: list[LogLocation] = []
    for path in paths:
        if not path.exists():
            raise DataError(
                f"{make_visible(str(path))} does not exist: pass run directories, published result trees or log files."
            )
        locations += find_logs(path, pass_over)
    unique = list({location.path.resolve(): location for location in locations}.values())
    companions = Companions(pass_over)
    runs = [run for location in unique if (run := _read_location(location, companions)) is not None]
    if needed and not runs:
        require_results(paths, [])
    return runs


def require_results(paths: Iterable[Path], unreadable: Sequence[UnreadableFile]) -> None:
    """Raise the first error of files that cannot be used, else one that says that there are no logs at `paths`."""
    for error in unreadable:
        raise error
    names = make_visible(", ".join(map(str, paths)))
    raise DataError(f"No MLPerf log was found in {names}: pass result_*.txt files or their folders.")


def find_logs(path: Path, pass_over: PassOver) -> Iterator[LogLocation]:
    """Yield the logs at or below `path`; in a folder with result_* files only these are logs.

    `pass_over` receives an error for each run directory that was copied without its log.
    """
    if not path.is_dir():
        if path.is_file():  # a pipe would block forever
            yield _locate(path, path.parent)
        return
    for folder, subfolders, names in os.walk(path):
        subfolders.sort()
        results = [name for name in names if _RESULT_FILE.fullmatch(name)]
        if not results and set(names) >= _FILES_OF_A_RUN:
            pass_over(UnreadableFile(Path(folder), "its result_*.txt is missing"))
        candidates = results or [name for name in names if _may_be_log(name)]
        for name in sorted(candidates, key=_natural_sort_key):
            if Path(folder, name).is_file():
                yield _locate(Path(folder, name), path)


def _may_be_log(name: str) -> bool:
    return not name.startswith((".", "std")) and Path(name).suffix.lower() not in _OTHER_SUFFIXES


def _natural_sort_key(name: str) -> list[Any]:
    parts = re.split(r"([0-9]{1,18})", name)  # text and numbers in turn
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _locate(path: Path, base: Path) -> LogLocation:
    """Return what the folder names say: [round/]submitter/[results/]system/benchmark/result_*.txt."""
    folders = [as_name(part) for part in path.resolve().parent.parts if part not in ("results", "/")]
    round_ = next((f"v{match[1]}" for part in reversed(folders) if (match := _ROUND.fullmatch(part))), "")
    benchmark = folders[-1] if folders and rules.is_benchmark(folders[-1]) else ""
    if not benchmark:
        return LogLocation(path, base, round_)
    system = folders[-2] if len(folders) > 1 else ""
    submitter = folders[-3] if len(folders) > 2 else ""
    return LogLocation(path, base, round_, submitter, system, rules.canonical_benchmark(benchmark))


class Companions:
    """The files beside logs, each read once; `pass_over` receives the errors of those that cannot be used."""

    def __init__(self, pass_over: PassOver) -> None:
        self.pass_over = pass_over
        self._objects: dict[Path, dict[str, Any]] = {}
        self._descriptions: dict[Path, dict[str, Any]] = {}

    def scaling_factor(self, folder: Path) -> float | None:
        """Return the factor that MLPerf applied to the scores of a folder of logs, None without one."""
        factor = to_float(self._read_object(folder / "scaling.json").get("scaling_factor"))
        return factor if factor > 0 else None

    def system_description(self, location: LogLocation) -> dict[str, Any]:
        """Return systems/<system>.json of a published tree, as in v0.5, v0.6 or later; empty if there is none."""
        folder = location.path.parent
        if folder not in self._descriptions:
            self._descriptions[folder] = next(filter(None, map(self._read_object, _description_paths(location))), {})
        return self._descriptions[folder]

    def _read_object(self, path: Path) -> dict[str, Any]:
        if path not in self._objects:
            try:
                self._objects[path] = read_json_object(path) if path.exists() else {}
            except UnreadableFile as error:
                self.pass_over(error)
                self._objects[path] = {}
            except OSError:  # a name that no file can have
                self._objects[path] = {}
        return self._objects[path]


def _read_location(location: LogLocation, companions: Companions) -> Run | None:
    """Return the run in a log, None if the file is no log or cannot be used."""
    try:
        log = read_log(location.path)
        if not any(
            entry.key in ("run_start", "eval_accuracy", "run_stop", "submission_benchmark") for entry in log.entries
        ):
            return None
        if (num_runs := count_runs(log)) > 1:
            reason, remedy = f"it holds {num_runs} runs", "write each run to a file of its own"
            companions.pass_over(UnreadableFile(location.path, reason, remedy, "be compared"))
            return None
        run = read_run(log, round_=location.round, benchmark=location.benchmark)
    except _LOG_ERRORS as error:
        companions.pass_over(UnreadableFile(location.path, f"{type(error).__name__}: {error}"))
        return None
    if run is None:
        return None
    if location.submitter:
        run.submitter, run.system = location.submitter, location.system
    try:
        record = read_record(location.path.parent)
    except UnreadableFile as error:
        record = None
        run.inferred.append(f"the run record cannot be read, only the log is used ({error})")
    if record is not None:
        if record.state in _WITH_RUN_STOP and not any(entry.key == "run_stop" for entry in log.entries):
            reason = f'it has no run_stop, but its run record says "{record.state}"'
            companions.pass_over(UnreadableFile(location.path, reason, "copy it again", "be compared"))
            return None
        if sentence := record.flags.get(CLOCK):  # its time is not that of its work
            companions.pass_over(UnreadableFile(location.path, sentence, "run it again", "be compared"))
            return None
        _apply_record(run, record)
    else:
        apply_system_description(run, companions.system_description(location), log.entries)
    run.scaling_factor = companions.scaling_factor(location.path.parent)
    run.path = _relative_path(location)
    return run


def _relative_path(location: LogLocation) -> Path:
    is_below = location.base in location.path.parents
    return Path(make_visible(os.path.relpath(location.path, location.base) if is_below else str(location.path)))


def _apply_record(run: Run, record: RunRecord) -> None:
    """Add what the run record states beyond the log."""
    try:
        _apply_config(run, record.config)
    except (KeyError, TypeError, AttributeError):
        run.inferred.append("the configuration in the run record is incomplete: only the log is used")
        return
    run.run_record = record
    if record.run_class != RunClass.CLEAN:
        run.flags.append(record.run_class.value)
    run.flags += record.flags
    if record.data_digest is not None:
        run.execution["data"] = as_name(record.data_digest)
    run.host, run.boot = map(as_name, record.attempts[-1].host) if record.attempts else ("", "")
    run.gpu_ids = _gpu_ids(record.environment)
    packages = record.environment.get("packages")
    run.software = as_name(f"torch {packages.get('torch', 'unknown')}") if isinstance(packages, dict) else ""


def _gpu_ids(environment: Mapping[str, Any]) -> frozenset[str]:
    gpus = environment.get("gpus")
    ids = [gpu.get("id") for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return frozenset(as_name(name) for name in ids if name)


def _apply_config(run: Run, config: Mapping[str, Any]) -> None:
    """Set what the configuration states; `read_record` has checked its types. Raises KeyError for a missing setting."""
    run.round = as_name(re.sub(r"^v(\d)(\d)$", r"v\1.\2", config["round"]["name"]))
    run.submitter, run.system = as_name(config["submission"]["org"]), as_name(config["system"])
    run.accelerator, run.num_accelerators = as_name(config["accelerator"]["name"]), config["gpus"]
    run.precision = as_name(config["precision"]["name"])
    run.scale = as_name(config["recipe"]["scale"])
    run.benchmark = rules.canonical_benchmark(config["workload"]["benchmark"])
    run.execution["peer_to_peer"] = config["peer_to_peer"]
    if config.get("engine", {}).get("deterministic"):
        run.execution["deterministic"] = True
    if config.get("launcher", {}).get("reuse_process"):
        run.execution["reuse_process"] = True


def _description_paths(location: LogLocation) -> list[Path]:
    """Return where the description of the system of a log can be."""
    folders: list[Path] = []
    for folder in location.path.resolve().parents:
        folders += [folder / "systems", folder / "systems" / location.round / location.submitter, folder]
        if len(folders) > _MAX_SYSTEM_FOLDERS:
            break
    return [folder / f"{location.system}{suffix}" for folder in folders for suffix in (".json", ".entry.json")]


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file or in NVIDIA's v0.6 form; raise `UnreadableFile` for anything else."""
    try:
        value = read_json(path)
    except UnreadableFile:
        value = _parse_nvidia_v06(read_text(path))
        if value is None:
            raise
    if not isinstance(value, dict):
        raise UnreadableFile(path, "it holds no JSON object")
    return value


def _parse_nvidia_v06(text: str) -> dict[str, Any] | None:
    """Parse a line `entry: {"value": "{'hardware': ..., 'nodes': \"{...}\"}"}`: Python literals inside JSON."""
    match = re.search(r"^entry: (\{.*\})[ \t]*$", text, re.MULTILINE)
    try:
        entry = parse_literal(json.loads(match[1])["value"]) if match else None
        return {**entry, "nodes": parse_literal(entry["nodes"])} if entry else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
