"""Check the arguments of commands that pass them on to Hydra, before Hydra reads them."""

import re
from collections.abc import Collection, Sequence

from ..config.error_messages import choices_of_groups
from ..config.key_help import list_keys
from ..core.errors import ConfigurationError
from ..core.suggestions import closest_keys


def check_arguments(program: str, arguments: Sequence[str], options: Collection[str] = ()) -> None:
    """Raise `ConfigurationError` for an option that is none of `options`: `--gpus=2` and `--gpus 2` mean `gpus=2`.

    As argparse does, this accepts the beginning of a long option.
    """
    for index, argument in enumerate(arguments):
        name, has_value, value = argument.lstrip("-").partition("=")
        if not re.match(r"--?[a-zA-Z]", argument) or any(_abbreviates(argument, option) for option in options):
            continue
        following = "".join(arguments[index + 1 : index + 2])
        if not has_value and following and not following.startswith("-") and "=" not in following:
            argument, value = f"{argument} {following}", following
        if name.startswith("help"):
            raise ConfigurationError(f"{argument} is not an option of {program}: write {program} --help.")
        override = _override_of(name, value or "VALUE") if len(name) > 1 else "KEY=VALUE, such as seed=1"
        raise ConfigurationError(f"{argument} is not an option of {program}: write {override}.")


def _override_of(option: str, value: str) -> str:
    """Return the override that means the option, or several of them where its name is only part of a key's."""
    name, known = option.replace("-", "_"), [*choices_of_groups(), *list_keys()]
    matches = [name] if name in known else closest_keys(name, known) or [name]
    return " or ".join(f"{match}={value}" for match in matches)


def _abbreviates(argument: str, option: str) -> bool:
    given = argument.split("=")[0]
    return option.startswith(given) if given.startswith("--") else option == given[:2]
