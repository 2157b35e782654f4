"""The result of one check of `timetrial doctor`."""

from dataclasses import dataclass
from enum import StrEnum

from ..core.errors import Exit


class State(StrEnum):
    """Whether a check passed."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class CheckResult:
    """The outcome of a check; one that failed has a `remedy`, which is a command, and an exit code."""

    state: State
    check: str
    message: str
    remedy: str = ""
    exit_code: Exit = Exit.DEVICE
