"""The signature by which long operations report how far they are."""

from typing import Protocol


class ProgressCallback(Protocol):
    """Called with a description of the operation, how much of it is done and, where it is known, how much there is.

    The unit (bytes, lines) is the caller's. A callback may be called from any thread.
    """

    def __call__(self, description: str, done: int, total: int | None = None, /) -> None:
        """Report the progress of one operation."""
        ...


def no_progress(description: str, done: int, total: int | None = None, /) -> None:
    """Ignore all reports."""
