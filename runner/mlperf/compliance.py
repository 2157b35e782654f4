"""The compliance verdict: the official checker under the right rules, our sequence test, and plain words for both."""

import logging
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

from .log_writer import RESUMED, TARGET, VERSION

RULESET = "0.7.0"
_OFFICIAL = Path(mlp_compliance.__file__).parent / f"training_{RULESET}"
_MEANING = {
    "cache_clear": "it says whether file-system caches were cleared before the run",
    "init_start": "it opens the untimed building of the model",
    "init_stop": "it closes the untimed building of the model",
    "run_start": "it starts the clock",
    "run_stop": "it stops the clock and holds the status",
    "submission_org": "it names who ran it",
    "submission_platform": "it names the system",
    "submission_division": "it says closed or open, which decides the rules",
    "submission_status": "it says cloud, onprem, preview or research",
    "submission_benchmark": "it names the benchmark, which decides the rules",
    "train_samples": "it gives the size of the training set",
    "eval_samples": "it gives the size of the evaluation set",
    "eval_accuracy": "it gives the quality after an epoch",
    "seed": "it makes the run repeatable",
    TARGET: "it states the quality that the run was to reach",
}
_BLOCK = ("block_start", "epoch_start", "epoch_stop", "eval_start", "eval_accuracy", "eval_stop", "block_stop")
_OURS = ("seed", "global_batch_size", "gradient_accumulation_steps", TARGET)


@dataclass(frozen=True)
class Verdict:
    """Whether a log complies, with which rules, and a sentence for each thing that is wrong."""

    compliant: bool
    rules: str
    problems: list[str]


def check(path: Path) -> Verdict:
    """Checks a log in the `:::MLLOG` dialect; the rules follow from what the log itself says."""
    try:
        lines, broken = mlp_parser.parse_file(str(path), ruleset=RULESET)
        if any(not isinstance(line.value["metadata"], dict) for line in lines):
            raise TypeError("metadata that is no object")
    except KeyError as error:
        return Verdict(False, "none", [f"A :::MLLOG line lacks the field {error}, so the log cannot be read."])
    except (TypeError, ValueError, AttributeError) as error:
        return Verdict(False, "none", [f"A :::MLLOG line is no event ({error}), so the log cannot be read."])
    if not lines and not broken:
        return Verdict(False, "none", [f"{path.name} holds no :::MLLOG line: it is no MLPerf log of v0.7 or later."])
    problems = [f"A :::MLLOG line cannot be read ({reason.strip()}): {text.strip()[:80]}" for text, reason in broken]
    benchmark, division = _first(lines, "submission_benchmark"), _first(lines, "submission_division")
    target, ours = _first(lines, TARGET), _first(lines, VERSION) is not None
    # What a log says becomes part of rules that the checker executes, so only plain names and numbers may pass.
    for key, value in (("submission_benchmark", benchmark), ("submission_division", division)):
        if value is not None and not (isinstance(value, str) and re.fullmatch(r"[\w-]+", value)):
            return Verdict(False, "none", [f"The line {key} holds {str(value)[:40]!r}, which is no name."])
    if target is not None and not _is_quality(target):
        return Verdict(False, "none", [f"The line {TARGET} holds {str(target)[:40]!r}, which is no quality."])
    if target is None and benchmark not in _official_benchmarks():
        name = f"names the benchmark {benchmark!r}, which ruleset {RULESET} does not know" if benchmark else ""
        problems.append(f"The log {name or 'lacks submission_benchmark'} and states no {TARGET}, so no rules fit it.")
    rules, config = f"{division or 'open'}, {RULESET}", str(_OFFICIAL / "common.yaml")
    with tempfile.TemporaryDirectory() as folder:
        if target is not None and not _is_official(benchmark, division, target):
            rules = f"{RULESET} keys, own target"
            config = str(_derive(str(benchmark), str(division), target, Path(folder)))
        problems += _official_problems(path, config, benchmark, target)
    if ours:
        problems += _sequence_problems(lines)
    unique = list(dict.fromkeys(problems))
    return Verdict(not unique, rules, unique)


def has_closed_rules(benchmark: str) -> bool:
    """True if the ruleset has rules of the closed division for `benchmark`."""
    return (_OFFICIAL / f"closed_{benchmark}.yaml").exists()


def _official_benchmarks() -> set[str]:
    return {file.stem.removeprefix("open_") for file in _OFFICIAL.glob("open_*.yaml")} - {"common"}


def _quality_rule(benchmark: str, division: str) -> str:
    records = yaml.load((_OFFICIAL / f"{division}_{benchmark}.yaml").read_text(), Loader=yaml.BaseLoader)
    rules = (record["KEY"] for record in records if record.get("KEY", {}).get("NAME") == "eval_accuracy")
    return str(next(rules)["ATLEAST_ONE_CHECK"])


def _is_official(benchmark: Any, division: Any, target: Any) -> bool:
    """True if `target` is the one that the official rule file demands."""
    if benchmark not in _official_benchmarks() or division not in ("closed", "open"):
        return False
    demanded = [float(number) for number in re.findall(r">=\s*([\d.]+)", _quality_rule(benchmark, division))]
    stated = list(target.values()) if isinstance(target, dict) else [target]
    return sorted(demanded) == sorted(stated)


def _is_quality(target: Any) -> bool:
    """True for a finite number, or for several by plain names."""
    if isinstance(target, dict):
        plain = all(isinstance(key, str) and re.fullmatch(r"[\w-]+", key) for key in target)
        numbers = all(not isinstance(value, dict) and _is_quality(value) for value in target.values())
        return bool(target) and plain and numbers
    return isinstance(target, int | float) and not isinstance(target, bool) and math.isfinite(target)


def _derive(benchmark: str, division: str, target: Any, folder: Path) -> Path:
    """Writes the installed package's own rules with only benchmark and target replaced; returns the first file.

    A benchmark without a rule file takes the open one of a benchmark whose quality is one number.
    """
    known = benchmark in _official_benchmarks()
    division = division if known and division == "closed" else "open"
    template = benchmark if known else "bert"
    chain = {"common.yaml": "common.yaml", f"{division}_common.yaml": f"{division}_common.yaml"}
    chain[f"{division}_{template}.yaml"] = f"{division}_{benchmark}.yaml"
    for source, name in chain.items():
        text = (_OFFICIAL / source).read_text()
        records = yaml.load(text.replace(f"training_{RULESET}/", f"{folder}/"), Loader=yaml.BaseLoader)
        for record in (record["KEY"] for record in records if "KEY" in record):
            if record["NAME"] == "submission_benchmark":
                record["CHECK"] = f"v['value'] == {benchmark!r}"
            if "ATLEAST_ONE_CHECK" in record:
                record["ATLEAST_ONE_CHECK"] = _demand(target)
        (folder / name).write_text(yaml.safe_dump(records))
    return folder / "common.yaml"


def _demand(target: Any) -> str:
    """The checker's expression for a quality that `_is_quality`."""
    if not isinstance(target, dict):
        return f"v['value'] >= {float(target)!r} and v['value'] < 1"
    parts = (f"v['value'][{key!r}] >= {float(least)!r} and v['value'][{key!r}] < 1" for key, least in target.items())
    return " and ".join(parts)


def _official_problems(path: Path, config: str, benchmark: Any, target: Any) -> list[str]:
    mlp_compliance.enqueued_configs.clear()  # the checker keeps entries of a check that raised
    checker = mlp_compliance.make_checker("training", RULESET, quiet=True, werror=False)
    with _silenced():
        try:
            mlp_compliance.main(str(path), config, checker)
        except FileNotFoundError:
            return [f"Ruleset {RULESET} has no rules for benchmark {benchmark!r} in this division."]
        except (KeyError, TypeError) as error:
            return [f"An eval_accuracy line holds no quality that the rules can read ({error})."]
    messages = [*checker.overwritable.values(), *checker.not_overwritable]
    return [_in_plain_words(message, target) for message in messages if "parsing errors" not in message]


def _in_plain_words(message: str, target: Any) -> str:
    """A message of the official checker as one sentence that names the line."""
    if found := re.match(r"Required (\w+) occurrence of '(\w+)' but found (\d+)", message):
        _, key, count = found.groups()
        if count == "0":
            return f"The line {key} is missing: {_MEANING.get(key, 'the rules demand it')}."
        return f"The line {key} stands {count} times with different values: the rules allow it once."
    if found := re.match(r"Required AT_LEAST_ONE occurrence of (.+)", message):
        return f"Neither of the lines {found[1].replace(chr(39), '')} is there: the rules demand one of them."
    if message.startswith("Failed checks for eval_accuracy"):
        aim = f" ({target})" if target is not None else ""
        return f"No eval_accuracy line reaches the target{aim} below 1: train longer, or call it not converged."
    if found := re.match(r"CHECK for '(\w+)' failed in line (\d+)", message):
        test = re.search(r"failed test: (.+)", message)
        return f"The line {found[1]} breaks the rule {test[1].strip() if test else ''!r} of its ruleset."
    return message.splitlines()[0].rstrip(".:") + "."


def _sequence_problems(lines: Sequence[Any]) -> list[str]:
    """What the official checker lets pass: lines that only we demand, and blocks whose lines are out of order."""
    problems = [
        f"The line {key} is missing: {_MEANING.get(key, 'our logs state it')}."
        for key in _OURS
        if _first(lines, key) is None
    ]
    expected, epoch, stopped = list(_BLOCK), 0, False
    for line in lines:
        if line.key == "run_stop":
            if expected != list(_BLOCK) and line.value["metadata"].get("status") != "aborted":
                problems += _missing(expected, epoch)
            expected, stopped = list(_BLOCK), True
        if line.key == RESUMED:
            expected = list(_BLOCK)  # the interrupted block is begun again
        if line.key not in _BLOCK:
            continue
        if line.key not in expected:
            problems += _missing(expected, epoch)
            expected = list(_BLOCK)
        if line.key == "block_start":
            epoch = line.value["metadata"].get("first_epoch_num", 0)
            if line.value["metadata"].get("epoch_count") != 1:
                expected = [key for key in _BLOCK if key not in ("epoch_start", "epoch_stop")]
        place = expected.index(line.key)
        problems += _missing(expected[:place], epoch)
        expected = expected[place + 1 :] or list(_BLOCK)
    if expected != list(_BLOCK) and not stopped:  # past the target a block may be cut short
        problems += _missing(expected, epoch)
    return problems


def _missing(keys: Sequence[str], epoch: int) -> list[str]:
    return [
        f"The line {key} is missing in the block of epoch {epoch}: a block's lines come whole and in order."
        for key in keys
    ]


def _first(lines: Sequence[Any], key: str) -> Any:
    return next((line.value["value"] for line in lines if line.key == key), None)


@contextmanager
def _silenced() -> Iterator[None]:
    """The checker reports through the root logger; its findings are ours to word."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
