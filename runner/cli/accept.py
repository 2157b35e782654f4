"""The command `timetrial accept`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..core.console import StatusLine
from ..core.errors import ConfigurationError, Exit
from .options import AsJson, DataDir


def accept(
    minutes: Annotated[float, typer.Option(help="About how long to measure.", metavar="MINUTES")] = 10.0,
    baseline: Annotated[
        str | None,
        typer.Option(help="What this machine should have: a config of conf/accelerator.", show_default="what it has"),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="How many GPUs this machine should have.", show_default="what it has", min=1)
    ] = None,
    data_dir: DataDir = Path("data"),
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for accept.json and its page.", metavar="FOLDER", show_default="runs/<system>/accept/<id>"
        ),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(help="Measure nothing; rank the nodes of the accept.json files at or below.", metavar="PATH"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check whether this machine is what was bought: as fast as its data sheet and its neighbors, and right.

    A line for each part says PASS, WARN, FAIL or not tested, with a remedy. Exits with 41 if a line says FAIL, else
    with 0. With --compare, ranks nodes and names those that are slower than the others; with --out too, as a page. For
    example: timetrial accept --minutes 30 --baseline h100 --gpus 8
    """
    if compare:
        raise typer.Exit(int(_compare(compare, out, as_json=as_json)))
    if not 0 < minutes <= 1440:
        raise ConfigurationError(f"--minutes {minutes:g} is no duration: pass a number above 0, at most 1440.")
    from ..benchmarks.accept import document, node, page

    folder = out or document.default_folder()
    with StatusLine(Console(stderr=True)) as progress:
        findings = node.check_node(minutes, node.Bought(baseline, gpus), data_dir, folder, progress)
    content = document.to_document(findings, folder, minutes)
    if not as_json:
        document.show(Console(), content)
    path = document.write_document(content, folder)
    page_path = page.write_page(content, folder)
    if as_json:
        print(json.dumps(content | {"path": str(path)}, indent=2))
    else:
        Console().print(f"written to {path} and {page_path.name}", soft_wrap=True, markup=False, highlight=False)
    raise typer.Exit(int(Exit.NOT_ACCEPTED if content["result"] == "FAIL" else 0))


def _compare(paths: list[Path], out: Path | None, *, as_json: bool) -> Exit:
    from ..benchmarks.accept import cluster, page
    from ..benchmarks.peaks import make_folder

    ranking = cluster.rank_nodes(*cluster.read_nodes(paths))
    if as_json:
        print(json.dumps(cluster.to_json(ranking), indent=2))
    else:
        cluster.show(Console(), ranking)
    if out:
        make_folder(out)
        path = page.write_ranking(ranking, out)
        Console(stderr=True).print(f"written to {path}", soft_wrap=True, markup=False, highlight=False)
    return Exit.NOT_ACCEPTED if ranking.outliers or ranking.suspects else Exit.TARGET_REACHED
