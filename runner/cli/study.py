"""The command `timetrial study`."""

from rich.console import Console

from .options import ResultPaths


def study(paths: ResultPaths) -> None:
    """Summarize repeated runs: scores, confidence intervals, censored runs, runs needed; measured throughput."""
    from ..results.report import build as reports
    from ..results.report import terminal

    console, built = Console(), reports.build_report(paths)
    terminal.show_run_groups(console, built.groups)
    terminal.show_throughput(console, built.throughput_groups)
    terminal.show_findings(console, built.findings)
