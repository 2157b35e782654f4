"""Rankings of rounds against scores by hand, Welch's test of scipy, and simulated rounds of equally fast systems."""

from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from timetrial.runner.results.analysis.groups import RunGroup
from timetrial.runner.results.analysis.ranking import list_progress, rank_round
from timetrial.runner.results.analysis.verdicts import Verdict
from timetrial.runner.results.parse.runs import Run


def entry(system, minutes, *, epochs=4, gpus=8, failed=0, round_="v1.0", division="closed", factor=None):
    """Return a group with one run for each time; each has a seed of its own."""
    group = RunGroup(round_, "Maker", system, "resnet", "", scaling_factor=factor)
    for number, value in enumerate([*minutes, *[99.0] * failed]):
        path = Path(f"{system}_{number}")
        run = Run(path, path, round=round_, benchmark="resnet", division=division, seed=number, num_accelerators=gpus)
        run.duration = run.observed = 60 * value
        run.success, run.progress_to_converge, run.eval_spacing = number < len(minutes), epochs, 0.01
        run.target = {"accuracy": 0.759}
        group.runs.append(run)
    return group


A, B, C = [10.0, 10.2, 9.9, 10.1, 12.0], [14.0, 14.3, 13.8, 14.1, 14.2], [14.1, 14.4, 13.7, 14.2, 14.3]


def test_entries_are_in_order_of_their_score():
    (ranking,) = rank_round([entry("c", C), entry("a", A, gpus=16), entry("b", B, failed=1)])
    assert [ranked.group.system for ranked in ranking.entries] == ["a", "b", "c"]
    # Olympic means: 10.1 of three runs; 14.15 of four, as the failed run is the slowest; 14.2 of three.
    assert [ranked.minutes for ranked in ranking.entries] == pytest.approx([10.1, 14.15, 14.2])
    assert [ranked.accelerator_minutes for ranked in ranking.entries] == pytest.approx([161.6, 113.2, 113.6])
    assert ranking.most_efficient is ranking.entries[1]
    efficiencies = [ranking.relative_efficiency(ranked) for ranked in ranking.entries]
    assert efficiencies == pytest.approx([113.2 / 161.6, 1.0, 113.2 / 113.6])
    variation = float(np.std(A, ddof=1) / np.mean(A))
    assert ranking.entries[0].time_variation == pytest.approx(variation)
    assert ranking.entries[0].pace_variation == pytest.approx(variation)  # of equal epochs


def test_leads_are_decided_by_welchs_test_and_holm():
    (ranking,) = rank_round([entry("a", A), entry("b", B), entry("c", C)])
    logs = [np.log(values) for values in (A, B, C)]
    p_values = [scipy.stats.ttest_ind(*pair, equal_var=False).pvalue for pair in (logs[:2], logs[1:])]
    assert p_values[0] < 0.025 < 0.05 < p_values[1]
    first, second, last = ranking.entries
    assert [ranked.verdict for ranked in (first, second, last)] == [Verdict.FASTER, Verdict.EQUAL, None]
    assert first.levels.difference == 1 - 0.05 / 2
    assert second.levels.difference == 1 - 0.05
    assert first.lead.p_value == pytest.approx(p_values[0], rel=1e-3)  # but for the grid of evaluations
    ratio = np.exp(logs[1].mean() - logs[0].mean())
    assert first.lead_interval.estimate == pytest.approx(ratio)
    assert first.lead_interval.low > 1


def test_factors_count_and_other_divisions_do_not():
    (ranking,) = rank_round([entry("a", A, factor=2.0), entry("b", B), entry("open", [1.0] * 5, division="open")])
    assert [ranked.group.system for ranked in ranking.entries] == ["b", "a"]
    assert ranking.entries[0].lead_interval.estimate == pytest.approx(
        2 * np.exp(np.mean(np.log(A)) - np.mean(np.log(B)))
    )


def test_entry_without_a_score_is_last_and_has_no_lead():
    (ranking,) = rank_round([entry("none", [1.0] * 5, failed=2), entry("a", A)])
    assert [ranked.group.system for ranked in ranking.scored] == ["a"]
    assert [ranked.lead for ranked in ranking.entries] == [None, None]
    assert ranking.relative_efficiency(ranking.entries[1]) is None


def test_equally_fast_systems_rarely_lead_beyond_luck():
    draws, rounds = np.random.default_rng(49), 300
    wrong = 0
    for _ in range(rounds):
        groups = [entry(f"s{number}", np.exp(draws.normal(2, 0.07, 10)).tolist()) for number in range(6)]
        wrong += any(ranked.verdict is Verdict.FASTER for ranked in rank_round(groups)[0].entries)
    assert wrong <= scipy.stats.binom(rounds, 0.05).ppf(0.999)


def test_progress_holds_the_best_of_each_round_at_equal_numbers():
    old = rank_round([entry("a", C), entry("b", B), entry("large", A, gpus=64)])
    new = rank_round([entry("d", A, round_="v1.1"), entry("e", [1.0] * 5, gpus=128, round_="v1.1")])
    (progress,) = list_progress([*old, *new])
    assert (progress.model, progress.num_accelerators) == ("resnet", 8)
    assert {round_: best.group.system for round_, best in progress.best.items()} == {"v1.0": "b", "v1.1": "d"}


def test_successive_runs_of_an_entry_may_correlate():
    """In an autoregressive process of order one, of which Welch's test knows nothing."""
    groups = [entry("a", [10.0, 10.2, 10.1, 10.4, 10.3]), entry("b", [11.0, 11.2, 10.9, 11.1, 11.3])]
    of_unknown_order = rank_round(groups)[0].entries[0].lead
    for group in groups:
        for number, run in enumerate(group.runs):
            run.started = float(number)
    lead = rank_round(groups)[0].entries[0].lead
    assert lead.log == of_unknown_order.log
    assert lead.error > 1.2 * of_unknown_order.error
