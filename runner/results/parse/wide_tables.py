"""Wide tables of external measurements: a row for each system and a column for each workload, or the transpose.

The header of a column is the name of a workload, with the unit in brackets, the precision and the task, such as
"resnet50 fp16 train (images/s)". What headers leave out, the name of the file may state.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.found_files import PassOver, UnreadableFile, as_name
from . import rules

LongRow = tuple[str, Mapping[str, Any]]
"""The place of a measurement in its table, and its cells by the columns of the long form."""
_Cells = Sequence[Sequence[str]]

_WORKLOADS = {path.stem for path in (Path(__file__).parents[3] / "conf" / "workload").glob("*.yaml")}
# Headers of the columns that describe a row, in lower case without punctuation.
_FIELDS = {
    "accelerator": ("accelerator", "gpu", "gpuname", "namegpu", "device", "system"),
    "num_accelerators": ("numaccelerators", "numgpus", "numgpu", "gpucount", "gpus"),
    "batch": ("batch", "batchsize"),
    **{name: (name,) for name in ("precision", "task", "interconnect", "source", "published", "note")},
}
_TOKENS = " tokens"  # ends the name of a workload whose tokens were counted, not its samples
_UNITS = {
    "samples_per_second": r"throughput|samples_per_second"
    r"|(?:samples?|images?|imgs?|sequences?|sentences?|examples?) ?(?:/|per) ?(?:s|sec|second)",
    "tokens_per_second": r"(?:tokens?|words?) ?(?:/|per) ?(?:s|sec|second)",
    "milliseconds": r"milliseconds|ms(?: ?(?:/|per) ?(?:batch|step))?",
    "minutes": r"minutes",
    "epochs": r"epochs",
}
_FILE_UNITS = {"samples_per_second": "throughput|samples_per_second"}
_FILE_UNITS |= {name: name for name in ("milliseconds", "minutes", "epochs")}
_PRECISIONS = {name: name for name in ("fp32", "tf32", "fp16", "bf16", "fp8")}
_TASKS = {"train": r"train(?:ing)?", "eval": r"eval(?:uation)?|inference"}
_WORDS: Mapping[str, Mapping[str, str]] = {"precision": _PRECISIONS, "task": _TASKS}
_OUTCOMES = {"oom": "out of memory", "out of memory": "out of memory", "failed": "failed", "not run": "not run"}
_EMPTY = {"", "-", "–", "—", "n/a", "na", "nan", "none", "null"}
_ZERO = re.compile(r"0+(?:[.,]0*)?")
_NUMBER = re.compile(r"[0-9.,]*[0-9](?:e[+-]?[0-9]+)?", re.IGNORECASE)
_BRACKETS = re.compile(r"(.*\S)\s*[(\[]([^()\[\]]*)[)\]]")
_COUNT = re.compile(r"(?<![A-Za-z0-9.])([0-9]{1,3}) ?[x×](?:[ _]|(?=[A-Z]))")
_REMEDY = "write both into the headers, such as resnet50 (images/s), or the unit into the name of the file"


def is_wide(cells: _Cells) -> bool:
    """Return whether the beginning of a table names workloads, or units and systems."""
    if not cells:
        return False
    names_systems = "accelerator" in _find_fields(cells[0])
    return _has_columns(cells[0], known_only=not names_systems) or _is_transposed(cells)


def to_long_rows(path: Path, cells: _Cells, pass_over: PassOver) -> list[LongRow]:
    """Return the measurements of a wide table in the long form; raise `UnreadableFile` if no column holds any.

    `pass_over` receives an error that counts and names the columns that are not read.
    """
    kind = "columns"
    if not _has_columns(cells[0]) and _is_transposed(cells):
        kind, cells = "rows", list(zip(*cells, strict=True))
    header, *rows = cells
    fields = _find_fields(header)
    if "accelerator" not in fields and _has_columns(header[:1]):
        raise UnreadableFile(path, "no column names the systems", "put one with the header gpu in front")
    accelerator = fields.pop("accelerator", 0)
    metric = _take(path.stem, _FILE_UNITS)[1]
    file_states = {field: _take(path.stem, words)[1] for field, words in _WORDS.items()}
    places = [place for place in range(len(header)) if place not in (accelerator, *fields.values())]
    columns = {place: column for place in places if (column := _read_header(header[place], metric))}
    if unread := [header[place] or "one without a name" for place in places if place not in columns]:
        names = as_name(", ".join(unread))
        reason = f"{len(unread)} of {len(places)} {kind} name no workload or have no known unit: {names}"
        error = UnreadableFile(path, reason, _REMEDY, "be read completely" if columns else "be read")
        if not columns:
            raise error
        pass_over(error)
    long_rows: list[LongRow] = []
    for row in rows:
        described = {name: _read_field(name, row[place]) for name, place in fields.items() if row[place]}
        system = _split_count(path, row[accelerator], described.get("num_accelerators", ""))
        shared = {"study": path.stem, "source": path.name, **file_states, **described, **system}
        for place, column in columns.items():
            if value := _read_value(row[place]):
                long_rows.append((f"{row[accelerator]}, {header[place]}", {**shared, **column, **value}))
    return long_rows


def _has_columns(headers: Iterable[str], *, known_only: bool = False) -> bool:
    """Return whether a header names a workload, or unless `known_only` anything with a unit."""
    columns = filter(None, (_read_header(header, "samples_per_second") for header in headers))
    return any(not known_only or _find_workload(column["workload"].removesuffix(_TOKENS)) for column in columns)


def _is_transposed(cells: _Cells) -> bool:
    """Return whether the first cells of rows name workloads, and the others hold values but for fields of systems."""
    values = [cell for row in cells[1:] if not _find_fields(row[:1]) for cell in row[1:]]
    return _has_columns(row[0] for row in cells[1:]) and all(map(_is_value, values))


def _find_fields(header: Sequence[str]) -> dict[str, int]:
    """Return the places of the columns that describe rows, by field."""
    names = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in header]
    found = {field: [name for name in known if name in names] for field, known in _FIELDS.items()}
    return {field: names.index(known[0]) for field, known in found.items() if known}


def _read_header(header: str, default_metric: str) -> dict[str, str] | None:
    """Return the cells that a header states by the columns of the long form; None without a workload or a metric.

    `default_metric` is that of known workloads; in front of a unit, any name is that of a workload.
    """
    metric, name = "", header
    if match := _BRACKETS.fullmatch(header):
        name = match[1]
        for part in match[2].split(","):
            unit = next((unit for unit, text in _UNITS.items() if re.fullmatch(text, part.strip(), re.IGNORECASE)), "")
            metric, name = unit or metric, name if unit else f"{name} {part}"
    stated = {}
    for field, words in _WORDS.items():
        name, stated[field] = _take(name, words)
    name = " ".join(name.split()).strip("_- ")
    known = _find_workload(name)
    metric = metric or (default_metric if known else "")
    if not (name and metric):
        return None
    if metric in ("minutes", "epochs"):
        stated["task"] = "train"
    workload = known or name
    if metric == "tokens_per_second":
        workload, metric = workload + _TOKENS, "samples_per_second"
    return {"workload": workload, "metric": metric} | {field: text for field, text in stated.items() if text}


def _take(text: str, words: Mapping[str, str]) -> tuple[str, str]:
    """Return the text without these words, and the meaning of the one that it has; "" for none and for several."""
    found = []
    for meaning, word in words.items():
        text, number = re.subn(rf"(?<![a-z0-9])(?:{word})(?![a-z0-9])", "", text, flags=re.IGNORECASE)
        found += [meaning] * bool(number)
    return text, found[0] if len(found) == 1 else ""


def _find_workload(name: str) -> str:
    """Return the name of a workload of timetrial or a benchmark of MLPerf however it is written, "" for others."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if plain in _WORKLOADS or rules.is_benchmark(plain):
        return plain
    return rules.canonical_benchmark(name) if rules.is_benchmark(name) else ""


def _read_field(field: str, cell: str) -> str:
    """Return a cell that describes its row, with precision and task as timetrial writes them."""
    return _take(cell, _WORDS.get(field, {}))[1] or cell


def _split_count(path: Path, name: str, stated: str) -> dict[str, str]:
    """Return a system's accelerator and their number, which is in its name ("2x T4"), a column of its own or both."""
    counts = {*_COUNT.findall(name), *filter(None, [re.sub(r"[.,]0+$", "", stated)])}
    if len(counts) > 1:
        reason = f"{name} has {' or '.join(sorted(counts))} GPUs"
        raise UnreadableFile(path, reason, "correct the name or the number")
    return {"accelerator": " ".join(_COUNT.sub("", name).split()), "num_accelerators": "".join(counts)}


def _is_value(cell: str) -> bool:
    return cell.casefold() in (*_EMPTY, *_OUTCOMES) or _NUMBER.fullmatch(cell) is not None


def _read_value(cell: str) -> dict[str, str]:
    """Return the value or the outcome in a cell; nothing if the cell is empty."""
    if cell.casefold() in _EMPTY:
        return {}
    outcome = "failed" if _ZERO.fullmatch(cell) else _OUTCOMES.get(cell.casefold())
    return {"outcome": outcome} if outcome else {"value": cell}
