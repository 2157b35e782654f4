"""Numbers as people read them in tables and on the report's page."""

import re


def format_number(value: float | None) -> str:
    """Format with three significant digits, or as an integer from 100 on; an empty string for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_energy(joules: float) -> str:
    """Format in J, kJ or kWh, whichever reads best."""
    if joules >= 3.6e5:
        return f"{joules / 3.6e6:,.3g} kWh"
    return f"{joules / 1e3:,.3g} kJ" if joules >= 1e3 else f"{joules:,.3g} J"


_MAX_NAME = 100  # characters; file systems allow 255 bytes, and suffixes follow


def slug(text: str) -> str:
    """Return `text` as a folder name: lower case, words joined by dashes, at most 100 characters, never `..`."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:_MAX_NAME].rstrip("-.") or "unknown"
