"""What `import timetrial` offers: the commands as functions. docs/python_api.ipynb shows them."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.errors import ConfigurationError, DataError, error_of
from .results.analysis.comparison import Comparison
from .results.analysis.throughput_comparison import ThroughputComparison
from .results.report.build import Report

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "Report", "ThroughputComparison", "compare", "read_runs", "report", "run"]


def run(*overrides: str) -> "pd.DataFrame":
    """Train as `timetrial run` does with the same words, such as `"workload=NAME", "seed=1"`; return a row per run.

    `"-m"` among them runs a sweep. Ranks are processes of their own, as from the command line. A run that does not
    reach its target is a row too. Raises `timetrial.runner.core.errors.RunError` for a run that never began.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from .cli.run import run_hydra
    from .config.error_messages import format_error
    from .launch.rank_pool import RankPool

    try:
        jobs = run_hydra("timetrial.run", overrides, RankPool()).jobs
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigurationError(format_error(error)) from error
    run_dirs = [job.run_dir for job in jobs if job.run_dir]
    if not run_dirs:
        if jobs:
            raise error_of(jobs[0].exit_code, jobs[0].error)
        raise ConfigurationError("timetrial.run has run nothing: give it overrides, and no option but -m.")
    return read_runs(*run_dirs)


def read_runs(*paths: str | Path) -> "pd.DataFrame":
    """Return one row per run of run directories, published result trees or logs at or below `paths`.

    Columns are those of `timetrial report --runs-csv`, with one for each metric in place of `target` and
    `last_quality`: `target_hit_rate`, `quality_hit_rate` and so on, as fractions or losses. Times are seconds. Unknown
    values are NaN. Raises `DataError` if there are no runs.
    """
    import pandas as pd

    from .results.parse import sources
    from .results.report import csv_tables

    if not paths:
        raise DataError("No path is given: name run directories, logs, or folders that contain them.")
    rows = []
    for found in sources.read_runs(list(map(Path, paths))):
        row: dict[str, Any] = csv_tables.run_row(found)
        del row["target"], row["last_quality"]
        row |= {f"target_{metric}": value for metric, value in found.target.items()}
        metrics = list(found.target if len(found.target) == len(found.last_quality) == 1 else found.last_quality)
        qualities = found.last_quality.values()  # logs of a single metric do not name it
        rows.append(row | {f"quality_{metric}": value for metric, value in zip(metrics, qualities, strict=True)})
    return pd.DataFrame(rows).replace({None: math.nan}).infer_objects()


def compare(baseline: str | Path, *others: str | Path, margin: float = 0.05) -> list[Comparison | ThroughputComparison]:
    """Compare run directories or logs with a baseline as `timetrial compare` does; return a comparison per benchmark.

    A comparison has a `verdict` (faster, slower, equal, cannot tell, not comparable). That of run groups has `time`,
    the interval of baseline over other: above 1, the other is faster. At most 5% of the calls give a false verdict.
    Raises `DataError` if the sides have no benchmark in common.
    """
    from .results.report.folder_comparison import compare_folders

    return compare_folders([Path(baseline), *map(Path, others)], margin)


def report(*paths: str | Path, out: str | Path | None = None, baseline: str = "") -> Report:
    """Judge any mix of results as `timetrial report` does; write report.html, report.md and csv/ to the folder `out`.

    `baseline` is text in the name of the system that others are compared with. Raises `DataError` if there is nothing
    to read.
    """
    from .results.report import build, page

    built = build.build_report(list(map(Path, paths)), baseline)
    if out is not None:
        page.write_page(built, Path(out), baseline)
    return built
