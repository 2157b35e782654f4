"""The tables of performance in Markdown pages, which `make_docs.py` fills.

They come from performance.csv and floors.csv in runner/record/reference_data/. A table stands between
`<!-- begin performance: NAME -->` and `<!-- end performance -->`. NAME is `reference`, for the training throughput of
all workloads, `figures WORKLOAD` or `floor WORKLOAD`.
"""

import csv
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from timetrial.runner.record.performance import PERFORMANCE_FILE, TRAINING, Measurement, read_measurements

ROOT = Path(__file__).resolve().parents[2]
FLOORS_FILE = PERFORMANCE_FILE.with_name("floors.csv")
MARKER = re.compile(r"(<!-- begin performance: ([\w ]+) -->\n).*?(<!-- end performance -->)", re.S)
RATES = {"TFLOP": "product rate", "GB": "memory bandwidth"}
"""The rate of a GPU in performance.csv, in TFLOP/s and TB/s, by the unit of the amount that it bounds."""
OLD = "†"
_LEFT_OUT_OF_COMMANDS = (
    "precision=", "gpus=", "recipe.global_batch_size=", "data=", "engine.compile=", "throughput.", "seed=", "--steps",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A part of a floor: `amount` is TFLOP, GB, or ms where the time was measured; `ms` its time on the GPU."""

    name: str
    amount: float
    unit: str
    note: str
    ms: float


@dataclass(frozen=True)
class Floor:
    """The least time of a step of `per_step` samples or tokens on one GPU: parts that run one after the other."""

    workload: str
    recipe: str
    gpu: str
    batch: int
    per_step: float
    unit: str
    parts: Sequence[Part]

    @property
    def ms(self) -> float:
        """The sum of the parts."""
        return sum(part.ms for part in self.parts)

    def share_of(self, row: Measurement) -> float | None:
        """Return the share of the floor's rate that a training throughput or step reached; None for any other row."""
        if (row.workload, row.recipe, row.gpu, row.batch) != (self.workload, self.recipe, self.gpu, self.batch):
            return None
        if row.gpus > 1 or row.precision != "bf16" or row.variant or row.quantity not in (TRAINING, "step"):
            return None
        return self.ms / (row.value if row.quantity == "step" else self.per_step / row.value * 1e3)


def read_floors(measurements: Iterable[Measurement]) -> list[Floor]:
    """Return the floors of floors.csv at the rates that `measurements` have of each GPU."""
    rates = {(row.gpu, row.quantity): row.value for row in measurements if not row.workload}
    with open(FLOORS_FILE, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    floors = []
    for key, group in itertools.groupby(rows, lambda row: (row["workload"], row["recipe"], row["gpu"], row["batch"])):
        step, *parts = group
        if step["part"] != "step":
            raise ValueError(f"the floor of {key} begins with {step['part']!r} instead of 'step'")
        workload, recipe, gpu, batch = key
        timed = [
            Part(row["part"], float(row["amount"]), row["unit"], row["note"], milliseconds(row, rates)) for row in parts
        ]
        floors.append(Floor(workload, recipe, gpu, int(batch), float(step["amount"]), step["unit"], timed))
    return floors


def milliseconds(part: Mapping[str, str], rates: Mapping[tuple[str, str], float]) -> float:
    """Return the time of a row of floors.csv: its amount over the GPU's rate."""
    amount = float(part["amount"])
    if part["unit"] == "ms":
        return amount
    rate = rates[part["gpu"], RATES[part["unit"]]]  # TFLOP/s or TB/s
    return amount / rate * (1e3 if part["unit"] == "TFLOP" else 1.0)


def floor_tables(workload: str, measurements: Sequence[Measurement]) -> str:
    """Return the tables of the floors of a workload and what was reached."""
    tables = []
    rates = {(row.gpu, row.quantity): row.value for row in measurements if not row.workload}
    for floor in (floor for floor in read_floors(measurements) if floor.workload == workload):
        rows = [[part.name, f"{part.amount:g} {part.unit}", part.note, f"{part.ms:.3g}"] for part in floor.parts]
        rate = f"{format_value(floor.per_step / floor.ms * 1e3)} {floor.unit}/s"
        rows.append(["**sum**", f"{floor.per_step:,.0f} {floor.unit} a step", rate, f"**{floor.ms:.3g}**"])
        roofs = f"{rates[floor.gpu, RATES['TFLOP']]:g} TFLOP/s and {rates[floor.gpu, RATES['GB']]:g} TB/s"
        measured = sorted(measurements, key=lambda row: not row.current)
        row, share = next(((row, share) for row in measured if (share := floor.share_of(row))), (None, 0.0))
        sentence = f"`{floor.recipe}`, batch {floor.batch:,}, one {floor.gpu} at {roofs}"
        if row:
            sentence += f"; reached: {'' if row.current else OLD + ' '}**{share:.0%}**"
        tables.append(f"{sentence}.\n\n{table(['part', 'amount', '', 'ms'], rows)}")
    return "\n".join(tables)


def figures(workload: str, measurements: Sequence[Measurement]) -> str:
    """Return a table of a workload's figures, those of older code last, and the commands that measured them."""
    own = sorted((row for row in measurements if row.workload == workload), key=lambda row: not row.current)
    commands = list(dict.fromkeys(short_command(row) for row in own if row.command))
    floors = read_floors(measurements)
    lines = []
    for _, group in itertools.groupby(own, lambda row: (row.configuration, row.date, row.commit, row.current)):
        rows = list(group)
        first = rows[0]
        what = ", ".join(filter(None, [f"`{first.recipe}`", first.variant, describe_setting(first)]))
        results = [result(row) for row in rows]
        ratio = peer_ratio(first, own)
        notes = [f"{ratio:.3g} x the peer"] if ratio else []
        notes += [row.note for row in rows if row.note]
        share = next((share for row in rows for floor in floors if (share := floor.share_of(row))), None)
        code = first.commit if first.current else f"{OLD} {first.commit}"
        number = f"{commands.index(short_command(first)) + 1}" if first.command else ""
        cells = [what, gpu_text(first), f"{first.batch:,}" if first.batch else "", ", ".join(results)]
        cells += ["; ".join(notes), f"{share:.0%}" if share else "", f"{first.date}, {code}", number]
        lines.append(cells)
    columns = ["recipe", "GPU", "batch", "result", "remark", "of the floor", "measured", "command"]
    listed = "".join(f"    {number}  {command}\n" for number, command in enumerate(commands, 1))
    heading = "Commands, without what a row names, seeds and numbers of steps (all are in the file):"
    return f"{table(columns, lines)}\n{heading}\n\n{listed}"


def reference(measurements: Sequence[Measurement]) -> str:
    """Return a table of the training throughput on one GPU of each kind, by workload and batch."""
    rows = [row for row in measurements if row.gpus == 1 and row.precision == "bf16" and row.data == "synthetic"]
    rates = [row for row in rows if row.quantity == TRAINING and row.settings]
    gpus = sorted({row.gpu for row in rates})
    floors = read_floors(measurements)
    lines = []
    for workload, batch in dict.fromkeys((row.workload, row.batch) for row in rates):
        same = [row for row in rows if (row.workload, row.batch) == (workload, batch) and not row.variant]
        cells = [title(workload), f"{batch:,}"]
        for gpu in gpus:
            rate = next((row for row in rates if row in same and row.gpu == gpu), None)
            share = next((share for floor in floors if rate and (share := floor.share_of(rate))), None)
            text = f"{'' if rate.current else OLD + ' '}{result(rate)}" if rate else ""
            cells.append(text + (f", {share:.0%} of the floor" if share else ""))
        for quantity in ("peak memory", "start"):
            found = next((row for row in same if row.quantity == quantity and row.gpu == gpus[0]), None)
            value = f"{found.value:g} {found.unit}" if found else ""
            cells.append(value if not found or found.current else f"{OLD} {value}")
        lines.append(cells)
    return table(["workload", "batch", *gpus, f"memory, {gpus[0]}", f"start, {gpus[0]}"], lines)


def result(row: Measurement) -> str:
    """Return a figure such as "7,232 images/s", "70.8 ms a step" or "evaluation 4.7 s"."""
    value = f"{format_value(row.value, exact=True)} {row.unit}"
    if row.quantity == TRAINING:
        return value
    if row.quantity == "step":
        return f"{value} a step"
    if row.quantity == "epochs to target":
        return f"{value} to the target"
    return f"{value} of memory" if row.quantity == "peak memory" else f"{row.quantity} {value}"


def format_value(value: float, *, exact: bool = False) -> str:
    """Return a number for readers: millions from ten million on, three significant digits unless `exact`."""
    if value >= 1e7:
        return f"{value / 1e6:.4g} M"
    if exact or value < 100:
        return f"{value:,.15g}"
    return f"{float(f'{value:.3g}'):,.0f}"


def short_command(row: Measurement) -> str:
    """Return the command of a row without what its cells say and without numbers of steps; performance.csv has all."""
    words = row.command.split()
    return " ".join(word for word in words if not word.startswith(_LEFT_OUT_OF_COMMANDS) and not word.isdigit())


def describe_setting(row: Measurement) -> str:
    """Return the data loader and the mode of compilation where they are not the usual ones."""
    parts = [f"`data={row.data}`"] if row.data not in ("synthetic", "") and row.recipe == "reference" else []
    return ", ".join([*parts, *([f"compiled ({row.compile})"] if row.compile and not row.variant else [])])


def gpu_text(row: Measurement) -> str:
    """Return such as "2 x H100, bf16"."""
    gpu = row.gpu if row.gpus == 1 else f"{row.gpus} x {row.gpu}"
    return f"{gpu}, {row.precision}" if row.precision else gpu


def peer_ratio(row: Measurement, rows: Sequence[Measurement]) -> float | None:
    """Return the throughput of timetrial over that of a peer on the same GPUs with the same batch, if there is one."""
    if row.variant or row.quantity != TRAINING or row.data not in ("synthetic", "torch"):
        return None
    for peer in rows:
        is_same = (peer.recipe, peer.gpu, peer.gpus, peer.batch, peer.precision, peer.data) == (
            row.recipe, row.gpu, row.gpus, row.batch, row.precision, row.data,
        )  # fmt: skip
        if is_same and peer.variant.startswith("peer: ") and peer.quantity == TRAINING:
            return row.value / peer.value
    return None


def title(workload: str) -> str:
    """Return the title of a workload in the documentation."""
    return str(yaml.safe_load((ROOT / "conf" / "workload" / f"{workload}.yaml").read_text())["title"])


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def fill(text: str) -> str:
    """Return the page `text` with each table replaced."""
    measurements = read_measurements()
    tables = {"figures": figures, "floor": floor_tables}

    def make(match: re.Match[str]) -> str:
        name, _, workload = match[2].partition(" ")
        content = tables[name](workload, measurements) if workload else reference(measurements)
        return f"{match[1]}{content}{match[3]}"

    return MARKER.sub(make, text)
