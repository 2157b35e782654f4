"""The verdicts of throughput groups and of external systems in words: which computes faster."""

from ...core.execution_paths import UNKNOWN
from ..analysis.acceptance import describe_acceptance
from ..analysis.external_comparison import ExternalComparison
from ..analysis.findings import describe_speedup
from ..analysis.throughput_comparison import ThroughputComparison
from ..analysis.throughput_groups import PATH
from ..analysis.verdicts import MARGIN, Verdict
from . import comparison_text


def throughput_phrase(comparison: ThroughputComparison) -> str:
    """Return the verdict on two throughput groups."""
    if not comparison.speed.n:
        return "no ratio, because one of them ran out of memory"
    runs = f"{len(comparison.other.results)} vs. {len(comparison.baseline.results)} runs"
    hosts = [{attempt.host for attempt in group.attempts} for group in (comparison.baseline, comparison.other)]
    where = "" if hosts[0] == hosts[1] else ", between these machines"
    speedup = describe_speedup(comparison.speed, comparison.levels)
    if comparison.distorting:
        speedup = f"cannot tell because of {comparison.distorting.cause}; measured: {speedup}"
    return f"{speedup} by samples per second, {runs}{where}"


def throughput_reasons(comparison: ThroughputComparison) -> list[str]:
    """Return what the reader must know to trust the verdict on two throughput groups."""
    texts = comparison_text.describe_distortion(comparison.distorting)
    for group in (comparison.baseline, comparison.other):
        if group.flags:
            texts.append(f"validity flags of {group.title}: {', '.join(sorted(group.flags))}")
    return texts


def setting_differences(comparison: ThroughputComparison) -> list[str]:
    """Return the settings in which two throughput groups differ, with their values, and machines never accepted."""
    first, second = (group.settings | group.executed for group in (comparison.baseline, comparison.other))
    missing = {key: UNKNOWN if key.startswith(PATH) else None for key in comparison.differences}
    texts = [f"{key}: {first.get(key, missing[key])} vs. {second.get(key, missing[key])}" for key in missing]
    sides = (comparison.baseline, comparison.other)
    return texts + describe_acceptance({group.title: group.accepted for group in sides})


def external_summary(comparison: ExternalComparison) -> str:
    """Return the names of two systems and the verdict on them."""
    names = f"{comparison.other.title} against {comparison.baseline.title}"
    if not comparison.rows:
        return f"{names}: cannot tell, nothing was measured on both at equal settings."
    ratio = comparison.interval
    if not ratio.is_bounded:
        return f"{names}: cannot tell, one network was measured ({ratio.estimate:.3g} times as fast)."
    words = f"equal within {MARGIN:.0%}" if comparison.verdict is Verdict.EQUAL else comparison.verdict.value
    bounds = f"{comparison.levels.difference * 100:.3g}% CI: {ratio.low:.3g} to {ratio.high:.3g}"
    where = f"over {len(comparison.trained)} networks" if len(comparison.trained) > 1 else "on one network"
    return f"{names}: {words}, {ratio.estimate:.3g} times as fast ({bounds}) {where}, between these machines."
