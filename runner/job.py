"""One Hydra job: what `timetrial run` does with a composed configuration, in whichever process a sweep puts it."""

import sys

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from timetrial.runner import sweep
from timetrial.runner.config import sentence
from timetrial.runner.errors import Exit, RunError
from timetrial.runner.launch import launch

# What became of the single runs of this process, for the command line: an exit code, or the error that refused one.
# Hydra would print its own words about an exception that passes through it.
ended: list[Exit | Exception] = []


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
    words = sentence(refusal) if refusal else ""
    if words:
        Console(stderr=True, soft_wrap=True).print(f"timetrial: {words}", markup=False, highlight=False)
    sweep.keep(code, words, result)
    if code == Exit.STOPPED:  # who stops a run of a sweep means the sweep
        sweep.finished.append(code)
        sys.exit(code)
