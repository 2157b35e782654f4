"""The official checker of MLPerf logs, under its own rules or under rules derived from them for another target."""

import logging
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from mlperf_logging.compliance_checker import mlp_compliance

RULESET = "0.7.0"
_OFFICIAL = Path(mlp_compliance.__file__).parent / f"training_{RULESET}"


class Header(NamedTuple):
    """The values that decide the rules; None where the log lacks the line."""

    benchmark: str | None
    division: str | None
    target: Any
    lower_is_better: bool


def has_closed_rules(benchmark: str) -> bool:
    """Return whether the ruleset has rules of the closed division for `benchmark`."""
    return (_OFFICIAL / f"closed_{benchmark}.yaml").exists()


def official_benchmarks() -> set[str]:
    """Return the benchmarks that the ruleset has rules for."""
    return {file.stem.removeprefix("open_") for file in _OFFICIAL.glob("open_*.yaml")} - {"common"}


def check_officially(lines: Sequence[Any], header: Header) -> tuple[str, list[str]]:
    """Return the rules that apply, and the messages of the official checker under them."""
    if _takes_official_rules(header):
        rules = f"{header.division or 'open'}, {RULESET}"
        return rules, _official_messages(lines, str(_OFFICIAL / "common.yaml"), header.benchmark)
    with tempfile.TemporaryDirectory() as folder:
        config = _derive_rules(header, Path(folder))
        return f"{RULESET} keys, own target", _official_messages(lines, str(config), header.benchmark)


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
        records = yaml.load(text.replace(f"training_{RULESET}/", f"{folder}/"), Loader=yaml.BaseLoader)
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


def _official_messages(lines: Sequence[Any], config: str, benchmark: str | None) -> list[str]:
    """Return the messages of the official checker; those that it raises are worded here."""
    mlp_compliance.enqueued_configs.clear()  # the checker keeps entries of a check that raised
    checker = mlp_compliance.make_checker("training", RULESET, quiet=True, werror=False)
    with _silence_logging():
        try:
            checker.check_loglines(lines, config)
        except FileNotFoundError:
            return [f"Ruleset {RULESET} has no rules for benchmark {benchmark!r} in this division."]
        except (KeyError, TypeError) as error:
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
