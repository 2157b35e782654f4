#!/usr/bin/env python
"""Try a hundred files and folders as people have them, with this code and with earlier versions of it.

    python -P scripts/measure/own_data_files.py [CHECKOUT...]

CHECKOUT is a folder whose parent can be imported from, with a version of timetrial. Of each case, `data inspect` (where
a version has it) and `data prepare` or `data verify` of the command that it prints are run. Prints a table in Markdown.
"""

import argparse
import io
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


def overrides_of(kind: str, path: Path) -> list[str]:
    """Return the overrides for data of a kind, as the documentation has them."""
    if kind == "ratings":
        return ["workload=ncf", "scale=mini", f"recipe.data.path={path}"]
    if kind == "images":
        return ["workload=resnet50", "scale=mini", f"recipe.data.folder={path}"]
    if kind == "text":
        return ["workload=gpt", "scale=mini", f"recipe.data.train=[{path}]"]
    if kind == "boxes":
        return ["workload=ssd", "scale=mini"] + [
            f"recipe.data.{split}_{key}={path / place.format(split)}"
            for split in ("train", "val")
            for key, place in (("annotations", "annotations/instances_{}.json"), ("images", "{}"))
        ]
    files = sorted(path.iterdir()) if path.is_dir() else []
    train = [file for file in files if "train" in file.name] * 2
    test = [file for file in files if "test" in file.name] * 2
    sides = {"source": f"[{train[0]}]", "target": f"[{train[1]}]", "test_source": test[0], "test_target": test[1]}
    return ["workload=gnmt", "scale=mini", *(f"recipe.data.{key}={value}" for key, value in sides.items())]


def attempt(kind: str, path: Path) -> dict[str, Any]:
    """Return what the imported version of timetrial makes of the data at `path`, and all that it says about them."""
    from typer.testing import CliRunner

    from timetrial.runner.cli.app import app

    inspected = CliRunner().invoke(app, ["data", "inspect", str(path)])
    said = inspected.output
    if found := re.search(r"^  timetrial run (.*)$", said, re.M):
        overrides = shlex.split(found[1])
    else:
        overrides = overrides_of(kind, path)
    place = [f"data_dir={path.parent}/prepared/data", "recipe.data.workers=1"] if kind in ("images", "boxes") else []
    overrides += place or [f"data_dir={path.parent}/prepared/data"]
    problem = "" if inspected.exit_code == 0 or "No such command" in said else str(inspected.exception)
    done = CliRunner().invoke(app, ["data", "verify", *overrides])
    if "checked as they" in str(done.exception):
        done = CliRunner().invoke(app, ["data", "prepare", *overrides])
    said += done.output
    if done.exit_code:
        problem = problem or str(done.exception)
    said += f"\n{done.exception or ''}" if done.exit_code else ""
    said += problem
    return {"is_refused": bool(problem), "said": said}


def run_version(root: Path, cases: list[Any]) -> list[dict[str, Any]]:
    """Return what each case gets from the version whose package folder is `root`, in a process of its own."""
    from timetrial.scripts.measure import checkouts  # not in the process of an older version

    with checkouts.importing(root) as environment, tempfile.TemporaryDirectory() as folder:
        listing, results = Path(folder) / "cases", Path(folder) / "results"
        rows = [(case.kind, str(case.write(Path(folder) / f"{number}")))
                for number, case in enumerate(cases)]  # fmt: skip
        listing.write_text(json.dumps(rows))
        environment["CUDA_VISIBLE_DEVICES"] = ""
        command = [sys.executable, "-P", __file__, "--attempt", str(listing), "--json", str(results)]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        found: list[dict[str, Any]] = json.loads(results.read_text())
        return found


def main() -> None:
    """Print the table of all versions, and how many cases each got right."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="CHECKOUT")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was said too")
    parser.add_argument("--attempt", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attempt:
        rows = json.loads(arguments.attempt.read_text())
        arguments.json.write_text(json.dumps([attempt(kind, Path(path)) for kind, path in rows]))
        return
    from timetrial.scripts.measure.own_data_cases import all_cases  # which earlier versions lack
    from timetrial.scripts.measure.own_data_cases.case import REFUSED

    cases = list(all_cases())
    versions = {str(root): run_version(root.resolve(), cases) for root in [*arguments.checkouts, _ROOT]}
    if arguments.json:
        arguments.json.write_text(json.dumps(versions, indent=1))
    out = io.StringIO()
    names = [Path(name).name for name in versions]
    names[-1] = "now"
    print("| kind | data | should be |", " | ".join(names), "|", file=out)
    print("|---" * (3 + len(names)), "|", sep="", file=out)
    right = Counter[str]()
    for number, case in enumerate(cases):
        cells = []
        for name, results in zip(names, versions.values(), strict=True):
            found = results[number]
            is_right = found["is_refused"] == (case.outcome == REFUSED) and case.says in found["said"]
            right[name] += is_right
            cells.append(case.outcome if is_right else "**refused otherwise**" if found["is_refused"] else "**silent**")
        print(f"| {case.kind} | {case.title} | {case.outcome} |", " | ".join(cells), "|", file=out)
    print(out.getvalue())
    print("; ".join(f"{name}: {right[name]} of {len(cases)} as they should be" for name in names))


if __name__ == "__main__":
    main()
