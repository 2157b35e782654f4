"""Figures that follow from what a throughput run has measured and counted."""

from collections.abc import Mapping
from typing import Any

PURCHASE = "usd_per_samples_per_second"  # what the cards cost to buy, over training samples a second


def operations_per_second(result: Mapping[str, Any]) -> float | None:
    """Over all cards, from status.json's result; None where nothing was counted.

    Texts go by tokens, because their samples differ in length from step to step.
    """
    counted = result.get("counted")
    if not counted or not counted.get("operations"):
        return None
    by = "tokens" if counted.get("tokens") and result.get("tokens_per_second") else "samples"
    return float(counted["operations"] / counted[by] * result[f"{by}_per_second"])
