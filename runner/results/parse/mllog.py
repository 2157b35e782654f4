"""Parse MLPerf logs: `:::MLPv0.5.0` lines of v0.5, `:::MLL` of v0.6 and `:::MLLOG` of v0.7 and later.

One submission to v0.6 (Alibaba) has its own form, `MLPerf: resnet [06/13/19 00:38:23], key: value`, with v0.5's keys.

Real logs are the output of many processes: a marker can stand anywhere in a line, lines are truncated, joined or
repeated, and bytes are not always UTF-8. A marked line that cannot be parsed is counted and skipped. No content of a
file raises an exception.
"""

import ast
import bz2
import gzip
import json
import lzma
import math
import re
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from ...core.found_files import MAX_DEPTH, MAX_NUMBER, as_data, make_visible, open_regular

_BLOCK_BYTES = 1 << 20
_MAX_LOG_BYTES = 1 << 29  # after expansion; the largest published log has a tenth of it
_MAX_LITERAL = 10_000  # characters
_PYTHON_WORDS = {"null": "None", "true": "True", "false": "False"}
_JSON_WORD = re.compile(r"\b(?:null|true|false)\b")
_MAX_LINE_BYTES = 1 << 22  # the rest of a longer line is parsed as another line
_MARKED_LINE = re.compile(rb"(?::::ML|MLPerf: \w+ \[)[^\r\n]*")
_MLLOG_LINE = re.compile(rb":::ML[^\r\n]*")  # several times faster than a search for alternatives
# Launch scripts and trainers print seeds that they do not log.
_SPACES = rb"[ \t]{0,8}"  # bounded, so that a line of spaces is not searched in quadratic time
_PRINTED_SEED = re.compile(
    rb"(?:\bSEED=%(s)b'?%(s)b|random seed=|Using (?:random master )?seed%(s)b[:=]%(s)b)(\d{1,19})\b" % {b"s": _SPACES}
)
_SEED_PREFIXES = (b"SEED=", b"random seed=", b"Using seed", b"Using random master seed")  # searching them is faster
_V05 = re.compile(r"\s*(?P<benchmark>\w+)\s+(?P<seconds>[\d.]+)\s+\((?P<file>.*?):(?P<line>\d+)\)\s+(?P<key>\w+)\s*")
_V06 = re.compile(r"\s*(?P<seconds>[\d.eE+-]+)\s+(?P<key>\w+)\s*:\s*")
_ALIBABA = re.compile(r"MLPerf: (?P<benchmark>\w+) \[(?P<time>[\d/]{8} [\d:]{8})\], (?P<key>\w+)\s*(?::(?P<value>.*))?")
_ANSI_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_DECODER = json.JSONDecoder()


class LogEntry(NamedTuple):
    """One log line.

    `time_ms` is in milliseconds since 1970, NaN if it cannot be parsed. `benchmark` is set only if the line names it.
    """

    key: str
    time_ms: float
    value: Any
    metadata: dict[str, Any]
    dialect: str
    benchmark: str = ""


@dataclass
class Log:
    """The entries of a file in the order of its lines.

    `malformed` counts marked lines that could not be parsed, `error` says why a file could not be read to its end,
    and `printed_seed` is the first seed in plain text.
    """

    path: Path
    entries: list[LogEntry] = field(default_factory=list)
    malformed: int = 0
    error: str = ""
    printed_seed: int | None = None


def read_log(path: Path) -> Log:
    """Read a log, plain or compressed (.gz, .xz, .bz2); of a truncated file everything before the end is kept.

    At most half a gigabyte is read, of a compressed file after expansion.
    """
    log = Log(path)
    try:
        with open_regular(path) as raw, _OPENERS.get(path.suffix, nullcontext)(raw) as file:
            parse_stream(file, log)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        log.error = str(error)
    return log


def parse_stream(file: IO[bytes], log: Log) -> None:
    """Append the entries in a stream of bytes to `log`."""
    for line in _marked_lines(file, log):
        pieces = line.split(":::ML")[1:] or [line]  # lines of two processes can be joined
        for entry in map(_parse_entry, pieces):
            if entry:
                log.entries.append(entry)
            else:
                log.malformed += 1


def _marked_lines(file: IO[bytes], log: Log) -> Iterator[str]:
    """Yield each line from its first marker on; a carriage return (progress bars) also ends a line."""
    rest = b""
    num_bytes = 0
    while block := file.read(_BLOCK_BYTES):
        rest += block
        num_bytes += len(block)
        if num_bytes > _MAX_LOG_BYTES:
            log.error = f"it holds more than {_MAX_LOG_BYTES >> 20} MiB"
            break
        end = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
        if not end and len(rest) < _MAX_LINE_BYTES:
            continue
        end = end or len(rest)
        yield from _search_block(rest[:end], log)
        rest = rest[end:]
    yield from _search_block(rest, log)


def _search_block(block: bytes, log: Log) -> Iterator[str]:
    if log.printed_seed is None and any(prefix in block for prefix in _SEED_PREFIXES):
        match = _PRINTED_SEED.search(block)
        log.printed_seed = int(match[1]) if match else None
    pattern = _MARKED_LINE if b"MLPerf: " in block else _MLLOG_LINE
    for match in pattern.finditer(block):
        yield match[0].decode("utf-8", "replace")


def _parse_entry(text: str) -> LogEntry | None:
    """Return the entry that follows `:::ML`, or that of Alibaba's line; None if it cannot be parsed."""
    if "\x1b" in text:
        text = _ANSI_ESCAPE.sub("", text)
    try:
        for prefix, parse in _DIALECTS.items():
            if text.startswith(prefix):
                entry = parse(text)
                return None if entry is None else _tidy(entry, text)
    except (ValueError, RecursionError):
        pass
    return None


def _tidy(entry: LogEntry, text: str) -> LogEntry:
    """Return an entry of the line `text` as plain data; raise ValueError if its values are nested too deep."""
    is_plain = "\\" not in text and text.isprintable() and text.count("{") + text.count("[") <= MAX_DEPTH
    if is_plain:
        return entry
    value, metadata = (as_data(part, finite=False) for part in (entry.value, entry.metadata))
    return entry._replace(key=make_visible(entry.key), value=value, metadata=metadata)


def _parse_v07(text: str) -> LogEntry | None:
    text = text.removeprefix("LOG")
    try:
        fields, _ = _DECODER.raw_decode(text, text.find("{"))
    except ValueError:
        fields = _parse_single_quotes(text)
    if not isinstance(fields, dict) or not isinstance(fields.get("key"), str):
        return None
    time_ms = fields.get("time_ms")
    if type(time_ms) is not int or abs(time_ms) > MAX_NUMBER:
        time_ms = to_float(time_ms) if "time_ms" in fields else to_float(fields.get("time_s")) * 1000
    return LogEntry(fields["key"], time_ms, fields.get("value"), _as_dict(fields.get("metadata")), "v0.7")


def _parse_single_quotes(text: str) -> Any:
    """Return an object with single quotes, as Python prints a dict; None for what is not the literal of one."""
    text = text[: text.rfind("}") + 1].strip()
    if "'" not in text:
        return None
    try:
        return parse_literal(_JSON_WORD.sub(lambda match: _PYTHON_WORDS[match[0]], text))
    except ValueError:
        return None


def parse_literal(text: str) -> Any:
    """Return a Python literal as plain data; raise ValueError for other text."""
    if len(text) > _MAX_LITERAL:
        raise ValueError("it is too long")
    try:
        return as_data(ast.literal_eval(text), finite=False)
    except (SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise ValueError(str(error)) from error


def _parse_v06(text: str) -> LogEntry | None:
    text = text.removeprefix("L")
    head = _V06.match(text)
    if not head:
        return None
    fields, _ = _DECODER.raw_decode(text[head.end() :])
    fields = fields if isinstance(fields, dict) else {"value": fields}
    time_ms = to_float(head["seconds"]) * 1000
    return LogEntry(head["key"], time_ms, fields.get("value"), _as_dict(fields.get("metadata")), "v0.6")


def _parse_v05(text: str) -> LogEntry | None:
    text = text[text.index(" ") :]
    head = _V05.match(text)
    if not head:
        return None
    value = _parse_v05_value(text[head.end() + 1 :]) if text.startswith(":", head.end()) else None
    return LogEntry(head["key"], to_float(head["seconds"]) * 1000, value, _as_dict(value), "v0.5", head["benchmark"])


def _parse_alibaba(text: str) -> LogEntry | None:
    match = _ALIBABA.match(text)
    if not match:
        return None
    try:
        time = datetime.strptime(match["time"], "%m/%d/%y %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None
    value = None if match["value"] is None else _parse_v05_value(re.sub(r"(\d)%", r"\1", match["value"]))
    return LogEntry(match["key"], time.timestamp() * 1000, value, _as_dict(value), "v0.5", match["benchmark"])


def _parse_v05_value(text: str) -> Any:
    """Return the value of a v0.5 line: JSON, else the text itself."""
    try:
        return _DECODER.raw_decode(text.strip())[0]
    except (ValueError, RecursionError):
        return text.strip()


_DIALECTS = {"LOG": _parse_v07, "Pv0.5": _parse_v05, "L": _parse_v06, "MLPerf: ": _parse_alibaba}


def to_float(value: Any) -> float:
    """Return a number, or text such as "75.9" or "75.9%", as a float; NaN for everything else.

    Numbers beyond `MAX_NUMBER` are NaN, those below its inverse 0: no result is, and their quotients overflow.
    """
    if isinstance(value, bool):
        return math.nan
    if isinstance(value, str):
        value = value.strip().rstrip("%")
    elif not isinstance(value, int | float):
        return math.nan
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return math.nan
    if abs(number) < 1 / MAX_NUMBER:
        return 0.0
    return number if abs(number) <= MAX_NUMBER else math.nan


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
