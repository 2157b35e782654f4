"""The pages of `timetrial accept`: a node with all lines and figures, and the ranking of a cluster."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.formatting import format_number
from ...results.report.page_text import count
from ...results.report.table_page import BAD, CAUTION, GOOD, MUTED, Cell, PageTable, write_table_page
from .cluster import Outlier, Ranking, advise, list_nodes
from .document import count_states
from .figures import State

PAGE_NAME, RANKING_NAME = "accept.html", "ranking.html"
TONES = {State.PASS: GOOD, State.WARN: CAUTION, State.FAIL: BAD, State.NOT_TESTED: MUTED}
_GIB = 2**30


def write_page(document: Mapping[str, Any], folder: Path) -> Path:
    """Write the page of the content of accept.json beside it, and return its path."""
    result, lines = State(document["result"]), document["lines"]
    by_state = {state: [line for line in lines if line["state"] == state] for state in State}
    urgent = by_state[State.FAIL] + by_state[State.WARN]
    minutes = sum(document["seconds"].values()) / 60
    tables = [
        _line_table("What to do", urgent),
        *_figure_tables(document["figures"], lines),
        _line_table(f"{count(len(by_state[State.PASS]), 'line')} PASS", by_state[State.PASS], is_folded=bool(urgent)),
        _line_table(
            f"{count(len(by_state[State.NOT_TESTED]), 'line')} not tested", by_state[State.NOT_TESTED], is_folded=True
        ),
    ]
    lead = f"timetrial accept on {document['date']}, {minutes:.1f} min, id {document['id']}."
    verdict = Cell(result.value, TONES[result], count_states(lines))
    facts = _describe_system(document["system"]) | {"Seconds by part": _describe_seconds(document["seconds"])}
    return write_table_page(folder / PAGE_NAME, f"Acceptance of {document['node']}", lead, verdict, tables, facts)


def _line_table(title: str, lines: Iterable[Mapping[str, str]], *, is_folded: bool = False) -> PageTable:
    rows = [
        (
            Cell(line["part"]),
            Cell(line["device"]),
            Cell(line["state"], TONES[State(line["state"])]),
            Cell(line["message"], detail=line["remedy"]),
        )
        for line in lines
    ]
    return PageTable(title, ("part", "device", "result", "what was found"), rows, is_folded=is_folded)


def _figure_tables(figures: Sequence[Mapping[str, Any]], lines: Iterable[Mapping[str, str]]) -> Iterable[PageTable]:
    """Yield the figures of GPUs side by side, then those of the host and of all GPUs together."""
    states = {(line["part"], line["device"]): State(line["state"]) for line in lines}
    devices = list(dict.fromkeys(figure["device"] for figure in figures))
    gpus = [device for device in devices if device.startswith("GPU ")]

    def value(figure: Mapping[str, Any] | None, usual: float | None) -> Cell:
        if figure is None:
            return Cell("")
        state = states.get((figure["name"], figure["device"]), State.NOT_TESTED)
        share = f"{figure['median'] / figure['expected']:.0%}" if figure["expected"] else ""
        if share and figure["expected"] != usual:
            share = f"{share} of {format_number(figure['expected'])}"
        return Cell(format_number(figure["median"]), "" if state is State.NOT_TESTED else TONES[state], share)

    def expected(figure: Mapping[str, Any]) -> Cell:
        if not figure["expected"]:
            return Cell("none", MUTED)
        return Cell(format_number(figure["expected"]), detail=figure["source"])

    by_name: dict[str, dict[str, Mapping[str, Any]]] = {}
    for figure in figures:
        by_name.setdefault(figure["name"], {})[figure["device"]] = figure
    rows, other_rows = [], []
    for name, same in by_name.items():
        first = next(iter(same.values()))
        if first["device"] in gpus:
            cells = [value(same.get(gpu), first["expected"]) for gpu in gpus]
            rows.append((Cell(name), Cell(first["unit"]), expected(first), *cells))
        else:
            device = Cell(first["device"])
            other_rows.append(
                (Cell(name), device, Cell(first["unit"]), expected(first), value(first, first["expected"]))
            )
    caption = "Medians, and their share of what is expected by data sheet, link or reference throughput."
    yield PageTable("Figures of the GPUs", ("figure", "unit", "expected", *gpus), rows, 2, caption)
    title = "Figures of the host and of all GPUs together" if gpus else "Figures"
    yield PageTable(title, ("figure", "device", "unit", "expected", "measured"), other_rows, 3)


def _describe_system(system: Mapping[str, Any]) -> dict[str, str]:
    cpu, packages, gpus = system["cpu"], system["packages"], system["gpus"]
    models = Counter(
        ", ".join(
            filter(
                None,
                (
                    str(gpu["name"]),
                    f"power cap {gpu['power_cap_watts']:.0f} W" if gpu.get("power_cap_watts") else "",
                    f"driver {gpu['driver']}" if gpu.get("driver") else "",
                ),
            )
        )
        for gpu in gpus
    )
    links = Counter(system.get("gpu_links", {}).values())
    facts = {
        "GPUs": "; ".join(f"{number} × {model}" for model, number in models.items()) or "none",
        "Links between GPUs": "; ".join(f"{link} ({count(number, 'pair')})" for link, number in links.items()),
        "CPU": f"{cpu['model']}, {cpu['usable_cores']} of {count(cpu['logical_cores'], 'core')}",
        "Memory": f"{system['memory_bytes'] / _GIB:.0f} GiB",
        "System": f"{system['system']}, Python {system['python']}, PyTorch {packages['torch']}",
    }
    return {name: text for name, text in facts.items() if text}


def _describe_seconds(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{part} {value:.0f}" for part, value in seconds.items())


def write_ranking(ranking: Ranking, folder: Path) -> Path:
    """Write the page of the ranking, and return its path."""
    slow = [(each, "slow twice", BAD) for each in ranking.outliers]
    slow += [(each, "slow once", CAUTION) for each in ranking.suspects]
    slow.sort(key=lambda entry: (entry[1], entry[0].node, entry[0].device, entry[0].value / entry[0].median))
    verdict = Cell("No device is slower than the others", GOOD, f"in {count(ranking.tests, 'figure')}.")
    if not ranking.tests:
        verdict = Cell("Not tested", MUTED, "No figure is of enough devices to tell outliers.")
    elif ranking.outliers:
        verdict = Cell("Slow devices", BAD, f"on {list_nodes(ranking.outliers)}: slower than luck explains, twice.")
    elif ranking.suspects:
        verdict = Cell("Measure again", CAUTION, advise(ranking))
    usual_gpus = ranking.usual_gpus
    rows = [
        (
            Cell(str(rank)),
            Cell(node.name),
            Cell(node.result.value, TONES[node.result]),
            _gpu_cell(node.num_gpus, usual_gpus),
            Cell(f"{speed:.3f}"),
        )
        for rank, (node, speed) in enumerate(ranking.speeds, start=1)
    ]
    lead = f"{count(len(ranking.speeds), 'node')}, from the fastest to the slowest."
    tables = [
        PageTable("Slow devices", _COLUMNS, [_outlier_row(*each) for each in slow], 4),
        PageTable(
            "Ranking", ("rank", "node", "result", "GPUs", "speed"), rows, 3, "Speed is over the median of all nodes."
        ),
        PageTable("Files that were left out", ("reason",), [(Cell(reason),) for reason in ranking.left_out]),
    ]
    return write_table_page(folder / RANKING_NAME, "Nodes of a cluster", lead, verdict, tables, {})


def _gpu_cell(number: int, usual: int) -> Cell:
    return Cell(str(number), CAUTION, f"most nodes have {usual}") if number < usual else Cell(str(number))


_COLUMNS = ("node", "device", "figure", "unit", "measured", "median", "share", "result")


def _outlier_row(each: Outlier, word: str, tone: str) -> Sequence[Cell]:
    share = f"{each.value / each.median:.1%}"
    numbers = (Cell(format_number(each.value)), Cell(format_number(each.median)), Cell(share), Cell(word, tone))
    return (Cell(each.node), Cell(each.device), Cell(each.figure), Cell(each.unit), *numbers)
