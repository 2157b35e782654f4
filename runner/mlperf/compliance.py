"""Judge MLPerf logs: the official checker with the rules that apply to a log, and checks that it lacks."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..record.run_record import ComplianceVerdict
from . import own_log
from .log_lines import UncheckableLog, absence, first, parse, read_header, status
from .log_writer import TARGET, VERSION
from .official_checker import OWN_RULESET, Header, check_officially, newest_ruleset, official_benchmarks, rulesets
from .own_log import BLOCK

_CLOCK = ("run_start", "run_stop")
_ROUND = re.compile(r"v(\d\.\d)")


def check(path: Path, ruleset: str | None = None) -> ComplianceVerdict:
    """Return the verdict on a log, under the rules that apply to it.

    `ruleset` is a version such as "5.0.0". Without it, a log of timetrial is judged by 0.7.0, whose keys it has;
    another log by the rules of the round that a folder of its path names (v5.0), or else by the newest that know its
    benchmark. It is not judged if there are none. Closed logs are judged by the official rules alone. Open ones of
    timetrial may state a target of their own (`quality_target`).

    The log of a run that missed its target can comply. That of a run that was stopped is not judged, unless it
    contains what no log may: unreadable lines, a second run_start or run_stop, times that run backwards, or a block
    without samples.
    """
    stated = ruleset or _ruleset_of_folder(path)
    if stated and stated not in rulesets():
        sentence = (
            f"The official checker has no rules of MLPerf v{stated.removesuffix('.0')}, so the log is not judged."
        )
        return ComplianceVerdict(None, "none", (sentence,), converged=False)
    try:
        lines, unreadable = parse(path, stated or "")
        header = read_header(lines)
    except UncheckableLog as error:
        return ComplianceVerdict(False, "none", (str(error),), converged=False)
    is_own = first(lines, VERSION) is not None
    problems = [*unreadable, *_repeated_clock(lines), *_no_duration(lines)]
    if is_own:
        problems += own_log.settings_problems(lines)
    if not problems and _was_stopped(lines):
        return ComplianceVerdict(None, "none", (), converged=False)
    chosen = ruleset or (OWN_RULESET if is_own or header.target is not None else stated)
    chosen = chosen or newest_ruleset(header.benchmark) or OWN_RULESET
    problems += _unknown_benchmark(header, chosen)
    rules, messages = check_officially(lines, header, chosen)
    missed = [message for message in messages if message.startswith("Failed checks for eval_accuracy")]
    problems += [_explain(message) for message in messages if message not in missed]
    if missed and status(lines) != "aborted":
        problems.append(_contradiction(header.target, status(lines)))
    if is_own:
        problems += own_log.sequence_problems(lines, header)
    unique = tuple(dict.fromkeys(problems))
    return ComplianceVerdict(
        not unique, rules, unique, converged=not missed and first(lines, "eval_accuracy") is not None
    )


def _ruleset_of_folder(path: Path) -> str | None:
    """Return the ruleset of the round that the innermost folder of a published tree names."""
    rounds = [match[1] for part in path.absolute().parts if (match := _ROUND.fullmatch(part))]
    return f"{rounds[-1]}.0" if rounds else None


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


def _was_stopped(lines: Sequence[Any]) -> bool:
    """Return whether the run ended during initialization, within an epoch or within an evaluation."""
    keys = [line.key for line in lines]
    last = next((key for key in reversed(keys) if key in BLOCK), "")
    is_open = last in ("block_start", "epoch_start", "eval_start") and status(lines) in (None, "aborted")
    return is_open or keys[-1] == "init_start"


def _unknown_benchmark(header: Header, ruleset: str) -> Iterator[str]:
    """Yield a problem if neither the ruleset nor the log states a target."""
    if header.target is not None or header.benchmark in official_benchmarks(ruleset):
        return
    if header.benchmark:
        cause = f"names the benchmark {header.benchmark!r}, which ruleset {ruleset} does not know"
    else:
        cause = "lacks submission_benchmark"
    yield f"The log {cause} and states no {TARGET}, so no rules apply to it."


def _explain(message: str) -> str:
    """Return a message of the official checker as one sentence that names the line."""
    if match := re.match(r"Required (\w+) occurrence of '(\w+)' but found (\d+)", message):
        _, key, count = match.groups()
        return _repetition(key, int(count)) if int(count) else absence(key, "the rules require it")
    if match := re.match(r"Required AT_LEAST_ONE occurrence of (.+)", message):
        return f"The log has none of the lines {match[1].replace(chr(39), '')}: the rules require one of them."
    if match := re.match(r"CHECK for '(\w+)' failed in line (\d+)", message):
        test = re.search(r"failed test: (.+)", message)
        return f"The line {match[1]} breaks the rule {test[1].strip() if test else ''!r} of its ruleset."
    return message.splitlines()[0].rstrip(".:") + "."


def _repetition(key: str, count: int) -> str:
    return f"The line {key} occurs {count} times: the rules allow one."


def _contradiction(target: Any, status: Any) -> str:
    aim = "" if target is None else f" ({target})"
    return (
        f"No eval_accuracy line reaches the target{aim}, but run_stop has the status {status!r}: "
        "log the status aborted for a run that misses its target."
    )
