"""The templates of pages, which share one style."""

from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from .chart import swatch


def load_template(name: str, escape: Callable[[object], str] | None = None) -> Template:
    """Load a template that escapes every value: by `escape`, or for HTML if it is None."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    if escape:
        environment.finalize = escape
    else:
        environment.autoescape = True
        environment.filters["trusted"] = Markup  # our script, and charts, whose text is escaped when they are drawn
        environment.globals["swatch"] = lambda series: Markup(swatch(series))
    return environment.get_template(name)
