"""Compare what folders or logs hold: run groups by their time-to-train, throughput groups by their speed."""

from collections.abc import Sequence
from pathlib import Path

from ...core.errors import ConfigurationError, DataError
from ...core.found_files import PassOver, make_visible
from ..analysis import throughput_comparison, throughput_groups
from ..analysis.comparison import Comparison, compare_all
from ..analysis.groups import group_runs
from ..analysis.throughput_comparison import ThroughputComparison
from ..parse import sources
from . import side_labels


def compare_folders(
    paths: Sequence[Path], margin: float, pass_over: PassOver = sources.ignore
) -> list[Comparison | ThroughputComparison]:
    """Compare the results at each of `paths` with those at the first, benchmark by benchmark.

    At most 5% of the calls give a false verdict, however many pairs there are. Sides whose times differ by at most the
    fraction `margin` are called equal. Raises `ConfigurationError` for a margin that is no fraction, and unless there
    are two sides at least and none contains another; raises `DataError` if they have no benchmark in common. Files
    that cannot be read are given to `pass_over`.
    """
    if not 0 < margin < 1:
        raise ConfigurationError(f"A margin of {margin:g} is no fraction between 0 and 1: pass 0.05 for 5%.")
    _refuse_equal_sides(paths)
    throughput = side_labels.label_throughput_groups(
        paths, [throughput_groups.read_throughput_groups([path], pass_over) for path in paths]
    )
    groups = side_labels.label_run_groups(
        paths,
        [
            group_runs(sources.read_runs([path], needed=not measured, pass_over=pass_over))
            for path, measured in zip(paths, throughput, strict=True)
        ],
    )
    pairs = [(a, b) for side in groups[1:] for a in groups[0] for b in side if a.benchmark == b.benchmark]
    throughput_pairs = throughput_comparison.compare_closest(
        throughput[0], [group for side in throughput[1:] for group in side]
    )
    if not pairs and not throughput_pairs:
        names = make_visible(f"{', '.join(map(str, paths[1:]))} and {paths[0]}")
        raise DataError(f"{names} have no benchmark in common: nothing to compare.")
    return [*compare_all(pairs, margin), *throughput_pairs]


def _refuse_equal_sides(paths: Sequence[Path]) -> None:
    if len(paths) < 2:
        raise ConfigurationError("compare needs a baseline and another side: name two folders or logs.")
    resolved = [path.resolve() for path in paths]
    for index, path in enumerate(resolved):
        for other in resolved[index + 1 :]:
            if path == other or path in other.parents or other in path.parents:
                first, second = (make_visible(str(paths[resolved.index(side)])) for side in (path, other))
                raise ConfigurationError(
                    f"{first} and {second} hold the same runs: name folders or logs that have none in common."
                )
