"""From paths to runs: our own run folders, published result trees, single logs."""

import ast
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...core.errors import DataError
from . import rules
from .mllog import read_log
from .runs import Run, read_run

_ROUND = re.compile(r"(?:.*(?:results|training|mlperf)[_-])?v?(\d\.\d)(?:\.0)?(?:[_-].*)?", re.IGNORECASE)
_RESULT = re.compile(r"result_[\w-]+\.(txt|log|out)(\.(gz|xz|bz2))?")
# Files that lie beside logs and are none, though some hold the marker as text.
_NO_LOGS = {".py", ".json", ".csv", ".md", ".html", ".yaml", ".yml", ".sh", ".cc", ".cu", ".cpp", ".h", ".ipynb", ".pt"}
_NO_LOGS |= {".npz", ".tar", ".zip", ".pdf", ".png", ".svg", ".patch", ".diff"}


@dataclass(frozen=True)
class Place:
    """A log and what its place says of it."""

    path: Path
    base: Path
    round: str = ""
    submitter: str = ""
    system: str = ""
    benchmark: str = ""


def gather(paths: Iterable[Path], *, needed: bool = True) -> list[Run]:
    """All runs at or below `paths`, in order of their paths; raises `DataError` where there are none but `needed`."""
    places: list[Place] = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path} does not exist: name run folders, published result trees or log files.")
        places += find_logs(path)
    unique = list({place.path.resolve(): place for place in places}.values())
    found = [run for run in map(_read, unique) if run is not None]
    if needed and not found:
        raise DataError(
            f"No MLPerf log was found in {', '.join(map(str, paths))}: name result_*.txt files or their folders."
        )
    return found


def find_logs(path: Path) -> Iterator[Place]:
    """Places of the logs at or below `path`; in a folder with result_* files these are its logs, and no others."""
    if not path.is_dir():
        if path.is_file():  # and no pipe, which would never end
            yield _place(path, path.parent)
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        results = [name for name in names if _RESULT.fullmatch(name)]
        candidates = results or [name for name in names if _may_be_log(name)]
        for name in sorted(candidates, key=_natural):
            if Path(folder, name).is_file():
                yield _place(Path(folder, name), path)


def _may_be_log(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() not in _NO_LOGS and not name.startswith("std")


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _place(path: Path, base: Path) -> Place:
    """Published results lie as [round/]submitter/[results/]system/benchmark/result_*.txt."""
    folders = [part for part in path.resolve().parent.parts if part not in ("results", "/")]
    round_ = next((f"v{found[1]}" for part in reversed(folders) if (found := _ROUND.fullmatch(part))), "")
    benchmark = folders[-1] if folders and rules.is_benchmark(folders[-1]) else ""
    if not benchmark:
        return Place(path, base, round_)
    system = folders[-2] if len(folders) > 1 else ""
    submitter = folders[-3] if len(folders) > 2 else ""
    return Place(path, base, round_, submitter, system, rules.benchmark_of(benchmark))


def _read(place: Place) -> Run | None:
    status = _own_status(place.path.parent)
    log = read_log(place.path)
    if not any(event.key in ("run_start", "eval_accuracy", "run_stop", "submission_benchmark") for event in log.events):
        return None
    run = read_run(log, round_=place.round, benchmark=place.benchmark)
    if run is None:
        return None
    if place.submitter:
        run.submitter, run.system = place.submitter, place.system
    if status is not None:
        _own(run, place.path.parent, status)
    else:
        _describe_system(run, place)
    run.path = Path(os.path.relpath(place.path, place.base)) if place.base in place.path.parents else place.path
    return run


def _own_status(folder: Path) -> dict[str, Any] | None:
    try:
        status = json.loads((folder / "status.json").read_text())
        return status if isinstance(status, dict) and (folder / "config.yaml").exists() else None
    except (OSError, ValueError):
        return None


def _own(run: Run, folder: Path, status: dict[str, Any]) -> None:
    """What a run folder of ours tells beyond its log."""
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        _take_config(run, config)
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        run.inferred.append("config.yaml of the run folder cannot be read: the log stands alone")
        return
    run.own = status
    if status.get("class", "clean") != "clean":
        run.flags.append(str(status["class"]))
    run.flags += status.get("flags") or []
    packages = json_object(folder / "system.json").get("packages")
    run.software = f"torch {packages.get('torch', 'unknown')}" if isinstance(packages, dict) else ""


def _take_config(run: Run, config: dict[str, Any]) -> None:
    run.round = re.sub(r"^v(\d)(\d)$", r"v\1.\2", config["round"]["name"])
    run.submitter, run.system = config["submission"]["org"], config["system"]
    run.accelerator, run.num_accelerators = config["accelerator"]["name"], config["gpus"]
    run.precision, run.scale = config["precision"]["name"], config["scale"]["name"]
    run.benchmark = config["workload"]["benchmark"]
    run.stack["peer_to_peer"] = config.get("peer_to_peer", True)


def _describe_system(run: Run, place: Place) -> None:
    """Cards of a published system, from systems/<system>.json in the forms of v0.5, v0.6 and later."""
    system = _system_file(place)
    if not system:
        return
    nodes = system.get("nodes")
    node = nodes[0] if isinstance(nodes, list) and nodes and isinstance(nodes[0], dict) else nodes
    facts = {key.replace(" ", "_"): value for key, value in (system | (node if isinstance(node, dict) else {})).items()}
    named = str(facts.get("accelerator_model_name") or facts.get("accelerator") or "")
    run.accelerator = "" if named.upper() == "N/A" else named
    each = _whole(facts.get("accelerators_per_node", facts.get("num_accelerators")))
    count = _whole(facts.get("number_of_nodes", facts.get("num_nodes"))) or 1
    run.num_accelerators = each * count if each is not None else None
    run.software = str(facts.get("framework") or "")


def _system_file(place: Place) -> dict[str, Any]:
    names = [f"{place.system}.json", f"{place.system}.entry.json"]
    folders: list[Path] = []
    for folder in place.path.resolve().parents:
        folders += [folder / "systems", folder / "systems" / place.round / place.submitter, folder]
        if len(folders) > 18:
            break
    for folder in folders:
        for name in names:
            found = json_object(folder / name)
            if found:
                return found
    return {}


def json_object(path: Path) -> dict[str, Any]:
    """What a JSON file holds, in NVIDIA's v0.6 form as well; empty where it is absent, damaged or no object."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return _entry_of_v06(text)
    return found if isinstance(found, dict) else {}


def _entry_of_v06(text: str) -> dict[str, Any]:
    """NVIDIA's v0.6 form: a line `entry: {"value": "{'hardware': ..., 'nodes': \"{...}\"}"}`, Python's text in JSON."""
    found = re.search(r"^entry: (\{.*\})\s*$", text, re.MULTILINE)
    try:
        entry = ast.literal_eval(json.loads(found[1])["value"]) if found else {}
        return dict(entry) | {"nodes": ast.literal_eval(entry["nodes"])} if entry else {}
    except (ValueError, SyntaxError, KeyError, TypeError):
        return {}


def _whole(value: Any) -> int | None:
    found = re.search(r"\d+", str(value)) if value is not None else None
    return int(found[0]) if found else None
