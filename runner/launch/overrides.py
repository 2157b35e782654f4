"""Overrides of the command line before Hydra composes them."""

import re
from collections.abc import Sequence

from ..core.errors import ConfigurationError, DeviceError

_REMOTE_LAUNCHERS = ("submitit", "ray", "rq")  # Hydra's plugins


def overrides_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with options and their values at the end: Hydra's parser needs all overrides together."""
    return sorted(arguments, key=lambda argument: not re.match(r"~|[+\w].*=", argument))


def with_accelerator(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the accelerator of this machine, where they name none.

    Raises `DeviceError` for gpus above 1 on a machine without a GPU, and `ConfigurationError` for a launcher whose
    jobs run on other machines.
    """
    from ..hardware import devices  # imports PyTorch, which takes longer than a help page

    if any(argument.split("=")[0] == "accelerator" for argument in arguments):
        return list(arguments)
    launcher = next((argument for argument in arguments if argument.startswith("hydra/launcher=")), "")
    if launcher.removeprefix("hydra/launcher=").startswith(_REMOTE_LAUNCHERS):
        raise ConfigurationError(f"{launcher} runs on other machines: name their GPU, such as accelerator=h200.")
    name = devices.detect_accelerator()
    several = next((argument for argument in arguments if re.match(r"\+*gpus=(?![01]$)\D*\d", argument)), None)
    if name == "cpu" and several:
        raise DeviceError(
            f"{several} was asked for but this machine has no GPU that PyTorch can use: "
            "leave it out, or add accelerator=cpu to mean CPU processes.",
        )
    compiles = ["accelerator.compiles=true"] if name == "auto" and devices.compiles_well() else []
    return [f"accelerator={name}", *compiles, *arguments]
