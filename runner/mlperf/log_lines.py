"""Read the lines of MLPerf logs with the parser of a ruleset."""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlperf_logging.compliance_checker import mlp_parser

from ..core.found_files import UnreadableFile, as_data, make_visible, read_bytes
from .log_writer import LOWER_IS_BETTER, TARGET
from .official_checker import OLDEST_RULESET, OWN_RULESET, Header, is_quality

_MAX_BYTES = 1 << 26  # the log of a thousand epochs takes two megabytes
_MAX_LINE = 100_000  # characters
_COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ", b"BZh")  # how files of gzip, xz and bzip2 begin


_MEANING = {
    "cache_clear": "it states whether file-system caches were cleared before the run",
    "init_start": "it starts the untimed initialization",
    "init_stop": "it ends the untimed initialization",
    "run_start": "it starts the clock",
    "run_stop": "it stops the clock and states the status",
    "submission_org": "it names the submitter",
    "submission_platform": "it names the system",
    "submission_division": "it states the division, closed or open, which decides the rules",
    "submission_status": "it states the availability: cloud, onprem, preview or research",
    "submission_benchmark": "it names the benchmark, which decides the rules",
    "train_samples": "it states the size of the training set",
    "eval_samples": "it states the size of the evaluation set",
    "eval_accuracy": "it states the quality after an epoch",
    "seed": "it is needed to repeat the run",
    TARGET: "it states the quality target of the run",
}


class UncheckableLog(ValueError):
    """A file to which no rules can be applied; the text is the problem."""


def parse(path: Path, ruleset: str) -> tuple[Sequence[Any], list[str]]:
    """Return the lines of the log, and a problem for each line that is not valid JSON with finite numbers.

    An empty `ruleset` stands for the one whose marker the lines have. A parser takes minutes for a long line, so it is
    given each line from its last marker on.
    """
    try:
        data = read_bytes(path, _MAX_BYTES)
    except UnreadableFile as error:
        raise UncheckableLog(str(error)) from error
    if data.startswith(_COMPRESSED):
        raise UncheckableLog(f"{make_visible(str(path))} is compressed: unpack it, because logs are checked as text.")
    version = ruleset or (OLDEST_RULESET if b":::MLL " in data else OWN_RULESET)
    parser = importlib.import_module(f"{mlp_parser.__name__}.ruleset_{version.replace('.', '')}")
    marker = parser.TOKEN.rstrip()
    pattern = re.compile(re.escape(marker.encode()) + rb" [^\r\n]*")
    lines, problems = [], []
    texts = [match[0].decode("utf-8", "replace") for match in pattern.finditer(data)]
    for number, text in enumerate(texts):
        text = text[text.rindex(marker) :].strip()
        try:
            if len(text) > _MAX_LINE:
                raise ValueError(f"longer than {_MAX_LINE} characters")
            line = parser.string_to_logline(number, text)
            entry, _ = as_data(line.value), as_data(line.timestamp)
            if not isinstance(entry["metadata"], dict | str) or not isinstance(line.key, str):
                raise TypeError("its key is no text, or its metadata is neither an object nor a text")
            lines.append(type(line)(make_visible(text), line.timestamp, line.key, entry, number))
        except KeyError as error:
            raise UncheckableLog(f"A :::MLLOG line lacks the field {error}, so the log cannot be read.") from error
        except (TypeError, AttributeError) as error:
            raise UncheckableLog(f"A :::MLLOG line is not a log entry ({error}), so the log cannot be read.") from error
        except (ValueError, ArithmeticError, RecursionError) as error:
            problems.append(f"A :::MLLOG line cannot be read ({error}): {make_visible(text[:80])}")
    if not texts:
        raise UncheckableLog(f"{path.name} contains no {marker} line: name an MLPerf log of v0.6 or later.")
    return lines, problems


def read_header(lines: Sequence[Any]) -> Header:
    """Return the header; raise `UncheckableLog` for values that must not become part of executed rules."""
    stated = next((metadata(line) for line in lines if line.key == TARGET), {})
    header = Header(
        first(lines, "submission_benchmark"),
        first(lines, "submission_division"),
        first(lines, TARGET),
        stated.get(LOWER_IS_BETTER) is True,
    )
    for key, value in (("submission_benchmark", header.benchmark), ("submission_division", header.division)):
        if value is not None and not (isinstance(value, str) and re.fullmatch(r"[\w-]+", value)):
            raise UncheckableLog(f"The value of {key} is {str(value)[:40]!r}, which is not a name.")
    if header.target is not None and not is_quality(header.target):
        raise UncheckableLog(f"The value of {TARGET} is {str(header.target)[:40]!r}, which is not a quality.")
    return header


def first(lines: Sequence[Any], key: str) -> Any:
    """Return the value of the first line with a key, None without one."""
    return next((line.value["value"] for line in lines if line.key == key), None)


def metadata(line: Any) -> dict[str, Any]:
    """Return the metadata of a line; {} for the text that logs of v6.0 may have instead."""
    found = line.value["metadata"]
    return found if isinstance(found, dict) else {}


def status(lines: Sequence[Any]) -> Any:
    """Return the status of run_stop, None without that line."""
    return next((metadata(line).get("status") for line in lines if line.key == "run_stop"), None)


def absence(key: str, otherwise: str) -> str:
    """Return the problem that a line is missing, with its purpose if it is known."""
    return f"The line {key} is missing: {_MEANING.get(key, otherwise)}."
