"""Show how many bytes of downloads and other long operations are done."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ..core.console import is_quiet

_REFRESH_SECONDS, _LINE_SECONDS = 0.1, 60.0


class ByteProgress:
    """Progress bars on a terminal; elsewhere a line when an operation begins and one per minute. Thread-safe.

    Nothing with `--quiet`.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._lock, self._is_quiet = console, threading.Lock(), is_quiet()
        self._bars: Progress | None = None
        if console.is_terminal and not self._is_quiet:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), DownloadColumn())
            self._bars = Progress(
                *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True
            )
        self._tasks: dict[str, Any] = {}
        self._last_shown: dict[str, float] = {}

    def __call__(self, description: str, done: int, total: int | None = None) -> None:
        """Show how many bytes of an operation are done."""
        with self._lock:
            now = time.monotonic()
            interval = _REFRESH_SECONDS if self._bars else _LINE_SECONDS
            is_new = description not in self._last_shown
            if not is_new and done != total and now - self._last_shown[description] < interval:
                return
            self._last_shown[description] = now
            if self._bars:
                if is_new:
                    self._tasks[description] = self._bars.add_task(description, total=total)
                self._bars.start()
                self._bars.update(self._tasks[description], completed=done, total=total, visible=done != total)
            elif not self._is_quiet and (is_new or done != total):
                of_total = f" of {format_bytes(total)}" if total else ""
                line = description if is_new else f"{description}: {format_bytes(done)}{of_total}"
                self._console.print(line, markup=False)

    def close(self) -> None:
        """Remove the bars from the terminal."""
        if self._bars:
            self._bars.stop()


@contextmanager
def progress_display() -> Iterator[tuple[Console, ByteProgress]]:
    """Yield a console and the progress on it."""
    console = Console(soft_wrap=True, highlight=False)
    progress = ByteProgress(console)
    try:
        yield console, progress
    finally:
        progress.close()


def format_bytes(size: int) -> str:
    """Return a size in megabytes or gigabytes."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
