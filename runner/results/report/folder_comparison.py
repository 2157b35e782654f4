"""Compare what folders or logs hold: run groups by their time-to-train, throughput groups by their speed."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ...core.errors import ConfigurationError, DataError
from ...core.found_files import PassOver, make_visible
from ..analysis import throughput_comparison, throughput_groups
from ..analysis.comparison import Comparison, compare_all
from ..analysis.findings import Finding, FindingKind
from ..analysis.groups import RunGroup, group_runs
from ..analysis.throughput_comparison import ThroughputComparison
from ..analysis.throughput_groups import ThroughputGroup
from ..parse import sources
from ..parse.runs import Run
from . import side_labels

_MAX_TITLES = 5  # of groups that a message names


def compare_folders(
    paths: Sequence[Path],
    margin: float,
    pass_over: PassOver = sources.ignore,
    note: Callable[[Finding], None] = lambda finding: None,
) -> list[Comparison | ThroughputComparison]:
    """Compare the results at each of `paths` with those at the first, benchmark by benchmark.

    At most 5% of the calls call equal sides faster or slower, and at most 5% unequal ones equal, of runs to a target
    and of throughput runs each, however many pairs there are. Sides whose times differ by at most the fraction `margin`
    are called equal. Raises `ConfigurationError` for a margin that is no fraction, and unless there are two sides at
    least and none has runs of another; raises `DataError` if they have no benchmark in common. Files that cannot be
    read are given to `pass_over`, what is left out of the sides to `note`.
    """
    if not 0 < margin < 1:
        raise ConfigurationError(f"A margin of {margin:g} is no fraction between 0 and 1: pass 0.05 for 5%.")
    _refuse_equal_sides(paths)
    throughput = side_labels.label_throughput_groups(
        paths, [throughput_groups.read_throughput_groups([path], pass_over) for path in paths]
    )
    runs = [
        sources.read_runs([path], needed=not measured, pass_over=pass_over)
        for path, measured in zip(paths, throughput, strict=True)
    ]
    _refuse_shared_runs(paths, runs)
    groups = side_labels.label_run_groups(paths, list(map(group_runs, runs)))
    pairs = [(a, b) for side in groups[1:] for a in groups[0] for b in side if a.benchmark == b.benchmark]
    throughput_pairs = throughput_comparison.compare_closest(
        throughput[0], [group for side in throughput[1:] for group in side]
    )
    if not pairs and not throughput_pairs:
        names = make_visible(f"{', '.join(map(str, paths[1:]))} and {paths[0]}")
        raise DataError(f"{names} have no benchmark in common: nothing to compare.")
    compared = {id(group) for pair in pairs for group in pair}
    compared |= {id(group) for pair in throughput_pairs for group in (pair.baseline, pair.other)}
    for path, own, same, measured in zip(paths, runs, groups, throughput, strict=True):
        of_side: list[RunGroup | ThroughputGroup] = [*same, *measured]
        for message in _describe_left_out(own, [group for group in of_side if id(group) not in compared]):
            note(Finding(FindingKind.NOTE, make_visible(str(path)), message))
    return [*compare_all(pairs, margin), *throughput_pairs]


def _describe_left_out(runs: Sequence[Run], alone: Sequence[RunGroup | ThroughputGroup]) -> Iterator[str]:
    """Yield what of a side is not compared: unfinished runs, and groups without a counterpart."""
    if unfinished := sum(run.is_unfinished for run in runs):
        yield f"{unfinished} of {len(runs)} runs have not finished and are not compared."
    if titles := [group.title for group in alone]:
        more = f" and {len(titles) - _MAX_TITLES} more" if len(titles) > _MAX_TITLES else ""
        yield f"Not compared, because the other side has nothing like it: {'; '.join(titles[:_MAX_TITLES])}{more}."


def _refuse_shared_runs(paths: Sequence[Path], runs: Sequence[Sequence[Run]]) -> None:
    """Raise `ConfigurationError` if two sides have a run of timetrial in common, such as a copy."""
    starts = [{(run.started, run.seed, run.duration) for run in side if run.run_record is not None} for side in runs]
    for (first, own), (second, other) in itertools.combinations(zip(paths, starts, strict=True), 2):
        if own & other:
            raise _equal_sides(first, second)


def _refuse_equal_sides(paths: Sequence[Path]) -> None:
    if len(paths) < 2:
        raise ConfigurationError("compare needs a baseline and another side: name two folders or logs.")
    for first, second in itertools.combinations(paths, 2):
        one, other = first.resolve(), second.resolve()
        if one == other or one in other.parents or other in one.parents:
            raise _equal_sides(first, second)


def _equal_sides(first: Path, second: Path) -> ConfigurationError:
    names = " and ".join(make_visible(str(path)) for path in (first, second))
    return ConfigurationError(f"{names} hold the same runs: name folders or logs that have none in common.")
