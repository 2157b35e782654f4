"""Check the arguments of commands that pass them on to Hydra, before Hydra reads them."""

import re
from collections.abc import Collection, Sequence

from ..core.errors import ConfigurationError


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
        raise ConfigurationError(
            f"{argument} is not an option of {program}: write {name.replace('-', '_')}={value or 'VALUE'}."
            if len(name) > 1
            else f"{argument} is not an option of {program}: write KEY=VALUE, such as seed=1."
        )


def _abbreviates(argument: str, option: str) -> bool:
    given = argument.split("=")[0]
    return option.startswith(given) if given.startswith("--") else option == given[:2]
