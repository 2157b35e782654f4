"""Runs in the folder layout of MLPerf submissions, as the official result_summarizer and rcp_checker read it."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...core.atomic_files import to_json, write_atomically
from ...core.errors import ConfigurationError
from ...record.run_dir import slug
from ..analysis.groups import Cell
from ..parse import sources


def export(cells: Iterable[Cell], folder: Path) -> list[Path]:
    """Writes DIR/<submitter>/{systems/<system>.json,results/<system>/<benchmark>/result_<n>.txt}; returns submitters.

    Raises `ConfigurationError` where `folder` holds something already: an export never mixes with another one.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty: name a new folder for the export.")
    submitters: dict[Path, None] = {}
    for cell in cells:
        home = folder / slug(cell.submitter)
        system = slug(f"{cell.system} {cell.setting}")
        logs = home / "results" / system / cell.benchmark
        logs.mkdir(parents=True)
        (home / "systems").mkdir(exist_ok=True)
        for number, run in enumerate(cell.runs):
            shutil.copyfile(run.source, logs / f"result_{number}.txt")
        write_atomically(home / "systems" / f"{system}.json", to_json(_description(cell, system)))
        submitters[home] = None
    return list(submitters)


def _description(cell: Cell, name: str) -> dict[str, Any]:
    """The fields that the official tools ask for, from the run's own system.json where there is one."""
    run = cell.runs[0]
    known = sources.json_object(run.folder / "system.json")
    return {
        "submitter": cell.submitter,
        "division": run.division or "open",
        "status": "onprem",
        "system_name": name,
        "number_of_nodes": "1",
        "host_processors_per_node": "1",
        "host_processor_model_name": str(known.get("cpu", {}).get("model", "not stated")),
        "host_processor_core_count": str(known.get("cpu", {}).get("logical_cores", "not stated")),
        "accelerators_per_node": str(run.num_accelerators or 0),
        "accelerator_model_name": run.accelerator or "none",
        "framework": run.software or "not stated",
        "operating_system": str(known.get("system", "not stated")),
        "hw_notes": "",
        "sw_notes": "exported by timetrial; not verified by MLCommons",
    }
