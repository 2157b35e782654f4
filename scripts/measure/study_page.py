"""What the pages of studies share: the archive of runs, tables in Markdown, pictures, writing or checking the page."""

import argparse
import math
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from timetrial.runner.results.analysis.intervals import geometric_mean, geometric_ratio
from timetrial.runner.results.report.chart import Plot

STUDIES = Path(__file__).parents[2] / "docs" / "studies"
_STYLE = (
    "text{font:13px sans-serif;fill:#333}.grid{stroke:#ddd}.frame{stroke:#888}path{fill:none}"
    ".dot{fill:#1f6feb;stroke:none}.hollow{stroke:#c2410c;fill:none}.rule{stroke:#888}"
)


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack an archive into a folder and return the folder of its name, which holds the runs."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.split(".")[0]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the lines of a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def mean(values: Iterable[float], show: Callable[[float], str]) -> str:
    """Return the geometric mean of the values that are not NaN as `show` writes it; nothing without one."""
    known = _known(values)
    return show(geometric_mean(known).estimate) if known else ""


def ratio(values: Iterable[float], base: Iterable[float]) -> str:
    """Return the ratio of these means with its 95% interval; nothing without values on both sides."""
    sides = _known(values), _known(base)
    return f"{geometric_ratio(*sides)}" if all(sides) else ""


def span(values: Iterable[float], show: Callable[[float], str]) -> str:
    """Return the least and the largest value that are not NaN as `show` writes them; nothing without one."""
    known = _known(values)
    return " to ".join(dict.fromkeys(map(show, (min(known), max(known))))) if known else ""


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def stand_alone(plot: Plot) -> str:
    """Return the text of a file with a chart of the report, on white ground, that needs no page around it."""
    svg = plot.svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" width="720" ', 1)
    ground = f"<style>{_STYLE}</style><rect width='100%' height='100%' fill='white'/>"
    return svg.replace("<title", f"{ground}<title", 1) + "\n"


def fill(page: str, tables: Mapping[str, str]) -> str:
    """Return the text of a page with each table between its two markers; raise ValueError for a name without them."""
    for name, table in tables.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        if (page.count(begin), page.count(end)) != (1, 1):
            raise ValueError(f"the page has no place, or several, for the table {name}")
        before, rest = page.split(begin)
        page = before + begin + table + end + rest.partition(end)[2]
    return page


def only_checks(description: str | None) -> bool:
    """Parse the command line and return whether it has `--check`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file differs")
    return bool(parser.parse_args().check)


def write_or_compare(texts: Mapping[Path, str], *, check: bool) -> int:
    """Write each file, or return 1 if one differs from its text."""
    if check:
        return int(any(path.read_text() != text for path, text in texts.items()))
    for path, text in texts.items():
        path.write_text(text)
    return 0
