"""What a run came to: time-to-train, epochs-to-converge, throughput; kept in status.json and quality.csv."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..core.atomic_files import write_atomically
from ..core.formatting import format_number
from ..record import energy
from ..record.run_dir import RunDir
from ..training.events import (
    BlockEnded,
    BlockStarted,
    EvalEnded,
    EvalStarted,
    Event,
    RunStarted,
    RunStopped,
    StepEnded,
    now,
)
from ..training.loop import TrainingPlan

_SHOWN = 3  # problems of a log that the table lists


@dataclass
class Summary:
    """The observer of rank 0 that keeps the run's numbers; those before the checkpoint `saved` are taken up again."""

    folder: RunDir
    plan: TrainingPlan
    saved: Mapping[str, Any] | None = None
    blocks: list[dict[str, Any]] = field(default_factory=list)
    run_started: float = 0.0
    lost_seconds: float = 0.0
    _block: dict[str, Any] = field(default_factory=dict)
    _carried: dict[str, Any] = field(default_factory=dict)  # of the block that the checkpoint cut in two
    _samples: int = 0
    _tokens: int = 0
    _eval_started: float = 0.0
    _over: bool = False

    def __call__(self, event: Event) -> None:
        """Takes one event in; writes at evaluations and at the stop."""
        match event:
            case RunStarted():
                self.run_started = event.time
                if self.saved:
                    self._take_up(self.saved, event.time)
            case BlockStarted(first_epoch=first, epochs=epochs):
                self._block = {"first_epoch": first, "epochs": epochs, "started": event.time}
                self._samples = self._tokens = 0
            case StepEnded(samples=samples, tokens=tokens):
                self._samples += samples
                self._tokens += tokens
            case BlockEnded(samples=samples, tokens=tokens, loss=loss, data_wait_seconds=waited):
                seconds = event.time - self._block.pop("started") + self._carried.pop("train_seconds", 0.0)
                counted = {
                    "samples": samples + self._carried.pop("samples", 0),
                    "tokens": tokens + self._carried.pop("tokens", 0),
                }
                self._block |= counted | {"train_seconds": seconds, "data_wait_seconds": waited, "loss": loss}
            case EvalStarted():
                self._eval_started = event.time
            case EvalEnded(quality=quality):
                self._block |= {"eval_seconds": event.time - self._eval_started, "quality": dict(quality)}
                self._block |= {"ended": event.time, "past_target": self._over}
                self.blocks.append(self._block)
                self._block, self._samples, self._tokens = {}, 0, 0
                self._write_quality()
                self._keep()
            case RunStopped(status=status):
                self._over = True
                self._keep(log_status=status, result=self.result(event.time, status == "success"))

    def history(self) -> dict[str, Any]:
        """What a resumed run takes up again, the block that is under way included."""
        open_block = carried = self._carried
        if self._samples:
            open_block = {
                "samples": carried.get("samples", 0) + self._samples,
                "tokens": carried.get("tokens", 0) + self._tokens,
                "train_seconds": carried.get("train_seconds", 0.0) + now() - self._block["started"],
            }
        return {
            "run_started": self.run_started,
            "lost_seconds": self.lost_seconds,
            "blocks": self.blocks,
            "open_block": open_block,
        }

    def _take_up(self, saved: Mapping[str, Any], time: float) -> None:
        before = saved["history"]
        self.run_started, self.blocks = before["run_started"], before["blocks"]
        self.lost_seconds = before["lost_seconds"] + time - saved["time"]
        self._carried = before["open_block"]
        self.folder.update_status(lost_seconds=self.lost_seconds, **{"class": "resumed"})

    def result(self, stopped: float, reached: bool) -> dict[str, Any]:
        """The numbers of the run if its clock stops at `stopped`; a run that misses its target is censored."""
        timed = [block for block in self.blocks if not block["past_target"]]
        rates = [block["samples"] / block["train_seconds"] for block in timed]
        tokens = [block["tokens"] / block["train_seconds"] for block in timed]
        wall = stopped - self.run_started
        return {
            "target": dict(self.plan.target),
            "reached": reached,
            "censored": not reached,
            "quality": timed[-1]["quality"] if timed else None,
            "epochs": sum(block["epochs"] for block in timed),
            "epochs_to_converge": timed[-1]["first_epoch"] + timed[-1]["epochs"] - 1 if reached else None,
            "seconds": wall,
            "active_seconds": wall - self.lost_seconds,
            "lost_seconds": self.lost_seconds,
            "train_seconds": sum(block["train_seconds"] for block in timed),
            "eval_seconds": sum(block["eval_seconds"] for block in timed),
            "data_wait_seconds": sum(block["data_wait_seconds"] for block in timed),
            "samples_per_second": statistics.median(rates[1:]) if len(rates) > 1 else None,
            "tokens_per_second": (statistics.median(tokens[1:]) or None) if len(tokens) > 1 else None,
            "first_block_samples_per_second": rates[0] if rates else None,
            "first_block_seconds": timed[0]["train_seconds"] if timed else None,
        }

    def _keep(self, **entries: Any) -> None:
        self.folder.update_status(blocks=self.blocks, run_started=self.run_started, **entries)

    def _write_quality(self) -> None:
        text = io.StringIO()
        metrics = list(self.plan.target)
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["epoch", "seconds", "samples", "train_seconds", "eval_seconds", "loss", *metrics])
        for block in self.blocks:
            epoch, seconds = block["first_epoch"] + block["epochs"] - 1, block["ended"] - self.run_started
            spans = [f"{number:.6f}" for number in (seconds, block["train_seconds"], block["eval_seconds"])]
            quality = [block["quality"][metric] for metric in metrics]
            rows.writerow([epoch, spans[0], block["samples"], *spans[1:], block["loss"], *quality])
        write_atomically(self.folder.quality, text.getvalue(), durable=False)


def show(console: Console, title: str, status: dict[str, Any], folder: RunDir) -> None:
    """Prints the table that ends `timetrial run`; long paths stay whole, so that they can be copied."""
    rows = _rows(status["result"]) if status.get("result") else []
    rows += energy.rows(status)
    if status.get("restarts"):
        rows.append(("restarts", f"{status['restarts']}, {status['lost_seconds']:.1f} s lost"))
    if verdict := status.get("verdict"):
        words = "[green]complies[/green]" if verdict["compliant"] else "[red]does not comply[/red]"
        rows.append(("MLPerf log", f"{words} ({verdict['rules']})"))
        rows += [("", escape(problem)) for problem in verdict["problems"][:_SHOWN]]
        if len(verdict["problems"]) > _SHOWN:
            rows.append(("", f"and {len(verdict['problems']) - _SHOWN} more, see timetrial check"))
    rows.append(("log", escape(str(folder.log))))
    show_rows(console, title, rows, status)


def show_rows(console: Console, title: str, rows: Sequence[tuple[str, str]], status: Mapping[str, Any]) -> None:
    """A title, named values below each other, and how the run ended if that was in error."""
    console.print(f"\n[bold]{title}[/bold]", soft_wrap=True)
    for name, value in rows:
        console.print(f"  {name:<14}{value}", soft_wrap=True, highlight=False)
    if status.get("error"):
        console.print(f"\n[red]{status['state']}[/red]: {escape(status['error'])}", soft_wrap=True, highlight=False)


def tokens_row(speed: float | None) -> list[tuple[str, str]]:
    """The speed in tokens, of a run on text."""
    return [("", f"{speed:,.0f} tokens/s, source and target, without padding")] if speed else []


def _rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    def quality(values: dict[str, float] | None) -> str:
        return ", ".join(f"{name} {value:.4f}" for name, value in (values or {}).items()) or "none measured"

    words = "[green]yes[/green]" if result["reached"] else "[yellow]no: a censored result[/yellow]"
    first = result["first_block_samples_per_second"]
    steady = result["samples_per_second"]
    shares = f"train {result['train_seconds']:.2f} s, evaluation {result['eval_seconds']:.2f} s"
    rows = [
        ("target", quality(result["target"])),
        ("reached", f"{words} ({quality(result['quality'])})"),
        ("epochs", str(result["epochs"])),
        ("time-to-train" if result["reached"] else "time", f"{result['seconds']:.2f} s ({shares})"),
    ]
    if steady:
        rows.append(("throughput", f"{format_number(steady)} samples/s (steady, median of blocks)"))
    rows += tokens_row(result.get("tokens_per_second"))
    if first:
        rows.append(("first block", f"{format_number(first)} samples/s, {result['first_block_seconds']:.2f} s"))
    return rows
