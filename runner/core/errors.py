"""Exit codes and the errors that carry them. Every error's text is one sentence that says what to do."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `timetrial`; batch scripts act on them, so a number never changes its meaning."""

    TARGET_REACHED = 0
    FAILURE = 1
    TARGET_NOT_REACHED = 10
    TIME_LIMIT = 11
    STOPPED = 12
    CONFIGURATION = 20
    DATA = 21
    DEVICE = 22
    OUT_OF_MEMORY = 30
    DIVERGED = 31
    LOST_RANK = 32
    HARDWARE = 33
    DISK_FULL = 34
    NOT_COMPLIANT = 40
    NOT_ACCEPTED = 41


class RunError(Exception):
    """Ends a run with `exit_code`; its text is the one sentence a person reads."""

    exit_code = Exit.FAILURE


class ConfigurationError(RunError, ValueError):
    """The composed configuration cannot be run."""

    exit_code = Exit.CONFIGURATION


class RunDirLocked(ConfigurationError):
    """Another process is running in the folder."""


class DataError(RunError, ValueError):
    """A data file is missing or does not hold what it should."""

    exit_code = Exit.DATA


class DeviceError(RunError):
    """The machine lacks the accelerator, or the installed wheel cannot drive it."""

    exit_code = Exit.DEVICE


class OutOfMemory(RunError):
    """The micro-batch does not fit into the memory of the device."""

    exit_code = Exit.OUT_OF_MEMORY


class Diverged(RunError):
    """The training loss is no longer a finite number."""

    exit_code = Exit.DIVERGED


class LostRank(RunError):
    """A rank died or stopped answering."""

    exit_code = Exit.LOST_RANK


class HardwareError(RunError):
    """The device reported a fault of its own."""

    exit_code = Exit.HARDWARE


class DiskFull(RunError):
    """A file could not be written because the disk, or the user's quota on it, is full."""

    exit_code = Exit.DISK_FULL


class TimeLimit(RunError):
    """The run used up `time_limit_seconds`."""

    exit_code = Exit.TIME_LIMIT


class Stopped(RunError):
    """A stop signal arrived; a checkpoint is written and the run can be resumed."""

    exit_code = Exit.STOPPED


def error_of(code: Exit, sentence: str) -> RunError:
    """The error that carries `code`, with a sentence that came from another process."""
    kinds = {kind.exit_code: kind for kind in RunError.__subclasses__()}
    return kinds.get(code, RunError)(sentence)
