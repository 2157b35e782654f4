"""Word the errors of Hydra and OmegaConf as one sentence with the remedy."""

import re

from hydra.errors import HydraException

from .errors import RunError

_KNOWN_ERRORS = {
    r"Could not override '(\S+?)'": (
        "{0} is not set here: check the spelling, or write +{0}=... for one that the recipe leaves out."
    ),
    r"Could not find '([^/']+)/([^']+)'\s+Available options in '[^']+':(.*?)(?:Config search path|$)": (
        "{0}={1} is not known: choose one of {2}."
    ),
    r"Could not find '([^/']+)/([^']+)'": "{0}={1} is not known: timetrial list shows the choices.",
    r"override '(\S+)'\s+missing EQUAL": "{0} is no override: write KEY=VALUE or GROUP=NAME, such as scale=mini.",
}


def format_error(error: Exception) -> str:
    """Return the error as one sentence; those of Hydra and OmegaConf start with the key."""
    if isinstance(error, RunError):
        return str(error)
    for pattern, template in _KNOWN_ERRORS.items():
        if match := re.search(pattern, str(error), re.S):
            return template.format(*map(_join_words, match.groups()))
    text = re.sub(r"\b(object|reference)_type=\S+", "", str(error).split("Config search path")[0])
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("To append")]
    key = next((line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key:")), "")
    text = " ".join(line for line in lines if not line.startswith("full_key:")).rstrip(".:")
    if isinstance(error, HydraException) and isinstance(error.__cause__, Exception):
        return f"{text} ({format_error(error.__cause__).rstrip('.')})."
    return f"{key}: {text}." if key and key not in text else f"{text}."


def _join_words(text: str) -> str:
    return ", ".join(text.split())
