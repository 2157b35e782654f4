"""One Hydra job: what `timetrial run` does with a composed configuration, in whichever process a sweep puts it."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from ..core.error_messages import format_error
from ..core.errors import ConfigurationError, DeviceError, Exit, RunError
from ..hardware import devices
from . import sweep
from .launcher import launch

# What became of the single runs of this process, for the command line: an exit code, or the error that refused one.
# Hydra would print its own words about an exception that passes through it.
ended: list[Exit | Exception] = []


def overrides_first(arguments: Sequence[str]) -> list[str]:
    """The arguments with options and their values at the end: Hydra's parser wants all overrides together."""
    return sorted(arguments, key=lambda word: not re.match(r"~|[+\w].*=", word))


def with_accelerator(arguments: Sequence[str]) -> list[str]:
    """The arguments, with this machine's accelerator where they name none.

    Who asks for several GPUs does not mean CPU processes, and who hands the runs to other machines not this one's card.
    """
    if any(argument.split("=")[0] == "accelerator" for argument in arguments):
        return list(arguments)
    if any(argument.startswith("hydra/launcher=submitit_slurm") for argument in arguments):
        raise ConfigurationError("The runs go to machines that this one cannot see: name their card, accelerator=h200.")
    name = devices.detect()
    several = next((argument for argument in arguments if re.match(r"\+*gpus=(?![01]$)\D*\d", argument)), None)
    if name == "cpu" and several:
        raise DeviceError(
            f"{several} was asked for but this machine has no GPU that PyTorch can use: "
            "leave it out, or add accelerator=cpu to mean CPU processes.",
        )
    return [f"accelerator={name}", *arguments]


def run(node: DictConfig) -> None:
    """Launches the run; in a sweep a refused run is noted and its siblings go on."""
    try:
        code, folder = launch(node, Console())
        refusal, result = None, folder.status().get("result")
    except (RunError, OmegaConfBaseException) as error:
        code, refusal, result = getattr(error, "exit_code", Exit.CONFIGURATION), error, None
    if not sweep.active():
        ended.append(refusal or code)
        return
    words = format_error(refusal) if refusal else ""
    if words:
        Console(stderr=True, soft_wrap=True).print(f"timetrial: {words}", markup=False, highlight=False)
    sweep.keep(code, words, result)
    if code == Exit.STOPPED:  # who stops a run of a sweep means the sweep
        sweep.summarise(Path(HydraConfig.get().sweep.dir), node.throughput.steps > 0)
        sweep.finished.append(code)  # whatever ended before
        sys.exit(code)
