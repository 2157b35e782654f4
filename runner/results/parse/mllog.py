"""The lines of MLPerf logs: v0.5's `:::MLPv0.5.0`, v0.6's `:::MLL` and `:::MLLOG` of v0.7 and later, as one Event.

One entry of v0.6 (Alibaba's) has a form of its own, `MLPerf: resnet [06/13/19 00:38:23], key: value`, with v0.5's keys.

Real logs are the output of many processes: markers stand anywhere in a line, lines are cut, glued and doubled, bytes
are no UTF-8. What is not an event is counted and passed over; nothing here raises on what a file holds.
"""

import bz2
import gzip
import json
import lzma
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import yaml

_BLOCK = 1 << 20  # bytes read at a time
_LONGEST = 1 << 22  # bytes: of a line longer than this, the end is lost
_MARKED = re.compile(rb"(?::::ML|MLPerf: \w+ \[)[^\r\n]*")
# How launch scripts and trainers print a seed that they do not log.
_SEED = re.compile(rb"(?:\bSEED=\s*'?\s*|random seed=|Using (?:random master )?seed\s*[:=]\s*)(\d{1,19})\b")
_V05 = re.compile(r"\s*(?P<benchmark>\w+)\s+(?P<seconds>[\d.]+)\s+\((?P<file>.*?):(?P<line>\d+)\)\s+(?P<key>\w+)\s*")
_V06 = re.compile(r"\s*(?P<seconds>[\d.eE+-]+)\s+(?P<key>\w+)\s*:\s*")
_ALIBABA = re.compile(r"MLPerf: (?P<benchmark>\w+) \[(?P<time>[\d/]{8} [\d:]{8})\], (?P<key>\w+)\s*(?::(?P<value>.*))?")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Event:
    """One line: `time_ms` since 1970 (NaN where none can be read); `benchmark` only where the line itself names it."""

    key: str
    time_ms: float
    value: Any
    metadata: dict[str, Any]
    dialect: str
    benchmark: str = ""


@dataclass
class Log:
    """A file's events in the order of its lines; `unreadable` counts marked lines that are no event.

    `printed_seed` is the first seed that stands in a line of plain text.
    """

    path: Path
    events: list[Event] = field(default_factory=list)
    unreadable: int = 0
    error: str = ""
    printed_seed: int | None = None


def read_log(path: Path) -> Log:
    """Reads a log, plain or compressed (.gz, .xz, .bz2), in pieces; a file that ends in the middle keeps its start."""
    log = Log(path)
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            parse(file, log)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        log.error = str(error)
    return log


def parse(file: IO[bytes], log: Log) -> None:
    """Adds what a stream of bytes holds to `log`."""
    for text in _marked_lines(file, log):
        pieces = text.split(":::ML")[1:]  # two processes may share a line
        for event in map(_event, pieces) if pieces else [_alibaba(text)]:
            if event:
                log.events.append(event)
            else:
                log.unreadable += 1


def _marked_lines(file: IO[bytes], log: Log) -> Iterator[str]:
    """Each line from its first marker on; a carriage return ends a line as well, as progress bars want it."""
    rest = b""
    while block := file.read(_BLOCK):
        rest += block
        end = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
        if not end and len(rest) < _LONGEST:
            continue
        end = end or len(rest)
        yield from _marked(rest[:end], log)
        rest = rest[end:]
    yield from _marked(rest, log)


def _marked(text: bytes, log: Log) -> Iterator[str]:
    if log.printed_seed is None and (printed := _SEED.search(text)):
        log.printed_seed = int(printed[1])
    for match in _MARKED.finditer(text):
        yield match[0].decode("utf-8", "replace")


def _event(text: str) -> Event | None:
    """The event that follows `:::ML`, or None."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    try:
        if text.startswith("LOG"):
            return _v07(text[3:])
        if text.startswith("Pv0.5"):
            return _v05(text[text.index(" ") :])
        if text.startswith("L"):
            return _v06(text[1:])
    except (ValueError, RecursionError):
        pass
    return None


def _v07(text: str) -> Event | None:
    try:
        fields, _ = _DECODER.raw_decode(text.lstrip())
    except ValueError:
        fields = _loosely(text)
    if not isinstance(fields, dict) or not isinstance(fields.get("key"), str):
        return None
    time_ms = number(fields["time_ms"]) if "time_ms" in fields else number(fields.get("time_s")) * 1000
    return Event(fields["key"], time_ms, fields.get("value"), _dict(fields.get("metadata")), "v0.7")


def _loosely(text: str) -> Any:
    """An object in which some quotes are single ones, as Python prints them: YAML's flow form takes both."""
    if "'" not in text:
        return None
    try:
        return yaml.load(text[: text.rfind("}") + 1], Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError):
        return None


def _v06(text: str) -> Event | None:
    head = _V06.match(text)
    if not head:
        return None
    fields, _ = _DECODER.raw_decode(text[head.end() :])
    fields = fields if isinstance(fields, dict) else {"value": fields}
    time_ms = number(head["seconds"]) * 1000
    return Event(head["key"], time_ms, fields.get("value"), _dict(fields.get("metadata")), "v0.6")


def _v05(text: str) -> Event | None:
    head = _V05.match(text)
    if not head:
        return None
    value = _bare(text[head.end() + 1 :]) if text.startswith(":", head.end()) else None
    return Event(head["key"], number(head["seconds"]) * 1000, value, _dict(value), "v0.5", head["benchmark"])


def _alibaba(text: str) -> Event | None:
    found = _ALIBABA.match(text)
    if not found:
        return None
    try:
        moment = datetime.strptime(found["time"], "%m/%d/%y %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    value = None if found["value"] is None else _bare(re.sub(r"(\d)%", r"\1", found["value"]))
    return Event(found["key"], moment.timestamp() * 1000, value, _dict(value), "v0.5", found["benchmark"])


def _bare(text: str) -> Any:
    """A value of v0.5: JSON, or the text as it is."""
    try:
        return _DECODER.raw_decode(text.strip())[0]
    except (ValueError, RecursionError):
        return text.strip()


def number(value: Any) -> float:
    """`value` as a float, from a number or from text such as "75.9" or "75.9%"; NaN for everything else."""
    if isinstance(value, bool):
        return math.nan
    if isinstance(value, str):
        value = value.strip().rstrip("%")
    elif not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
