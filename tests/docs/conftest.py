"""The pages of the documentation, and what is written in their code blocks."""

import importlib.util
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Page:
    """A Markdown page: its text without code blocks, the lines of the code blocks, and the anchors of its headings."""

    path: Path
    prose: str
    code: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    @property
    def name(self):
        """The path from the root of the checkout."""
        return self.path.relative_to(ROOT).as_posix()


def parse_page(path):
    """Split a page into prose and code; a code block is fenced, or indented by four spaces after a blank line."""
    prose, code, fenced, before = [], [], False, ""
    for line in path.read_text().splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or (line.startswith("    ") and (before == "code" or not before)):
            code.append(line.strip())
            before = "code"
            continue
        else:
            prose.append(line)
        before = line.strip()
    headings = re.findall(r"^#+ (.+)$", "\n".join(prose), re.M)
    return Page(path, "\n".join(prose), code, {anchor(heading) for heading in headings})


def anchor(heading):
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.fixture(scope="session")
def pages():
    """README.md, CONTRIBUTING.md and everything in docs/."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [parse_page(path) for path in paths]


@pytest.fixture(scope="session")
def make_docs():
    """The module scripts/dev/make_docs.py."""
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "dev" / "make_docs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module
