"""Draw docs/images/seeds.svg: the outcome of each GPU run of docs/studies/seeds.tar.xz, by the random stream varied."""

import math
from collections.abc import Mapping

import pandas as pd

from timetrial.runner.results.report.chart import Axis, Chart
from timetrial.scripts.measure import study_page
from timetrial.scripts.measure.seed_outcomes import Variance

_ROW, _GAP = 26.0, 14.0
_LOW, _HIGH = 0.7, 1.6
_TICKS = (0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.6)


def picture(runs: Mapping[str, Mapping[str, pd.DataFrame]]) -> str:
    """Return an SVG of the runs' outcomes, which are logs, by workload and arm.

    Each is shown over the median of the arm "all" on its processor.
    """
    height = sum(_ROW * len(arms) + _GAP for arms in runs.values())
    label = "epochs over the median of all"
    ticks = [(tick, f"{tick:g}") for tick in _TICKS]
    chart = Chart(Axis(_LOW, _HIGH, label, is_log=True, ticks=ticks), None, height, left=160)
    chart.rule(1.0, is_vertical=True)
    down, spreads = _GAP, []
    for workload, arms in runs.items():
        middles = arms["all"].groupby("processor").outcome.median()
        for arm, same in arms.items():
            ratios = (same.outcome - same.processor.map(middles)).dropna().map(math.exp).sort_values()
            chart.row_label(down + 10, f"{workload}, {arm}")
            chart.swarm(list(ratios), down + 6, 0)
            if variance := Variance.of(same):
                spreads.append(f"{workload}, {arm}: {math.sqrt(variance.value):.1%}")
            down += _ROW
        down += _GAP
    title = "Luck of each random stream"
    return study_page.stand_alone(
        chart.plot("seeds", title, "", f"Standard deviation of the logs. {'; '.join(spreads)}.")
    )
