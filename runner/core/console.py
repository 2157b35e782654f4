"""Consoles for tables, a status line for work that takes long, and output streams that may fail."""

import os
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from .atomic_files import is_disk_full
from .errors import Exit

QUIET_VARIABLE = "TIMETRIAL_QUIET"  # set by --quiet, and inherited by the processes of ranks and jobs


def is_quiet() -> bool:
    """Return whether only results and errors are printed, no progress."""
    return os.environ.get(QUIET_VARIABLE, "0") not in ("", "0")


def table_console(console: Console | None = None) -> Console:
    """Return a console for tables: the given one or standard output, without folding where it is no terminal."""
    console = console or Console()
    return console if console.is_terminal else Console(file=console.file, width=1000)


def print_text(console: Console, text: str | Text, **options: Any) -> None:
    """Print prose: broken between words on a terminal, elsewhere a line as it is."""
    console.print(text, soft_wrap=not console.is_terminal, **options)


class OutputStream:
    """A stream such as standard output: the first write that fails is kept as `error`, and what follows is dropped.

    The command goes on: a run that cannot print, because its output goes to a full disk, still ends with a result.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._drop_output(error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop_output(error)

    def _drop_output(self, error: OSError) -> None:
        self.error = self.error or error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # also for what the stream still holds
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def survive_output_errors() -> None:
    """Make standard output and standard error an `OutputStream`; closed ones lead to nowhere."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        setattr(sys, name, OutputStream(getattr(sys, name) or _open_nowhere(number)))


def _open_nowhere(number: int) -> TextIO:
    """Return a stream to nowhere on a descriptor that was closed, so that no file is given its number."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.set_inheritable(number, True)
    return os.fdopen(number, "w", encoding="utf-8")


def flush_output(exit_code: int) -> int:
    """Return the exit code of a command that would end with `exit_code`, after flushing what it has printed.

    If this fails, print a sentence, and return the code of a full disk or of a failure if nothing else has failed. A
    reader that closed the pipe, such as `head`, has seen enough: that is no failure.
    """
    if sys.stdout:
        sys.stdout.flush()
    error = getattr(sys.stdout, "error", None)
    if error is None or isinstance(error, BrokenPipeError):
        return exit_code
    print(f"timetrial: Cannot write to standard output ({error.strerror}): free space there.", file=sys.stderr)
    return exit_code or int(Exit.DISK_FULL if is_disk_full(error) else Exit.FAILURE)


class StatusLine:
    """Says what is being done: one line that is redrawn on a terminal, a line per activity elsewhere.

    It is a `ProgressCallback`: call it with the activity and, for a terminal, the number of items so far.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._activity = console, ""
        self._is_quiet = is_quiet()
        self._status = console.status("") if console.is_terminal and not self._is_quiet else None

    def __enter__(self) -> "StatusLine":
        return self

    def __call__(self, activity: str, items: int = 0, total: int | None = None) -> None:
        """Show the activity."""
        if self._status:
            self._status.update(Text(f"{activity}, {items:,} lines" if items else activity))
            self._status.start()
        elif activity != self._activity and not self._is_quiet:
            self._console.print(activity, soft_wrap=True, markup=False)
        self._activity = activity

    def __exit__(self, *exception: object) -> None:
        if self._status:
            self._status.stop()
