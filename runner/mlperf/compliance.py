"""Judge MLPerf logs: the official checker with the rules that apply to a log, and checks that it lacks."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mlperf_logging.compliance_checker.mlp_parser import ruleset_070

from ..core.found_files import UnreadableFile, as_data, make_visible, read_bytes
from ..record.run_record import ComplianceVerdict
from .log_writer import LOWER_IS_BETTER, RESUMED, TARGET, VERSION
from .official_checker import RULESET, Header, check_officially, is_quality, official_benchmarks

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
_BLOCK = ("block_start", "epoch_start", "epoch_stop", "eval_start", "eval_accuracy", "eval_stop", "block_stop")
_REQUIRED = ("seed", "global_batch_size", "gradient_accumulation_steps", TARGET)  # in timetrial's own logs
_CLOCK = ("run_start", "run_stop")
_LINE = re.compile(rb":::MLLOG [^\r\n]*")
_MAX_BYTES = 1 << 26  # the log of a thousand epochs takes two megabytes
_MAX_LINE = 100_000  # characters


class _UncheckableLog(ValueError):
    """A file to which no rules can be applied; the text is the problem."""


def check(path: Path) -> ComplianceVerdict:
    """Return the verdict on a log in the `:::MLLOG` format, under the rules that its own header selects.

    Closed logs are judged by the official rules alone. Open ones may state a target of their own (`quality_target`).

    The log of a run that missed its target can comply. That of a run that was stopped is not judged, unless it
    contains what no log may: unreadable lines, a second run_start or run_stop, times that run backwards, or a block
    without samples.
    """
    try:
        lines, unreadable = _parse(path)
        header = _read_header(lines)
    except _UncheckableLog as error:
        return ComplianceVerdict(False, "none", (str(error),), converged=False)
    is_own = _first(lines, VERSION) is not None
    problems = [*unreadable, *_repeated_clock(lines), *_no_duration(lines)]
    if is_own:
        problems += [*_falling_times(lines), *_contradictory_settings(lines), *_empty_blocks(lines)]
    if not problems and _was_stopped(lines):
        return ComplianceVerdict(None, "none", (), converged=False)
    problems += _unknown_benchmark(header)
    rules, messages = check_officially(lines, header)
    missed = [message for message in messages if message.startswith("Failed checks for eval_accuracy")]
    problems += [_explain(message) for message in messages if message not in missed]
    if missed and _status(lines) != "aborted":
        problems.append(_contradiction(header.target, _status(lines)))
    if is_own:
        problems += [*_sequence_problems(lines), *_uncleared_caches(lines, header)]
    unique = tuple(dict.fromkeys(problems))
    return ComplianceVerdict(
        not unique, rules, unique, converged=not missed and _first(lines, "eval_accuracy") is not None
    )


def _parse(path: Path) -> tuple[Sequence[Any], list[str]]:
    """Return the lines of the log, and a problem for each line that is not valid JSON with finite numbers.

    The official parser takes minutes for a long line, so it is given each line from its last marker on.
    """
    lines, problems = [], []
    try:
        texts = [match[0].decode("utf-8", "replace") for match in _LINE.finditer(read_bytes(path, _MAX_BYTES))]
    except UnreadableFile as error:
        raise _UncheckableLog(str(error)) from error
    for number, text in enumerate(texts):
        text = text[text.rindex(ruleset_070.TOKEN) :].strip()
        try:
            if len(text) > _MAX_LINE:
                raise ValueError(f"longer than {_MAX_LINE} characters")
            line = ruleset_070.string_to_logline(number, text)
            entry, _ = as_data(line.value), as_data(line.timestamp)
            if not isinstance(entry["metadata"], dict) or not isinstance(line.key, str):
                raise TypeError("its key is no text or its metadata is no object")
            lines.append(line._replace(value=entry, full_string=make_visible(text)))
        except KeyError as error:
            raise _UncheckableLog(f"A :::MLLOG line lacks the field {error}, so the log cannot be read.") from error
        except (TypeError, AttributeError) as error:
            raise _UncheckableLog(
                f"A :::MLLOG line is not a log entry ({error}), so the log cannot be read."
            ) from error
        except (ValueError, ArithmeticError, RecursionError) as error:
            problems.append(f"A :::MLLOG line cannot be read ({error}): {make_visible(text[:80])}")
    if not texts:
        raise _UncheckableLog(f"{path.name} contains no :::MLLOG line: name an MLPerf log of v0.7 or later.")
    return lines, problems


def _read_header(lines: Sequence[Any]) -> Header:
    """Return the header; raise `_UncheckableLog` for values that must not become part of executed rules."""
    stated: dict[str, Any] = next((line.value["metadata"] for line in lines if line.key == TARGET), {})
    header = Header(
        _first(lines, "submission_benchmark"),
        _first(lines, "submission_division"),
        _first(lines, TARGET),
        stated.get(LOWER_IS_BETTER) is True,
    )
    for key, value in (("submission_benchmark", header.benchmark), ("submission_division", header.division)):
        if value is not None and not (isinstance(value, str) and re.fullmatch(r"[\w-]+", value)):
            raise _UncheckableLog(f"The value of {key} is {str(value)[:40]!r}, which is not a name.")
    if header.target is not None and not is_quality(header.target):
        raise _UncheckableLog(f"The value of {TARGET} is {str(header.target)[:40]!r}, which is not a quality.")
    return header


def _repeated_clock(lines: Sequence[Any]) -> Iterator[str]:
    """Yield a problem for each end of the clock that is logged twice; the official checker lets equal lines pass."""
    for key in _CLOCK:
        count = sum(line.key == key for line in lines)
        if count > 1:
            yield _repetition(key, count)


def _no_duration(lines: Sequence[Any]) -> Iterator[str]:
    """Yield a problem if the clock stops at or before its start."""
    start, stop = (next((line.timestamp for line in lines if line.key == key), None) for key in _CLOCK)
    if start is not None and stop is not None and stop <= start:
        yield "The line run_stop is not later than run_start, so the log states no time to train."


def _falling_times(lines: Sequence[Any]) -> Iterator[str]:
    """Yield a problem for the first line of an own log whose time is negative or earlier than that of the line before.

    Logs of others may be the output of several processes, whose lines need not be in order.
    """
    before = 0.0
    for line in lines:
        if line.timestamp < before:
            yield f"The line {line.key} has an earlier time than the line before it: the clock ran backwards."
            return
        before = line.timestamp


def _contradictory_settings(lines: Sequence[Any]) -> Iterator[str]:
    """Yield a problem for an own log that states several targets, or a global batch without samples."""
    targets = [line.value["value"] for line in lines if line.key == TARGET]
    if any(target != targets[0] for target in targets):
        yield f"The line {TARGET} occurs with different values: a run has one target."
    batch = _first(lines, "global_batch_size")
    if isinstance(batch, int | float) and batch < 1:
        yield f"The value of global_batch_size is {batch}: a batch has at least one sample."


def _empty_blocks(lines: Sequence[Any]) -> Iterator[str]:
    """Yield a problem for each block of an own log whose logged throughput is 0.

    A block that was interrupted after its last step starts twice: its samples were trained before the interruption.
    """
    first_epochs: list[Any] = []  # of the blocks that have started
    for line in lines:
        if line.key == "block_start":
            first_epochs.append(line.value["metadata"].get("first_epoch_num"))
        stats = line.value["value"] if line.key == "tracked_stats" else None
        is_empty = isinstance(stats, dict) and stats.get("throughput") == 0
        if is_empty and first_epochs.count(first_epochs[-1] if first_epochs else None) < 2:
            yield f"The block that ends with epoch {line.value['metadata'].get('step')} trained 0 samples."


def _uncleared_caches(lines: Sequence[Any], header: Header) -> Iterator[str]:
    """Yield a problem for an own closed log of a run that may have read its data from memory."""
    if header.division == "closed" and _first(lines, "cache_clear") is False:
        yield "The value of cache_clear is false: the closed division wants caches cleared before the run."


def _was_stopped(lines: Sequence[Any]) -> bool:
    """Return whether the run ended during initialization, within an epoch or within an evaluation."""
    keys = [line.key for line in lines]
    last = next((key for key in reversed(keys) if key in _BLOCK), "")
    is_open = last in ("block_start", "epoch_start", "eval_start") and _status(lines) in (None, "aborted")
    return is_open or keys[-1] == "init_start"


def _status(lines: Sequence[Any]) -> Any:
    """Return the status of run_stop, None without that line."""
    return next((line.value["metadata"].get("status") for line in lines if line.key == "run_stop"), None)


def _unknown_benchmark(header: Header) -> Iterator[str]:
    """Yield a problem if neither the ruleset nor the log states a target."""
    if header.target is not None or header.benchmark in official_benchmarks():
        return
    if header.benchmark:
        cause = f"names the benchmark {header.benchmark!r}, which ruleset {RULESET} does not know"
    else:
        cause = "lacks submission_benchmark"
    yield f"The log {cause} and states no {TARGET}, so no rules apply to it."


def _explain(message: str) -> str:
    """Return a message of the official checker as one sentence that names the line."""
    if match := re.match(r"Required (\w+) occurrence of '(\w+)' but found (\d+)", message):
        _, key, count = match.groups()
        return _repetition(key, int(count)) if int(count) else _absence(key, "the rules require it")
    if match := re.match(r"Required AT_LEAST_ONE occurrence of (.+)", message):
        return f"The log has none of the lines {match[1].replace(chr(39), '')}: the rules require one of them."
    if match := re.match(r"CHECK for '(\w+)' failed in line (\d+)", message):
        test = re.search(r"failed test: (.+)", message)
        return f"The line {match[1]} breaks the rule {test[1].strip() if test else ''!r} of its ruleset."
    return message.splitlines()[0].rstrip(".:") + "."


def _repetition(key: str, count: int) -> str:
    return f"The line {key} occurs {count} times: the rules allow one."


def _absence(key: str, otherwise: str) -> str:
    return f"The line {key} is missing: {_MEANING.get(key, otherwise)}."


def _contradiction(target: Any, status: Any) -> str:
    aim = "" if target is None else f" ({target})"
    return (
        f"No eval_accuracy line reaches the target{aim}, but run_stop has the status {status!r}: "
        "log the status aborted for a run that misses its target."
    )


def _sequence_problems(lines: Sequence[Any]) -> list[str]:
    """Return what the official checker lets pass in an own log: required lines that are missing, and block order."""
    problems = [_absence(key, "timetrial's logs state it") for key in _REQUIRED if _first(lines, key) is None]
    expected, epoch, stopped = list(_BLOCK), 0, False
    for line in lines:
        if line.key == "run_stop":
            if expected != list(_BLOCK):
                problems += _missing_in_block(expected, epoch)
            expected, stopped = list(_BLOCK), True
        if line.key == RESUMED:
            stopped_in_evaluation = expected[0] == "eval_accuracy"
            expected = list(_BLOCK[_BLOCK.index("eval_start") :] if stopped_in_evaluation else _BLOCK)
        if line.key not in _BLOCK:
            continue
        if line.key not in expected:
            problems += _missing_in_block(expected, epoch)
            expected = list(_BLOCK)
        if line.key == "block_start":
            epoch = line.value["metadata"].get("first_epoch_num", 0)
            if line.value["metadata"].get("epoch_count") != 1:
                expected = [key for key in _BLOCK if key not in ("epoch_start", "epoch_stop")]
        place = expected.index(line.key)
        problems += _missing_in_block(expected[:place], epoch)
        expected = expected[place + 1 :] or list(_BLOCK)
    if expected != list(_BLOCK) and not stopped:  # a block past the target may be incomplete
        problems += _missing_in_block(expected, epoch)
    return problems


def _missing_in_block(keys: Sequence[str], epoch: int) -> list[str]:
    return [
        f"The line {key} is missing in the block of epoch {epoch}: a block has all of its lines, in order."
        for key in keys
    ]


def _first(lines: Sequence[Any], key: str) -> Any:
    return next((line.value["value"] for line in lines if line.key == key), None)
