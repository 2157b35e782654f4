"""The official checker of MLPerf logs, under its own rules or under rules derived from them for another target."""

import logging
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from mlperf_logging.compliance_checker import mlp_compliance

OWN_RULESET = "0.7.0"
"""The rules whose keys the logs of timetrial have."""
OLDEST_RULESET = "0.6.0"
"""The rules of v0.6, whose lines have a marker of their own."""
_RULES = Path(mlp_compliance.__file__).parent
_OFFICIAL = _RULES / f"training_{OWN_RULESET}"
# What the code of a rule may raise on a value that it does not expect.
_RULE_ERRORS = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)


class Header(NamedTuple):
    """The values that decide the rules; None where the log lacks the line."""

    benchmark: str | None
    division: str | None
    target: Any
    lower_is_better: bool


def has_closed_rules(benchmark: str) -> bool:
    """Return whether the ruleset has rules of the closed division for `benchmark`."""
    return (_OFFICIAL / f"closed_{benchmark}.yaml").exists()


def official_benchmarks(ruleset: str = OWN_RULESET) -> set[str]:
    """Return the benchmarks that a ruleset has rules for."""
    files = (_RULES / f"training_{ruleset}").glob("open_*.yaml")
    return {file.stem.removeprefix("open_") for file in files} - {"common"}


@cache
def rulesets() -> tuple[str, ...]:
    """Return the rulesets of MLPerf Training that the installed checker has, the newest first."""
    names = (path.name.removeprefix("training_") for path in _RULES.glob("training_*"))
    versions = [name for name in names if re.fullmatch(r"\d+\.\d+\.\d+", name)]
    return tuple(sorted(versions, key=lambda name: [int(part) for part in name.split(".")], reverse=True))


def newest_ruleset(benchmark: str | None) -> str | None:
    """Return the newest ruleset that has rules for `benchmark`; None if there is none."""
    return next((ruleset for ruleset in rulesets() if benchmark in official_benchmarks(ruleset)), None)


def check_officially(lines: Sequence[Any], header: Header, ruleset: str) -> tuple[str, list[str]]:
    """Return the rules that apply, and the messages of the official checker under them."""
    if ruleset != OWN_RULESET or _takes_official_rules(header):
        rules = f"{header.division or 'open'}, {ruleset}"
        config = _RULES / f"training_{ruleset}" / "common.yaml"
        return rules, _official_messages(lines, str(config), header.benchmark, ruleset)
    with tempfile.TemporaryDirectory() as folder:
        own = _derive_rules(header, Path(folder))
        return f"{ruleset} keys, own target", _official_messages(lines, str(own), header.benchmark, ruleset)


def official_target(benchmark: str, division: str) -> list[float]:
    """Return the qualities that the official rule file requires, in ascending order."""
    records = yaml.load((_OFFICIAL / f"{division}_{benchmark}.yaml").read_text(), Loader=yaml.BaseLoader)
    rules = (record["KEY"] for record in records if record.get("KEY", {}).get("NAME") == "eval_accuracy")
    return sorted(float(number) for number in re.findall(r">=\s*([\d.]+)", str(next(rules)["ATLEAST_ONE_CHECK"])))


def _takes_official_rules(header: Header) -> bool:
    """Return whether the log is closed, states no target of its own, or states the official one."""
    if header.division == "closed" or header.target is None:
        return True
    if header.division != "open" or header.benchmark not in official_benchmarks():
        return False
    stated = list(header.target.values()) if isinstance(header.target, dict) else [header.target]
    return official_target(header.benchmark, "open") == sorted(stated)


def _derive_rules(header: Header, folder: Path) -> Path:
    """Write the official rules of the open division with only benchmark and target replaced; return the first file.

    A benchmark without a rule file takes the open rules of one whose quality is a single number.
    """
    template = header.benchmark if header.benchmark in official_benchmarks() else "bert"
    chain = {"common.yaml": "common.yaml", "open_common.yaml": "open_common.yaml"}
    chain[f"open_{template}.yaml"] = f"open_{header.benchmark}.yaml"
    for source, name in chain.items():
        text = (_OFFICIAL / source).read_text()
        records = yaml.load(text.replace(f"training_{OWN_RULESET}/", f"{folder}/"), Loader=yaml.BaseLoader)
        for record in (record["KEY"] for record in records if "KEY" in record):
            if record["NAME"] == "submission_benchmark":
                record["CHECK"] = f"v['value'] == {header.benchmark!r}"
            if "ATLEAST_ONE_CHECK" in record:
                record["ATLEAST_ONE_CHECK"] = _target_rule(header)
        (folder / name).write_text(yaml.safe_dump(records))
    return folder / "common.yaml"


def _target_rule(header: Header) -> str:
    """Return the expression by which the checker tests a quality; the target has passed `is_quality`."""
    is_nested = isinstance(header.target, dict)
    targets = {f"v['value'][{key!r}]": value for key, value in header.target.items()} if is_nested else {}
    condition = "0 <= {quality} <= {target!r}" if header.lower_is_better else "{target!r} <= {quality} <= 1"
    return " and ".join(
        condition.format(quality=quality, target=float(target))
        for quality, target in (targets or {"v['value']": header.target}).items()
    )


def _official_messages(lines: Sequence[Any], config: str, benchmark: str | None, ruleset: str) -> list[str]:
    """Return the messages of the official checker; those that it raises are worded here."""
    mlp_compliance.enqueued_configs.clear()  # the checker keeps entries of a check that raised
    checker = mlp_compliance.make_checker("training", ruleset, quiet=True, werror=False)
    with _silence_logging():
        try:
            checker.check_loglines(lines, config)
        except FileNotFoundError:
            return [f"Ruleset {ruleset} has no rules for benchmark {benchmark!r} in this division."]
        except _RULE_ERRORS as error:
            return [f"An eval_accuracy line has no quality that the rules can read ({error})."]
    return [*checker.overwritable.values(), *checker.not_overwritable]


def is_quality(target: Any) -> bool:
    """Return whether `target` is a finite number, or a mapping of plain names to such numbers."""
    if isinstance(target, dict):
        plain = all(isinstance(key, str) and re.fullmatch(r"[\w-]+", key) for key in target)
        numbers = all(not isinstance(value, dict) and is_quality(value) for value in target.values())
        return bool(target) and plain and numbers
    return isinstance(target, int | float) and not isinstance(target, bool) and math.isfinite(target)


@contextmanager
def _silence_logging() -> Iterator[None]:
    """Disable the root logger, through which the checker prints its messages."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
