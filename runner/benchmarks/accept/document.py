"""The result of `timetrial accept`: accept.json, and the table in the terminal."""

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...core.atomic_files import to_json, write_atomically
from ...core.console import print_text, table_console
from ...core.formatting import slug
from ...record import environment
from ...record.acceptance import keep_acceptance, revoke_acceptance
from ...record.run_dir import new_id
from ...record.run_record import Acceptance
from ..peaks import make_folder
from .figures import State
from .judge import worst
from .node import Findings

FILE_NAME, SCHEMA = "accept.json", 1
COLORS = {State.PASS: "green", State.WARN: "yellow", State.FAIL: "red", State.NOT_TESTED: "dim"}
_ORDER = {State.FAIL: 0, State.WARN: 1, State.PASS: 2, State.NOT_TESTED: 3}


def default_folder() -> Path:
    """Return a new folder for accept.json beside the runs."""
    return Path("runs", slug(platform.node()), "accept", new_id())


def to_document(findings: Findings, folder: Path, minutes: float) -> dict[str, Any]:
    """Return the content of accept.json; lines that are not PASS come first."""
    lines = sorted(findings.lines, key=lambda line: _ORDER[line.state])
    lines = [replace(line, remedy="") if line.state is State.PASS else line for line in lines]
    return {
        "schema": SCHEMA,
        "id": folder.name,
        "date": time.strftime("%Y-%m-%d"),
        "node": platform.node(),
        "result": worst(lines).value,
        "minutes": minutes,
        "lines": [asdict(line) for line in lines],
        "figures": [asdict(figure) | {"median": figure.value} for figure in findings.figures],
        "seconds": findings.seconds,
        "system": environment.describe(),
    }


def write_document(document: dict[str, Any], folder: Path) -> Path:
    """Write accept.json, keep or revoke the acceptance of this machine, and return the path."""
    make_folder(folder)
    write_atomically(folder / FILE_NAME, to_json(document))
    if document["result"] == State.FAIL:
        revoke_acceptance(document["system"])
    else:
        keep_acceptance(document["system"], Acceptance(document["id"], document["date"]))
    return folder / FILE_NAME


def show(console: Console, document: dict[str, Any]) -> None:
    """Print a line for each part with its remedy, and the word for the node."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for is_short in (True, True, True, False):
        table.add_column(no_wrap=is_short)
    for line in document["lines"]:
        needs_remedy = line["state"] in (State.FAIL, State.WARN)
        message = Text(line["message"] + (f"\n{line['remedy']}" if needs_remedy else ""))
        state = Text(line["state"], style=COLORS[State(line["state"])])
        table.add_row(state, Text(line["device"]), Text(line["part"], style="bold"), message)
    table_console(console).print(table)
    counts = count_states(document["lines"])
    word = document["result"]
    took = sum(document["seconds"].values()) / 60
    print_text(
        console, Text.assemble((word, f"bold {COLORS[State(word)]}"), f" {document['node']}: {counts}, {took:.1f} min")
    )


def count_states(lines: Sequence[Mapping[str, str]]) -> str:
    """Return how many lines have each state."""
    return ", ".join(f"{sum(line['state'] == state for line in lines)} {state}" for state in _ORDER)
