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


def slug(text: str) -> str:
    """Return `text` as a folder name: lower case, words joined by dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-") or "unknown"
