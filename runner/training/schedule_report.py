"""What a learning rate schedule does over a run, in epochs of its data, read off the optimizer's schedule."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_POINTS = 20_000  # of a long schedule that are looked at
_EARLY = 1 / 3  # of a run: a schedule that ends before leaves the rest to a constant learning rate


@dataclass(frozen=True)
class SchedulePhases:
    """Epochs at which the warm-up ends, decay begins and decay ends, of `max_epochs`; None: not within the run."""

    max_epochs: int
    warm_up_ends: float | None
    decay_begins: float | None
    decay_ends: float | None

    def __str__(self) -> str:
        """Return the phases as the end of a sentence."""
        names = {
            "warm-up ends at epoch": self.warm_up_ends,
            "decay begins at epoch": self.decay_begins,
            "ends at epoch": self.decay_ends,
        }
        parts = [f"{name} {epoch:.3g}" for name, epoch in names.items() if epoch]
        return (
            f"learning rate: {', '.join(parts) or 'still warming up at the end'}, of at most {self.max_epochs} epochs"
        )

    def find_problem(self, keys: Sequence[str]) -> str | None:
        """Return what is wrong with the schedule on these data and what mends it; `keys` are its settings."""
        listed = " or ".join(keys)
        if self.warm_up_ends is None:
            listed = " or ".join(key for key in keys if "warmup" in key) or listed
            return (
                f"The warm-up of the learning rate does not end within {self.max_epochs} epochs of these data: lower "
                f"{listed}, or raise recipe.max_epochs."
            )
        if self.decay_ends is not None and self.decay_ends < _EARLY * self.max_epochs:
            return (
                f"The schedule of the learning rate ends after {self.decay_ends:.3g} of {self.max_epochs} epochs of "
                f"these data: raise {listed}, or set recipe.max_epochs={math.ceil(self.decay_ends)}."
            )
        return None


def find_phases(schedule: Any, steps_per_epoch: int, max_epochs: int) -> SchedulePhases | None:
    """Return the phases of a `LambdaLR` over a run of `max_epochs`; None for another or a constant schedule."""
    functions = getattr(schedule, "lr_lambdas", None)
    if not functions:
        return None
    total = max(1, steps_per_epoch * max_epochs)
    steps = [*range(0, total - 1, math.ceil(total / _POINTS)), total - 1]
    factors = [functions[0](step) for step in steps]
    highest, lowest = max(factors), factors[-1]
    if highest == min(factors):
        return None
    if factors.index(highest) == len(factors) - 1:
        return SchedulePhases(max_epochs, None, None, None)
    last = max(index for index, factor in enumerate(factors) if factor == highest)
    settled = len(factors) - 1
    while factors[settled - 1] == lowest:
        settled -= 1
    epochs = [step / steps_per_epoch for step in steps]
    begins = epochs[last + 1] if last < len(factors) - 1 else None
    ends = epochs[settled] if last < settled < len(factors) - 1 else None
    return SchedulePhases(max_epochs, epochs[factors.index(highest)], begins, ends)
