"""The observer that shows progress: a line per evaluation, and a bar on a terminal or else a line per minute."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from ..core.console import is_quiet
from ..training.events import BlockEnded, BlockStarted, EvalEnded, EvalStarted, Event, RunStarted, RunStopped, StepEnded
from ..training.loop import TrainingPlan

_SECONDS_BETWEEN_LINES = 60.0
_WIDTH_OF_BAR, _WIDTH_OF_TIMES = 120, 90  # columns of a terminal that shows them


class ProgressBar:
    """The observer that shows epoch, quality and throughput: a line per evaluation, which stays.

    A terminal shows a bar below them, elsewhere a line follows each minute of training without an evaluation. Nothing
    is shown if quiet.
    """

    def __init__(self, console: Console, plan: TrainingPlan, train_size: int) -> None:
        self._console, self._plan, self._train_size = console, plan, train_size
        self._text: dict[str, Any] = {"quality": "no evaluation yet", "rate": "", "phase": ""}
        self._block_started, self._last_line_time, self._samples = 0.0, 0.0, 0
        self._is_quiet = is_quiet()
        self._bar = self._new_bar() if console.is_terminal and not self._is_quiet else None
        self._task = self._bar.add_task("", total=None, **self._text) if self._bar else None

    def __call__(self, event: Event) -> None:
        """Follow the run."""
        match event:
            case RunStarted():
                if self._bar:
                    self._bar.start()
                self._last_line_time = event.time
                self._update(phase="training", total=self._plan.max_epochs * self._train_size)
            case BlockStarted(first_epoch=first):
                self._block_started, self._samples = event.time, (first - 1) * self._train_size
                self._update(phase=f"epoch {first}/{self._plan.max_epochs}", completed=self._samples)
            case StepEnded(samples=samples):
                self._samples += samples
                self._update(completed=self._samples)
                if not self._bar and event.time - self._last_line_time >= _SECONDS_BETWEEN_LINES:
                    self._print_line(event.time)
            case BlockEnded(samples=samples) if samples:  # of this attempt
                self._update(rate=f"{samples / (event.time - self._block_started):,.0f}/s")
            case EvalStarted(epoch=epoch):
                self._update(phase=f"evaluating {epoch}/{self._plan.max_epochs}")
            case EvalEnded(epoch=epoch, quality=quality):
                self._update(
                    phase=f"epoch {epoch}/{self._plan.max_epochs}",
                    quality=", ".join(
                        f"{name} {quality[name]:.4f}/{value:g}" for name, value in self._plan.target.items()
                    ),
                )
                self._print_line(event.time)
            case RunStopped():
                self.close()

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._bar:
            self._bar.stop()

    def _update(self, *, total: int | None = None, completed: int | None = None, **text: str) -> None:
        self._text |= text
        if self._bar is not None and self._task is not None:
            position: dict[str, Any] = {"total": total, "completed": completed}
            self._bar.update(
                self._task, **{name: value for name, value in position.items() if value is not None}, **self._text
            )

    def _print_line(self, time: float) -> None:
        if not self._is_quiet:
            self._last_line_time = time
            self._console.print(
                "  ".join(part for part in (self._text["phase"], self._text["quality"], self._text["rate"]) if part),
                soft_wrap=True,
                markup=False,
                highlight=False,
            )

    def _new_bar(self) -> Progress:
        one_line = Column(no_wrap=True, overflow="ellipsis")  # a bar of two lines would fill the terminal
        columns: list[ProgressColumn] = [TextColumn("{task.fields[phase]}", table_column=one_line)]
        if self._console.width >= _WIDTH_OF_BAR:
            columns.append(BarColumn(bar_width=24))
        columns.append(TextColumn("{task.fields[quality]}", markup=False, table_column=one_line))
        if self._console.width >= _WIDTH_OF_TIMES:
            columns.append(TextColumn("{task.fields[rate]}", markup=False, table_column=one_line))
            columns += [TimeElapsedColumn(), TextColumn("at most"), TimeRemainingColumn(), TextColumn("left")]
        return Progress(*columns, console=self._console, transient=True)
