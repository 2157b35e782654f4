"""Word the errors of Hydra and OmegaConf as one sentence with the remedy."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hydra.errors import HydraException
from hydra.utils import get_class
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..core.errors import RunError
from ..core.suggestions import choose_one_of, closest, closest_keys
from .search_path import config_folders

_KINDS = {"Integer": "a whole number", "Float": "a number"}
_Words = Callable[[Exception, re.Match[str]], str]
# What other tools call a key.
_SYNONYMS = {
    **dict.fromkeys(("device", "devices", "backend"), "accelerator"),
    **dict.fromkeys(("num_gpus", "n_gpus", "ngpus", "world_size", "nproc_per_node"), "gpus"),
    **dict.fromkeys(("dtype", "amp", "fp16", "bf16"), "precision"),
    **dict.fromkeys(("dataset", "dataset_dir", "data_path"), "data_dir"),
    **dict.fromkeys(("benchmark", "task"), "workload"),
    **dict.fromkeys(("out", "output", "output_dir"), "runs_dir"),
}


def format_error(error: Exception) -> str:
    """Return the error as one sentence; those of Hydra and OmegaConf name the key or the override."""
    if isinstance(error, RunError):
        return str(error)
    for pattern, words in (_HYDRA_ERRORS if isinstance(error, HydraException) else _OMEGACONF_ERRORS).items():
        if match := re.search(pattern, str(error), re.S):
            return words(error, match)
    text = re.sub(r"\b(object|reference)_type=\S+", "", str(error).split("Config search path")[0])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    key = _full_key(error)
    text = " ".join(line for line in lines if not line.startswith("full_key:")).rstrip(".:")
    if isinstance(error, HydraException) and isinstance(error.__cause__, Exception):
        return f"{text} ({format_error(error.__cause__).rstrip('.')})."
    return f"{key}: {text}." if key and key not in text else f"{text}."


def choices_of_groups() -> dict[str, list[str]]:
    """Return the names of the files of each group on the search path, such as `{"scale": ["embedded", ...]}`."""
    groups = defaultdict[str, set[str]](set)
    for folder in config_folders():
        for path in folder.glob("*/**/*.yaml"):
            group, *parts = path.relative_to(folder).with_suffix("").parts
            groups[group].add("/".join(parts))
    return {group: sorted(names) for group, names in sorted(groups.items())}


def format_bare_word(word: str) -> str:
    """Return what to write instead of a word without "=": the choice of a group that it resembles."""
    if word == "help":
        return "help is not an override: write timetrial run --help."
    groups = choices_of_groups()
    for group in ("workload", "scale", *groups):  # a network may have the name of a workload
        if match := closest(word, groups[group])[:1]:
            return f"{word} is not an override: write {group}={match[0]}."
    key = f"{word}=VALUE" if re.fullmatch(r"[a-z_.]+", word) else "KEY=VALUE"
    return f"{word} is not an override: write {key} without spaces around =, such as scale=mini."


def _unknown_key(error: Exception, match: re.Match[str]) -> str:
    """Return the sentence for an override of a key that does not exist."""
    key, value = match.groups()
    cause: Any = error.__cause__
    if cause.full_key.startswith(f"{key}."):  # the value is a mapping with a wrong key in it
        choices = choose_one_of(str(cause.key), [str(name) for name in cause.parent_node])
        return f"There is no key {cause.full_key}: {choices}."
    root = cause.parent_node._get_root()
    known = list(_leaves(OmegaConf.to_container(root)))
    known = [name for name in known if name.startswith("hydra.") == key.startswith("hydra.")]
    optional = [name for name in _optional_keys(root) if name not in known]
    if key in optional:
        return f"{key} is left out by this recipe: write +{key}={value} to set it."
    if meant := _SYNONYMS.get(key):
        allowed = choices_of_groups().get(meant, [value])
        written = f"{meant}={value}" if value in allowed else f"{meant}=NAME with one of {', '.join(allowed)}"
        return f"There is no key {key}: write {written}."
    if not (matches := closest_keys(key, [*known, *optional])):
        return f"There is no key {key}: timetrial run --help lists groups and keys."
    guesses = " or ".join(f"{'+' if name in optional else ''}{name}={value}" for name in matches)
    return f"There is no key {key}: did you mean {guesses}?"


def _leaves(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of all keys, including those that hold other keys."""
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")


def _optional_keys(root: Any) -> Iterator[str]:
    """Yield the settings of the chosen workload and data, which a recipe may leave out."""
    workload, loader = root.get("workload"), OmegaConf.select(root, "data.loader")
    owners = {"training": workload and workload.workload, "data": workload and workload.loaders.get(loader)}
    for part, path in owners.items():
        if path:
            settings = get_class(path).Settings  # type: ignore[attr-defined]
            yield from (f"recipe.{part}.{name}" for name in settings.__dataclass_fields__)


def _unknown_choice(error: Exception, match: re.Match[str]) -> str:
    """Return the sentence for a file of a group that does not exist."""
    group, choice = re.fullmatch(r"(hydra/[^/]+|[^/]+)/?(.*)", match[1]).groups()  # type: ignore[union-attr]
    available = re.search(r"Available options in '[^']+':(.*?)(?:Config search path|$)", str(error), re.S)
    choices = available[1].split() if available else choices_of_groups().get(group, [])
    if group == "recipe":
        of_workload = [name for name in choices if name.startswith(choice.split("/")[0] + "/")]
        choices = of_workload or choices
    return f"{group}={choice} is not known: {choose_one_of(choice, choices, f'{group}=')}."


def _unknown_group(error: Exception, match: re.Match[str]) -> str:
    """Return the sentence for a group that does not exist: a folder of a group, or `hydra` itself."""
    names = f"{match[1]}/{match[2]}".split("/")
    depth = 2 if names[0] == "hydra" else 1
    group, choice = "/".join(names[:depth]), "/".join(names[depth:])
    is_known = depth == 2 or group in choices_of_groups()
    remedy = f"write {group}={choice}." if choice and is_known else "timetrial run --help lists groups and keys."
    return f"There is no group {match[1]}: {remedy}"


def _not_multirun(error: Exception, match: re.Match[str]) -> str:
    override, key = match[1], match[1].split("=")[0]
    values = override.partition("=")[2]
    sentence = (
        f"{override} has several values: choose one, or add -m to timetrial run or timetrial throughput to run each of "
        "them."
    )
    if "." not in key or "Ambiguous" not in str(error):
        return sentence
    return f"{sentence} Or write {key}=[{values}] for a list, or '{key}=\"{values}\"' for one value with a comma."


def _unreadable(error: Exception, match: re.Match[str]) -> str:
    override = getattr(error, "override", None) or match[0]
    return f"{override} cannot be read: quote values with special characters, as in 'run_dir=\"a b\"'."


def _wrong_value(error: Exception, match: re.Match[str]) -> str:
    """Return the sentence for a value of the wrong type."""
    value, kind = match.groups()
    key = _full_key(error)
    if not value:
        return f"{key}= has no value: write {key}=VALUE, or leave it out."
    if value == "{}":
        return f"{key} has no keys below it: write {key}=VALUE."
    return f"{key} must be {_KINDS.get(kind, kind)}, not {value}."


def _not_a_group(error: Exception, match: re.Match[str]) -> str:
    key, node = _full_key(error), getattr(error, "parent_node", None)
    below = OmegaConf.select(node, key.rpartition(".")[2]) if node is not None else None
    if key == "target" and node is not None:  # the metric is that of the recipe's rounds
        below = next(iter((OmegaConf.select(node, "recipe.target") or {}).values()), {})
    names = [f"{key}.{name}" for name in below] if isinstance(below, Mapping) else []
    return f"{key} holds other keys: set one of them{f', such as {names[0]}=VALUE' if names else ''}."


def _unknown_setting(error: Exception, match: re.Match[str]) -> str:
    node = getattr(error, "parent_node", None)
    matches = closest_keys(match[1], [str(key) for key in node] if node is not None else [])
    return f"There is no key {match[1]}" + (f": did you mean {' or '.join(matches)}?" if matches else ".")


def _full_key(error: Exception) -> str:
    match = re.search(r"full_key: *(\S+)", str(error))
    return match[1] if match else ""


def _cause(error: Exception, match: re.Match[str]) -> str:
    """Return the sentence of the error behind one that only names the override."""
    return format_error(error.__cause__) if isinstance(error.__cause__, OmegaConfBaseException) else f"{match[0]}."


_HYDRA_ERRORS: dict[str, _Words] = {
    r"Could not override '(\S+?)'\.(?: No match in the def|\nDid you mean).*use \+[^=]*=(.*)": _unknown_group,
    r"Could not override '(\S+?)'\..*use \+[^=]*=(.*)": _unknown_key,
    r"Could not find '([^']+)'": _unknown_choice,
    r"Error merging override (\S+)": _cause,
    r"Ambiguous value for argument '(.*?)'\n": _not_multirun,
    r"Sweep parameters '(.*?)' requires": _not_multirun,
    r"Error parsing override '(.*?)'\s+missing EQUAL": lambda _, match: format_bare_word(match[1]),
    r"already at '.*?'.\s+Either remove \+ prefix: '(.*?)'": (
        lambda _, match: f"{match[1].split('=')[0]} is set already: write {match[1]} without +."
    ),
    r"Multiple values for (\S+)\. ": (
        lambda _, match: f"{match[1]} is chosen already: write {match[1]}=NAME without +, and only once."
    ),
    r"Could not delete from config. '(.*?)' does not exist": (
        lambda _, match: f"~{match[1]} removes a key that does not exist: leave it out."
    ),
    r"Error resolving interpolation '(.*?)'": (
        lambda _, match: f"{match[1]} refers to a group that is missing: choose it, such as workload=NAME."
    ),
    r"no viable alternative at input|Error parsing override|LexerNoViableAlt|mismatched|token recognition": _unreadable,
}
_OMEGACONF_ERRORS: dict[str, _Words] = {
    r"Value '(.*)' of type '\w+' could not be converted to (\w+)": _wrong_value,
    r"Value '(.*)' is not a valid (bool)": (
        lambda error, match: f"{_full_key(error)} must be true or false, not {match[1]}."
    ),
    r"field '\w+' is not Optional": (
        lambda error, _: f"{_full_key(error)} needs a value, not null: leave it out for its default."
    ),
    r"Cannot convert '(dict|list)' to string": (
        lambda error, _: f"{_full_key(error)} takes one value: write {_full_key(error)}=VALUE."
    ),
    r"is not a subclass of \w+\. value|Cannot assign \w+ to Dict": _not_a_group,
    r"Key '(.*?)' (?:not in|is not in struct)": _unknown_setting,
    r"Interpolation key '(.*?)' not found": (
        lambda error, match: f"{_full_key(error)}: ${{{match[1]}}} refers to a key that does not exist."
    ),
}
