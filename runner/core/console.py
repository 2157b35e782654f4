"""Consoles for tables, and a status line for work that takes long."""

from rich.console import Console


def table_console(console: Console | None = None) -> Console:
    """Return a console for tables: the given one or standard output, without folding where it is no terminal."""
    console = console or Console()
    return console if console.is_terminal else Console(file=console.file, width=1000)


class StatusLine:
    """Says what is being done: one line that is redrawn on a terminal, a line per activity elsewhere.

    It is a `ProgressCallback`: call it with the activity and, for a terminal, the number of items so far.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._activity = console, ""
        self._status = console.status("") if console.is_terminal else None

    def __enter__(self) -> "StatusLine":
        return self

    def __call__(self, activity: str, items: int = 0, total: int | None = None) -> None:
        """Show the activity."""
        if self._status:
            self._status.update(f"{activity}, {items:,} lines" if items else activity)
            self._status.start()
        elif activity != self._activity:
            self._console.print(activity, soft_wrap=True, markup=False)
        self._activity = activity

    def __exit__(self, *exception: object) -> None:
        if self._status:
            self._status.stop()
