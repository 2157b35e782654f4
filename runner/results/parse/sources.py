"""Find logs and read them as runs: run directories of timetrial, published result trees, single log files."""

import ast
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ...record.record_file import RecordError, read_record
from ...record.run_record import RunClass, RunRecord
from . import rules
from .mllog import read_log
from .runs import Run, read_run

_ROUND = re.compile(r"(?:.*(?:results|training|mlperf)[_-])?v?(\d\.\d)(?:\.0)?(?:[_-].*)?", re.IGNORECASE)
_RESULT_FILE = re.compile(r"result_[\w-]+\.(txt|log|out)(\.(gz|xz|bz2))?")
# Files next to logs that are no logs, although some contain the marker as text.
_OTHER_SUFFIXES = {".py", ".json", ".csv", ".md", ".html", ".yaml", ".yml", ".sh", ".cc", ".cu", ".cpp", ".h", ".ipynb"}
_OTHER_SUFFIXES |= {".pt", ".npz", ".tar", ".zip", ".pdf", ".png", ".svg", ".patch", ".diff"}
_MAX_SYSTEM_FOLDERS = 18  # searched for the description of a published system


@dataclass(frozen=True)
class LogLocation:
    """A log file, the folder that was searched, and what the names of its folders say."""

    path: Path
    base: Path
    round: str = ""
    submitter: str = ""
    system: str = ""
    benchmark: str = ""


def read_runs(paths: Iterable[Path], *, needed: bool = True) -> list[Run]:
    """Return all runs at or below `paths`, in order of path; raise `DataError` if `needed` and there are none."""
    locations: list[LogLocation] = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path} does not exist: pass run directories, published result trees or log files.")
        locations += find_logs(path)
    unique = list({location.path.resolve(): location for location in locations}.values())
    read = partial(_read_location, descriptions={})
    runs = [run for run in map(read, unique) if run is not None]
    if needed and not runs:
        raise DataError(
            f"No MLPerf log was found in {', '.join(map(str, paths))}: pass result_*.txt files or their folders."
        )
    return runs


def find_logs(path: Path) -> Iterator[LogLocation]:
    """Yield the logs at or below `path`; in a folder with result_* files only these are logs."""
    if not path.is_dir():
        if path.is_file():  # a pipe would block forever
            yield _locate(path, path.parent)
        return
    for folder, subfolders, names in os.walk(path):
        subfolders.sort()
        results = [name for name in names if _RESULT_FILE.fullmatch(name)]
        candidates = results or [name for name in names if _may_be_log(name)]
        for name in sorted(candidates, key=_natural_sort_key):
            if Path(folder, name).is_file():
                yield _locate(Path(folder, name), path)


def _may_be_log(name: str) -> bool:
    return not name.startswith((".", "std")) and Path(name).suffix.lower() not in _OTHER_SUFFIXES


def _natural_sort_key(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _locate(path: Path, base: Path) -> LogLocation:
    """Return what the folder names say: [round/]submitter/[results/]system/benchmark/result_*.txt."""
    folders = [part for part in path.resolve().parent.parts if part not in ("results", "/")]
    round_ = next((f"v{match[1]}" for part in reversed(folders) if (match := _ROUND.fullmatch(part))), "")
    benchmark = folders[-1] if folders and rules.is_benchmark(folders[-1]) else ""
    if not benchmark:
        return LogLocation(path, base, round_)
    system = folders[-2] if len(folders) > 1 else ""
    submitter = folders[-3] if len(folders) > 2 else ""
    return LogLocation(path, base, round_, submitter, system, rules.canonical_benchmark(benchmark))


def _read_location(location: LogLocation, descriptions: dict[Path, dict[str, Any]]) -> Run | None:
    """Return the run in a log, None if the file is no log; `descriptions` keeps those of systems by folder."""
    log = read_log(location.path)
    if not any(
        entry.key in ("run_start", "eval_accuracy", "run_stop", "submission_benchmark") for entry in log.entries
    ):
        return None
    run = read_run(log, round_=location.round, benchmark=location.benchmark)
    if run is None:
        return None
    if location.submitter:
        run.submitter, run.system = location.submitter, location.system
    try:
        record = read_record(location.path.parent)
    except RecordError as error:
        record = None
        run.inferred.append(f"the run record cannot be read, only the log is used ({error})")
    if record is not None:
        _apply_record(run, record)
    else:
        folder = location.path.parent
        if folder not in descriptions:
            descriptions[folder] = _read_system_description(location)
        _apply_system_description(run, descriptions[folder])
    run.path = _relative_path(location)
    return run


def _relative_path(location: LogLocation) -> Path:
    if location.base not in location.path.parents:
        return location.path
    return Path(os.path.relpath(location.path, location.base))


def _apply_record(run: Run, record: RunRecord) -> None:
    """Add what the run record states beyond the log."""
    try:
        _apply_config(run, record.config)
    except (KeyError, TypeError, ValueError, AttributeError):
        run.inferred.append("the configuration in the run record is incomplete: only the log is used")
        return
    run.run_record = record
    if record.run_class != RunClass.CLEAN:
        run.flags.append(record.run_class.value)
    run.flags += record.flags
    run.host = record.attempts[-1].hostname if record.attempts else ""
    packages = record.environment.get("packages")
    run.software = f"torch {packages.get('torch', 'unknown')}" if isinstance(packages, dict) else ""


def _apply_config(run: Run, config: Mapping[str, Any]) -> None:
    run.round = re.sub(r"^v(\d)(\d)$", r"v\1.\2", config["round"]["name"])
    run.submitter, run.system = str(config["submission"]["org"]), str(config["system"])
    run.accelerator, run.num_accelerators = str(config["accelerator"]["name"]), int(config["gpus"])
    run.precision = str(config["precision"]["name"])
    run.scale = str(config["recipe"].get("scale") or config["scale"]["name"])  # the latter in older records
    run.benchmark = str(config["workload"]["benchmark"])
    run.execution["peer_to_peer"] = config.get("peer_to_peer", True)


def _apply_system_description(run: Run, system: Mapping[str, Any]) -> None:
    """Set the accelerators of a published system from its description, in the form of v0.5, v0.6 or later."""
    if not system:
        return
    nodes = system.get("nodes")
    node = nodes[0] if isinstance(nodes, list) and nodes and isinstance(nodes[0], dict) else nodes
    merged = {**system} | (node if isinstance(node, dict) else {})
    fields = {key.replace(" ", "_"): value for key, value in merged.items()}
    accelerator = str(fields.get("accelerator_model_name") or fields.get("accelerator") or "")
    run.accelerator = "" if accelerator.upper() == "N/A" else accelerator
    per_node = _first_integer(fields.get("accelerators_per_node", fields.get("num_accelerators")))
    num_nodes = _first_integer(fields.get("number_of_nodes", fields.get("num_nodes"))) or 1
    run.num_accelerators = per_node * num_nodes if per_node is not None else None
    run.software = str(fields.get("framework") or "")


def _read_system_description(location: LogLocation) -> dict[str, Any]:
    """Return systems/<system>.json of a published tree, as in v0.5, v0.6 or later; empty if there is none."""
    names = [f"{location.system}.json", f"{location.system}.entry.json"]
    folders: list[Path] = []
    for folder in location.path.resolve().parents:
        folders += [folder / "systems", folder / "systems" / location.round / location.submitter, folder]
        if len(folders) > _MAX_SYSTEM_FOLDERS:
            break
    for folder in folders:
        for name in names:
            description = read_json_object(folder / name)
            if description:
                return description
    return {}


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file or in NVIDIA's v0.6 form; empty if the file is absent, damaged or no object."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return _parse_nvidia_v06(text)
    return value if isinstance(value, dict) else {}


def _parse_nvidia_v06(text: str) -> dict[str, Any]:
    """Parse a line `entry: {"value": "{'hardware': ..., 'nodes': \"{...}\"}"}`: Python literals inside JSON."""
    match = re.search(r"^entry: (\{.*\})\s*$", text, re.MULTILINE)
    try:
        entry = ast.literal_eval(json.loads(match[1])["value"]) if match else {}
        return dict(entry) | {"nodes": ast.literal_eval(entry["nodes"])} if entry else {}
    except (ValueError, SyntaxError, KeyError, TypeError):
        return {}


def _first_integer(value: Any) -> int | None:
    match = re.search(r"\d+", str(value)) if value is not None else None
    return int(match[0]) if match else None
