"""Every command line in the documentation parses, and every Hydra override in it composes and is valid."""

import re
import shlex

import hydra
import pytest
import typer

from timetrial.runner.cli.app import app
from timetrial.runner.cli.throughput import default_overrides
from timetrial.runner.config import override_rules
from timetrial.runner.config.compose import CONFIG_NAME, expand_sweep, initialize, register_schema
from timetrial.runner.config.validation import validate

COMMAND = re.compile(r"(?:^|[\s'\"])(timetrial(?: .*)?)$")
SHELL_VALUE = re.compile(r"\$\(\(.*?\)\)|\$\w+(?:\[\])?")  # of a batch system: a number
HYDRA_COMMANDS = ("run", "throughput", "estimate")
HYDRA_OPTIONS = {"-m", "--multirun", "--cfg", "job", "--help"}
PLACEHOLDERS = {"workload=NAME": "workload=ncf"}


def commands(pages):
    """Yield (page, words) of each line that calls timetrial; two spaces begin a remark."""
    for page in pages:
        for line in page.code:
            if line.startswith("timetrial:") or not (match := COMMAND.search(line)):
                continue
            text = re.split(r"\s{2,}|\s#|[;|]|&&", SHELL_VALUE.sub("1", match[1]))[0]
            if text.count("'") % 2 or text.count('"') % 2:  # the end of a quotation around the command
                text = text[: max(text.rfind("'"), text.rfind('"'))]
            yield page.name, [PLACEHOLDERS.get(word, word) for word in shlex.split(text)[1:] if word != "..."]


def test_finds_commands_of_every_kind(pages):
    found = {words[0] for _, words in commands(pages) if words}
    assert {"run", "throughput", "estimate", "data", "batch", "doctor", "check"} <= found


def test_commands_parse(pages):
    for page, words in commands(pages):
        command, rest = typer.main.get_command(app), list(words)
        while rest and hasattr(command, "commands") and not rest[0].startswith("--"):
            assert rest[0] in command.commands, (page, words)
            command = command.commands[rest.pop(0)]
        if "--help" in rest or rest == ["--install-completion"]:  # it would write to the shell's start file
            continue
        try:
            command.make_context(None, rest)
        except Exception as error:
            pytest.fail(f"{page}: timetrial {shlex.join(words)}: {error}")


def hydra_overrides(words):
    """Return the overrides of a command that takes them, else an empty list.

    Commands with the workload of a package of their own have a test of their own.
    """
    if "workload=tiny_lm" in words:
        return []
    if words[:1] == ["throughput"]:
        words = [*words, *default_overrides(words)]
    if words[:1] and words[0] in HYDRA_COMMANDS:
        return [word for word in words[1:] if word not in HYDRA_OPTIONS]
    return [word for word in words if words[0] in ("batch", "data") and "=" in word and not word.startswith("-")]


def distinct_runs(overrides):
    """Yield runs of a sweep until each value other than a seed's was in one of them."""
    seen = set()
    for index, run in enumerate(expand_sweep(overrides)):
        values = {word for word in run if not word.startswith(("seed=", "seeds."))}
        if not index or values - seen:
            yield tuple(run)
        seen |= values


def test_overrides_compose_and_are_valid(pages):
    lines = sorted({(page, tuple(hydra_overrides(words))) for page, words in commands(pages) if words})
    runs = {run: page for page, line in lines for run in distinct_runs(line)}
    register_schema()
    with initialize():
        for run, page in runs.items():
            accelerator = [] if any(word.startswith("accelerator=") for word in run) else ["accelerator=cpu"]
            try:
                validate(hydra.compose(CONFIG_NAME, overrides=override_rules.complete([*accelerator, *run])))
            except Exception as error:
                pytest.fail(f"{page}: {shlex.join(run)}: {error}")


def test_dataset_names_exist(pages, root):
    known = {path.stem for path in (root / "datasets" / "registry" / "sources").glob("*.yaml")}
    for page, words in commands(pages):
        if words[:2] in (["data", "fetch"], ["data", "bundle"], ["data", "verify"], ["data", "prepare"]):
            names = [word for word in words[2:] if re.fullmatch(r"[a-z][\w-]*", word)]
            assert set(names) <= known, (page, words)
