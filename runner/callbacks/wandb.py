"""The observer that records a run in Weights & Biases (`pip install 'timetrial[wandb]'`)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.console import Console

from ..core.errors import ConfigurationError, Exit
from ..record.run_dir import RunDir
from .tracker import Point, Tracker, first_line

_SERVER_SECONDS = 15.0  # that a server may take to answer, and for the last upload


class WandB(Tracker):
    """Record the curves, configuration and result of a run; without a login or a server, in its run directory."""

    name = "Weights & Biases"

    def __init__(self, run_dir: RunDir, title: str, console: Console) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # no usage data of W&B's own
        try:
            import wandb
        except ImportError as error:
            raise ConfigurationError(
                "observers.wandb=true needs Weights & Biases: pip install 'timetrial[wandb]'."
            ) from error
        super().__init__(run_dir, title, console)
        self._wandb = wandb
        self._run: Any = None
        self.remedy = f"`wandb sync --include-online {run_dir.path}/wandb/*run-*` uploads it later"

    def open(self) -> str:
        """Start or continue the W&B run with this run's id, and return its address or its folder."""
        has_login = "WANDB_MODE" in os.environ or self._wandb.login(prompt=False, verify=False)
        try:
            self._run = run = self._start(None if has_login else "offline")
        except self._wandb.Error as error:
            self._wandb.teardown()  # releases the id
            self._run = run = self._start("offline")
            self.warn(f"does not answer ({first_line(error)})")
        run.define_metric("*", step_metric="epoch")
        return run.sync_dir if run.offline else run.url or "is disabled"

    def log(self, points: Sequence[Point]) -> None:
        """Send points of the curves, with the epoch as the horizontal axis."""
        for values, epoch, time in points:
            self._run.log({"epoch": epoch, "_timestamp": time, **values})

    def finish(self, result: Mapping[str, float], exit_code: Exit) -> None:
        """Send the result as the summary, and wait for the upload."""
        self._run.summary.update(dict(result))
        self._run.finish(exit_code=0 if exit_code == Exit.TARGET_NOT_REACHED else int(exit_code))

    def _start(self, mode: Literal["offline"] | None) -> Any:
        # Nothing of W&B's own may print, or cost time on the clock.
        settings = self._wandb.Settings(
            console="off", silent=True, x_disable_stats=True,
            init_timeout=_SERVER_SECONDS, finish_timeout=_SERVER_SECONDS, finish_timeout_raises=True,
        )  # fmt: skip
        return self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "timetrial"), dir=self.run_dir.path, id=self.id, name=self.title,
            config=self.record.config, mode=mode, resume="allow", reinit="create_new", settings=settings,
            allow_val_change=True,
        )  # fmt: skip
