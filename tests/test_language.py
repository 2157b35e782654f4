"""Words of docs/glossary.md, and names of modules that say nothing."""

import re

import pytest


@pytest.fixture
def sources(root):
    return [path for folder in ("datasets", "runner", "workloads", "scripts") for path in (root / folder).rglob("*.py")]


def test_modules_say_what_they_hold(sources):
    assert not {path.stem for path in sources} & {"utils", "helpers"}


def test_nobody_says_card(sources):
    """GPU or device, except for words of others: product names and the columns of peaks.json."""
    allowed = re.compile(r"""["'`]cards?["'`]|graphics card|\bcardinal|discard""")
    lines = [
        (path.name, line.strip())
        for path in sources
        for line in path.read_text().splitlines()
        if re.search(r"\bcards?\b", line, re.I) and not allowed.search(line)
    ]
    assert not lines
