"""Numbers and words as the page shows them."""

import math
import re

from ..analysis.intervals import Interval


def format_number(value: float, significant_digits: int = 4) -> str:
    """Return `value` rounded to `significant_digits`, "unknown" where it is not finite."""
    if not math.isfinite(value):
        return "unknown"
    if value == 0 or abs(value) >= 1000:
        decimals = 0
    else:
        decimals = max(0, significant_digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def count(number: int, singular: str, plural: str = "") -> str:
    """Return "1 run", "2 runs"."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def format_interval(interval: Interval, significant_digits: int = 4) -> str:
    """Return "1.5 (1.2 to 1.9)"."""
    if not math.isfinite(interval.estimate):
        return "unknown"
    estimate, low, high = (
        format_number(value, significant_digits) for value in (interval.estimate, interval.low, interval.high)
    )
    return f"{estimate} ({low} to {high})" if math.isfinite(interval.low) else f"{estimate} (no interval)"


def escape_markdown(text: object) -> str:
    """Escape Markdown's special characters: names of systems come from files."""
    return re.sub(r"([\\`*\[\]|<>&])", r"\\\1", " ".join(str(text).split()))
