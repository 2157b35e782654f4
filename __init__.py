"""timetrial: how long a GPU takes to train real models to real quality.

runs = timetrial.run("workload=ncf", "accelerator=cpu", "seed=1")  # trains; a pandas.DataFrame
runs = timetrial.read_runs("runs")
(comparison,) = timetrial.compare("runs/a", "runs/b")
timetrial.report("runs", out="report")
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runner.api import Comparison, Report, ThroughputComparison, compare, read_runs, report, run

__version__ = "0.1.0"
__all__ = ["Comparison", "Report", "ThroughputComparison", "__version__", "compare", "read_runs", "report", "run"]


def __getattr__(name: str) -> Any:
    """Import the functions when they are used: the command line starts without them."""
    if name in __all__:
        return getattr(importlib.import_module(".runner.api", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
