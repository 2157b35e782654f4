"""Damage logs, run directories and tables at random, and count what stops `report`, `study` or `check`.

What they write is watched too: beside the tree stands a user's home, to which links in the tree and in the folder of
the page lead, and which the list of an earlier report names. A file there that is changed, added or removed is counted.

    .venv/bin/python -P scripts/dev/fuzz_readers.py [--logs RESULTS] [--minutes 15 | --inputs 1000] [--seed 0]

An input is a folder of one kind, of which one file was damaged: bytes flipped, cut, repeated or replaced by hostile
text, a JSON value replaced by another (Hypothesis), a file renamed or made a pipe or a link to a device. Ten of them
stand in one tree. A crash is any exception but `RunError`; a hang is a tree that takes more than `HANG_SECONDS` of
processor time, or ten times as long on the clock. The exit code is 0 without any of these. --logs adds real results to
damage: a folder of published logs, of which 200 are taken.
"""

import argparse
import itertools
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from rich.console import Console

from timetrial.runner.benchmarks.peak_rows import Row
from timetrial.runner.benchmarks.peaks import to_document
from timetrial.runner.config.compose import compose
from timetrial.runner.core.errors import RunError
from timetrial.runner.core.found_files import make_visible
from timetrial.runner.launch.run import launch
from timetrial.runner.mlperf import compliance
from timetrial.runner.results.parse.external import REFERENCE_DATA
from timetrial.runner.results.report import build, mlperf_export, page, study_json, terminal
from timetrial.scripts.dev.damaged_files import JSON, Case, write_damaged

HANG_SECONDS = 60.0
_TIMERS = (
    (signal.SIGPROF, signal.ITIMER_PROF, HANG_SECONDS),
    (signal.SIGALRM, signal.ITIMER_REAL, 10 * HANG_SECONDS),  # waiting takes no processor time
)
CASES_PER_TREE = 10
TREES_PER_PAGE = 5  # a page takes seconds, everything else a tenth
MAX_LOGS = 200


@dataclass
class Outcome:
    """What was tried, and what broke."""

    inputs: int = 0
    trees: int = 0
    pages: int = 0
    crashes: Counter[str] = field(default_factory=Counter)
    hangs: int = 0
    touched: int = 0


class Hang(BaseException):
    """Raised by the timer of processor time."""


def read_folder(folder: Path) -> Case:
    """Return the regular files of a folder by their paths."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def own_cases(folder: Path) -> list[Case]:
    """Return run directories of a training and a throughput run, a peaks.json, and tables."""
    ncf = ["recipe.data.generate={num_users: 200, num_items: 300, num_ratings: 6000, num_clusters: 4}"]
    ncf += ["recipe.data.eval_negatives=99", "recipe.global_batch_size=2048", "recipe.max_epochs=12"]
    ncf += ["recipe.target.v05.hit_rate=0.2", f"data_dir={folder}/data"]
    cnn = ["workload=cifar10", "model=cnn10", "scale=reference", "+recipe.training.width=2", "data=synthetic"]
    cnn += ["recipe.global_batch_size=8", "+recipe.data.eval_batch_size=4", "throughput.steps=1", "throughput.blocks=2"]
    cases = []
    for name, overrides in (("ncf", ncf), ("cnn", cnn)):
        options = ["accelerator=cpu", "launcher=inline", "seed=1", f"run_dir={folder}/{name}", *overrides]
        launch(compose(options).node, Console(quiet=True))
        shutil.rmtree(folder / name / "checkpoint", ignore_errors=True)
        cases.append(read_folder(folder / name))
    rows = [Row(kind, "64x64", "fp32", "fp32", 1.0, 0.9, 1.1, 3, tflops=2.0, gb_s=3.0) for kind in ("gemm", "copy")]
    document = to_document("cpu", rows, None, 1.0, quick=False, stopped=False)
    table = min(REFERENCE_DATA.rglob("*.csv"), key=lambda path: ("schema" not in path.read_text()[:10], str(path)))
    wide = "gpu;num_gpu;watt;resnet50 fp16 (images/s);gnmt\nT4;1;70;300,5;1.200,5\n2x V100;2;500;1700,0;OOM\n"
    tables: list[Case] = [{"table.csv": table.read_bytes()}, {"throughput.csv": wide.encode("utf-16")}]
    return [*cases, {"peaks.json": json.dumps(document).encode()}, *tables]


def published_cases(folder: Path) -> list[Case]:
    """Return single logs of a published tree, each with the description of its system if it is beside the tree."""
    logs = sorted(path for path in folder.rglob("result_*") if path.is_file())
    cases = []
    for path in logs[:: math.ceil(len(logs) / MAX_LOGS) or 1]:
        system, benchmark = path.parent.parent.name, path.parent.name
        descriptions = list(folder.rglob(f"{system}.json"))[:1]
        cases.append(
            {f"v0.7/Maker/{system}/{benchmark}/{path.name}": path.read_bytes()}
            | {f"v0.7/Maker/systems/{file.name}": file.read_bytes() for file in descriptions}
            | {f"v0.7/Maker/{system}/{benchmark}/scaling.json": b'{"scaling_factor": 1.05}'}
        )
    return cases


class Home:
    """A user's folder that no command may touch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("notes.txt", "mine.csv", ".bashrc", "csv/mine.csv", "report.html", "photos/1.jpg"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{name} of the user")
        self.links = [str(folder / name) for name in ("notes.txt", "csv/mine.csv", "csv", "photos", "nothing", "")]
        self._state = self._describe()

    def is_touched(self) -> bool:
        """Return whether a file has changed since the last call: its name, kind, owner, mode, time or content."""
        before, self._state = self._state, self._describe()
        return before != self._state

    def _describe(self) -> dict[str, object]:
        paths = [self._folder, *self._folder.rglob("*")]
        stats = {path: path.lstat() for path in paths}
        return {
            str(path): (stat.st_mode, stat.st_uid, stat.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path, stat in stats.items()
        }


def prepare_page_folder(folder: Path, home: Home, chance: random.Random) -> None:
    """Leave in the folder of the page what a stranger may: links, files of the user's, a list that names more."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("csv", "report.html", "report.md", ".report_files", "csv/runs.csv", "csv/mine.csv"):
        path = folder / name
        kind = chance.randrange(8)
        if path.parent.is_symlink() or kind > 2:
            continue
        path.parent.mkdir(exist_ok=True)
        if kind == 0:
            path.symlink_to(chance.choice(home.links))
        elif name == ".report_files":
            names = ["../home/notes.txt", *home.links, "csv/../../home/mine.csv", "csv/mine.csv", "report.html", ".."]
            path.write_text("\n".join(chance.sample(names, 4)))
        elif name != "csv":
            path.write_text("of the user")


def read_everything(tree: Path, *, with_page: bool) -> None:
    """Report, study, export and check `tree`; raise what is no `RunError`."""
    paths = [tree, *tree.rglob("table.csv")]
    try:
        report = build.build_report(paths)
        with open(os.devnull, "w") as nowhere:
            console = Console(file=nowhere, width=120)
            json.dumps([study_json.group_to_json(group) for group in report.groups])
            terminal.show_plan(console, report.groups, report.comparisons)
            terminal.show_run_groups(console, report.groups)
            terminal.show_scores(console, report.scores, report.profiles)
            terminal.show_throughput(console, report.throughput_groups)
            terminal.show_findings(console, report.findings)
        if with_page:
            export_folder = tree.with_name("export")
            shutil.rmtree(export_folder, ignore_errors=True)
            mlperf_export.export(report.groups, export_folder)
            page.write_page(report, tree.with_name("page"))
    except RunError:
        pass
    for path in tree.rglob("result_*.txt"):
        compliance.check(path)


def _raise_hang(number: int, frame: FrameType | None) -> None:
    raise Hang


def try_tree(tree: Path, outcome: Outcome, *, with_page: bool) -> str:
    """Read a tree and count what happens; return the place of a crash or hang, empty if there was none."""
    for number, timer, seconds in _TIMERS:
        signal.signal(number, _raise_hang)
        signal.setitimer(timer, seconds)
    try:
        read_everything(tree, with_page=with_page)
        return ""
    except Hang:
        outcome.hangs += 1
        return "hang"
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {str(error)[:100]}"
        outcome.crashes[make_visible(place)] += 1
        if outcome.crashes[make_visible(place)] == 1:
            traceback.print_exc()
        return place
    finally:
        for _, timer, _ in _TIMERS:
            signal.setitimer(timer, 0)


def fuzz(
    cases: list[Case], folder: Path, outcome: Outcome, *, trees: int, seed: int, is_over: Callable[[], bool]
) -> None:
    """Try `trees` trees of damaged cases, less if `is_over`."""
    home = Home(folder / "home")

    @with_seed(seed)
    @settings(
        max_examples=trees,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**32), st.lists(JSON, min_size=CASES_PER_TREE, max_size=CASES_PER_TREE))
    def try_one(number: int, values: list[Any]) -> None:
        if is_over():
            return
        chance = random.Random(number)
        tree = folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        for place, value in enumerate(values):
            write_damaged(chance.choice(cases), tree / str(place), value, chance, home.links)
        prepare_page_folder(folder / "page", home, chance)
        with_page = outcome.trees % TREES_PER_PAGE == 0
        failure = try_tree(tree, outcome, with_page=with_page)
        is_touched = home.is_touched()
        outcome.touched += is_touched
        if failure or is_touched:
            kept = folder / f"crash_{seed}_{outcome.trees}"
            shutil.copytree(tree, kept, symlinks=True, copy_function=_copy)
            print(f"kept in {kept}", flush=True)
        outcome.inputs += len(values)
        outcome.trees += 1
        outcome.pages += with_page

    try_one()


def _copy(source: str, target: str) -> None:
    if Path(source).is_file():
        shutil.copyfile(source, target)


def main() -> None:
    """Fuzz for some minutes or a number of inputs, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, help="folder of published logs")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--inputs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outcome, folder = Outcome(), Path(tempfile.mkdtemp(prefix="fuzz_readers_"))
    cases = own_cases(folder) * 5 + (published_cases(options.logs) if options.logs else [])
    started = time.monotonic()

    def is_over() -> bool:
        too_long = time.monotonic() - started > 60 * options.minutes
        return too_long or bool(options.inputs and outcome.inputs >= options.inputs)

    for seed in itertools.count(options.seed):
        fuzz(cases, folder, outcome, trees=100, seed=seed, is_over=is_over)
        print(json.dumps(vars(outcome)), flush=True)
        if is_over() or (not options.inputs and math.isinf(options.minutes)):
            break
    minutes = (time.monotonic() - started) / 60
    crashes = sum(outcome.crashes.values())
    print(f"inputs: {outcome.inputs}, pages: {outcome.pages}, minutes: {minutes:.1f}")
    print(f"crashes: {crashes}, hangs: {outcome.hangs}, files touched outside of the output folders: {outcome.touched}")
    if crashes or outcome.hangs or outcome.touched:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
