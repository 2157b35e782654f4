"""Read and write `status.json`: a run record as JSON, checked field by field on reading."""

import json
import types
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from ..config.schema import Config
from ..core.found_files import UnreadableFile, read_json
from .run_record import SCHEMA_VERSION, RunRecord

FILE_NAME = "status.json"


def encode_record(record: RunRecord) -> str:
    """Return the record as JSON text; equal records give equal text."""
    return json.dumps(asdict(record), indent=2, allow_nan=False) + "\n"


def read_record(run_dir: Path) -> RunRecord | None:
    """Return the record of a run directory, None where there is none yet.

    Raises `UnreadableFile` for a damaged record, and for one with another `schema_version`.
    """
    path = run_dir / FILE_NAME
    if not path.exists():
        return None
    values = read_json(path)
    if values == {}:  # the run directory was claimed a moment ago
        return None
    if isinstance(values, dict) and values.get("schema_version") != SCHEMA_VERSION:
        reason = "it was made by another version of timetrial"
        raise UnreadableFile(path, reason, "use that version, or run again in a new run directory")
    try:
        record: RunRecord = decode(RunRecord, values)
        _check_config(Config, record.config, "config")
        return record
    except (ValueError, TypeError, ArithmeticError) as error:
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
