"""Export of runs in the folder layout of MLPerf submissions, for the official result_summarizer and rcp_checker."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...core.atomic_files import replace_on_success, to_json, write_atomically
from ...core.errors import ConfigurationError
from ...core.formatting import slug
from ..analysis.groups import RunGroup

_BENCHMARK = re.compile(r"\w[\w-]{0,99}", re.ASCII)


def export(groups: Iterable[RunGroup], folder: Path) -> list[Path]:
    """Copy logs to FOLDER/<submitter>/results/<system>/<benchmark>/result_<n>.txt and write systems/<system>.json.

    Returns the folders of the submitters. Raises `ConfigurationError` if `folder` is not empty, so that two exports
    never mix.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty: name a new folder for the export.")
    submitters: dict[Path, None] = {}
    for group in groups:
        submitter = folder / slug(group.submitter)
        system, logs = _choose_names(group, submitter / "results")
        logs.mkdir(parents=True)
        (submitter / "systems").mkdir(exist_ok=True)
        for number, run in enumerate(group.runs):
            with replace_on_success(logs / f"result_{number}.txt") as temporary:
                shutil.copyfile(run.source, temporary)
        write_atomically(submitter / "systems" / f"{system}.json", to_json(_system_description(group, system)))
        submitters[submitter] = None
    return list(submitters)


def _choose_names(group: RunGroup, results: Path) -> tuple[str, Path]:
    """Return the system's name and a new folder below `results` for the logs of the group, whatever its logs say."""
    benchmark = group.benchmark if _BENCHMARK.fullmatch(group.benchmark) else slug(group.benchmark)
    system = base = slug(f"{group.system} {group.setting}")
    number = 1
    while (results / system / benchmark).exists():  # of a group whose name differs in other characters
        number += 1
        system = f"{base}-{number}"
    return system, results / system / benchmark


def _system_description(group: RunGroup, name: str) -> dict[str, Any]:
    """Return the fields that the official tools require, from the run record if there is one."""
    run = group.runs[0]
    environment = run.run_record.environment if run.run_record is not None else {}
    cpu = environment.get("cpu")
    cpu = cpu if isinstance(cpu, dict) else {}
    return {
        "submitter": group.submitter,
        "division": run.division or "open",
        "status": "onprem",
        "system_name": name,
        "number_of_nodes": "1",
        "host_processors_per_node": "1",
        "host_processor_model_name": str(cpu.get("model", "not stated")),
        "host_processor_core_count": str(cpu.get("logical_cores", "not stated")),
        "accelerators_per_node": str(run.num_accelerators or 0),
        "accelerator_model_name": run.accelerator or "none",
        "framework": run.software or "not stated",
        "operating_system": str(environment.get("system", "not stated")),
        "hw_notes": "",
        "sw_notes": "exported by timetrial; not verified by MLCommons",
    }
