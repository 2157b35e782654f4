"""Where tables go."""

from rich.console import Console


def table_console(console: Console | None = None) -> Console:
    """`console`, or standard output, as a table wants it: what is no terminal has no edge to fold at."""
    console = console or Console()
    return console if console.is_terminal else Console(file=console.file, width=1000)
