"""The command `timetrial data inspect`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..core.errors import DataError


def inspect(
    path: Annotated[Path, typer.Argument(help="A file or folder of your own.", show_default=False)],
) -> None:
    """Say what data of your own are, whether they would train, and the command that trains on them.

    Reads classes of images in folders, COCO annotations, parallel text, ratings, and text. Exits with code 21 if a run
    would end with an error.
    """
    from ...datasets.formats import inspection

    found = inspection.inspect(path)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"{path}: {found.kind}")
    for fact in found.facts:
        console.print(f"  {fact}")
    for problem in found.problems:
        console.print(f"  problem: {problem}")
    if found.problems:
        raise DataError(f"{path} would not train: correct the files and inspect them again.")
    console.print(f"It would train:\n  {found.command}")
