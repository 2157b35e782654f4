"""Read and write `status.json`: a run record as JSON, checked field by field on reading."""

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from ..config.schema import Config
from ..core.found_files import UnreadableFile, read_config, read_json
from .run_record import SCHEMA_VERSION, RunRecord, RunState
from .throughput_result import StepCost
from .training_result import Block, TrainingResult

FILE_NAME = "status.json"
# Flags of records without a version that have another name now.
_FLAG_NAMES = {"neighbours": "other processes", "low utilisation": "low utilization"}


def encode_record(record: RunRecord) -> str:
    """Return the record as JSON text; equal records give equal text."""
    return json.dumps(asdict(record), indent=2, allow_nan=False) + "\n"


def read_record(run_dir: Path) -> RunRecord | None:
    """Return the record of a run directory, None where there is none yet; raise `UnreadableFile` for a damaged one.

    The status.json of timetrial before the record had a version is read together with config.yaml and system.json.
    """
    path = run_dir / FILE_NAME
    if not path.exists():
        return None
    values = read_json(path)
    if values == {}:  # the run directory was claimed a moment ago
        return None
    try:
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
        if "schema_version" not in values:
            values = _from_unversioned(values, run_dir)
        elif values["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"its schema_version is {values['schema_version']!r}, not {SCHEMA_VERSION}")
        record: RunRecord = decode(RunRecord, values)
        _check_config(Config, record.config, "config")
        return record
    except UnreadableFile:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise UnreadableFile(path, f"{type(error).__name__}: {error}") from error


def _check_config(schema: type, config: Any, where: str) -> None:
    """Raise ValueError for a setting that is not of the type in `schema`; other versions may lack or add settings."""
    if not isinstance(config, dict):
        raise ValueError(f"{where} is no object")
    for name in config.keys() & _hints(schema).keys():
        kind, value = _hints(schema)[name], config[name]
        if is_dataclass(kind):
            _check_config(cast(type, kind), value, f"{where}.{name}")
        else:
            decode(kind, value, f"{where}.{name}")
            if name in ("gpus", "global_batch_size") and value < 1:
                raise ValueError(f"{where}.{name} is {value}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def decode(kind: Any, value: Any, where: str = "") -> Any:
    """Return the JSON `value` as `kind`; raise ValueError naming the field `where` for another type."""
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        (inner,) = (option for option in get_args(kind) if option is not type(None))
        return decode(inner, value, where)
    if is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    if origin in (tuple, list):
        if not isinstance(value, list):
            raise ValueError(f"{where} is no list")
        return origin(decode(get_args(kind)[0], entry, f"{where}[{place}]") for place, entry in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is no object")
        return {key: decode(get_args(kind)[1], entry, f"{where}.{key}") for key, entry in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{where} is {str(value)[:40]!r}, not a {kind.__name__}")
    return value


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where or 'it'} is no object")
    known = {entry.name: entry for entry in fields(kind)}
    if unknown := value.keys() - known.keys():
        raise ValueError(f"{where}.{min(unknown)} is unknown".lstrip("."))
    required = {name for name, entry in known.items() if entry.default is MISSING and entry.default_factory is MISSING}
    if missing := required - value.keys():
        raise ValueError(f"{where}.{min(missing)} is missing".lstrip("."))
    hints = _hints(kind)
    return kind(**{name: decode(hints[name], entry, f"{where}.{name}".lstrip(".")) for name, entry in value.items()})


def _from_unversioned(status: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """Return the values of a RunRecord from the status.json that timetrial wrote before records had a version."""
    config_file, system_file = run_dir / "config.yaml", run_dir / "system.json"
    config = read_config(config_file) if config_file.exists() else {}
    environment = read_json(system_file) if system_file.exists() else {}
    values: dict[str, Any] = {
        "state": RunState(status.get("state", RunState.CREATED)).value,
        "run_class": status.get("class", "clean"),
        "exit_code": status.get("exit_code"),
        "error": status.get("error", ""),
        "finished_at": status.get("finished"),
        "attempts": [
            {"started_at": float(status.get("run_started", 0.0)), "hostname": status["host"], "pid": status["pid"]}
        ]
        * (status.get("restarts", 0) + 1)
        if "pid" in status
        else [],
        "environment": {("gpus" if key == "cards" else key): value for key, value in environment.items()},
        "config": config,
        "peak_memory_bytes": status.get("peak_memory_bytes"),
        "verdict": status.get("verdict"),
        "flags": {_FLAG_NAMES.get(name, name): text for name, text in (status.get("flags") or {}).items()},
        "staging": status.get("staged") or None,
        "telemetry": _unversioned_telemetry(status.get("telemetry")),
    }
    if cost := status.get("cost"):
        values["cost"] = {"usd": cost["dollars"], "usd_per_hour": cost["dollars_an_hour"]}
    result = status.get("result")
    if status.get("blocks"):
        values["training"] = _unversioned_training(status, result or {})
    elif result:
        values["throughput"] = _unversioned_throughput(result)
    return values


def _unversioned_telemetry(summary: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not summary:
        return None
    return {("gpus" if key == "cards" else key): value for key, value in summary.items()}


def _unversioned_training(status: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    blocks = [
        Block(
            **{key: block[key] for key in ("first_epoch", "epochs", "samples", "loss", "train_seconds")},
            tokens=block.get("tokens", 0),
            data_wait_seconds=block.get("waited_seconds", 0.0),
            eval_seconds=block["eval_seconds"],
            quality=block["quality"],
            ended_at=block["ended"],
            past_target=block["past_target"],
        )
        for block in status["blocks"]
    ]
    started = float(status["run_started"])
    training = TrainingResult.from_blocks(
        blocks,
        target=result.get("target") or {},
        reached=bool(result.get("reached")),
        started_at=started,
        stopped_at=started + float(result.get("seconds", blocks[-1].ended_at - started)),
        lost_seconds=float(status.get("lost_seconds", 0.0)),
    )
    return dict(json.loads(json.dumps(asdict(training))))


def _unversioned_throughput(result: Mapping[str, Any]) -> dict[str, Any]:
    same = [
        "steps",
        "samples_per_second",
        "tokens_per_second",
        "train_ms",
        "eval_samples_per_second",
        "eval_tokens_per_second",
        "eval_ms",
        "spread",
        "train_size",
        "eval_size",
        "train_rates",
        "eval_rates",
        "peer_to_peer",
    ]
    counted = result.get("counted")
    step_cost = {entry.name: counted[entry.name] for entry in fields(StepCost)} if counted else None
    return {key: result.get(key) for key in same} | {
        "train_seconds": 1.0,  # only the share of waiting was kept
        "data_wait_seconds": float(result["waited"]),
        "first_block_extra_seconds": result["first_seconds"],
        "gpus": result["cards"],
        "datasheet_tflops": result.get("sheet_tflops"),
        "usd_per_samples_per_second": result.get("dollars_per_sample_a_second"),
        "step_cost": step_cost,
    }
