"""Variance shares compared with analyses of variance by hand and by other packages."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from timetrial.runner.results.analysis import variance
from timetrial.runner.results.analysis.intervals import Sample
from timetrial.runner.results.analysis.variance import epoch_share, variance_shares


@pytest.fixture
def any_width(monkeypatch):
    """Show shares of small designs too, which other packages can check."""
    monkeypatch.setattr(variance, "_MAX_WIDTH", 1.0)


def estimates(values, factors):
    return {entry.factor: entry.share.estimate for entry in variance_shares(values, factors)}


@pytest.mark.usefixtures("any_width")
def test_shares_of_balanced_table():
    """Two-way without repeats: sigma_a = (MS_a - MS_e) / b, with sums of squares by numpy."""
    generator = np.random.default_rng(5)
    table = generator.normal(0, 1, (8, 1)) + generator.normal(0, 0.5, (1, 6)) + generator.normal(0, 0.1, (8, 6))
    seeds, gpus = np.repeat(np.arange(8), 6), np.tile(np.arange(6), 8)
    rows, columns, grand = table.mean(1), table.mean(0), table.mean()
    error = table - rows[:, None] - columns[None] + grand
    mse = (error**2).sum() / 35
    msa, msb = 6 * ((rows - grand) ** 2).sum() / 7, 8 * ((columns - grand) ** 2).sum() / 5
    seed, gpu = (msa - mse) / 6, (msb - mse) / 8
    shares = variance_shares(np.exp(table.ravel()), {"seed": seeds, "GPU": gpus, "count": np.zeros(48)})
    assert {entry.factor: entry.share.estimate for entry in shares} == pytest.approx(
        {"seed": seed / (seed + gpu + mse), "GPU": gpu / (seed + gpu + mse)}
    )
    assert all(entry.share.low < entry.share.estimate < entry.share.high for entry in shares)


# logarithms of times: 6 seeds x 5 GPUs x 2 runs
LOGS = [
    *(3.18, 3.26, 2.99, 2.96, 3.29, 3.32, 2.44, 2.45, 3.56, 3.40, 3.70, 3.89, 3.60, 3.47, 3.82, 3.86, 3.01, 2.98, 4.15),
    *(4.24, 3.76, 3.71, 3.63, 3.67, 3.81, 3.89, 3.16, 3.04, 4.00, 4.12, 2.94, 3.03, 2.60, 2.66, 2.89, 2.80, 2.20, 2.24),
    *(3.14, 3.35, 3.10, 3.08, 2.87, 2.93, 2.94, 3.14, 2.36, 2.12, 3.36, 3.30, 2.99, 2.86, 2.72, 2.75, 2.87, 3.02, 2.17),
    *(2.23, 3.15, 3.31),
]
SEEDS, GPUS = np.repeat(np.arange(6), 10), np.tile(np.repeat(np.arange(5), 2), 6)
KEPT = np.array([index % 7 != 3 and index % 11 != 5 for index in range(60)])


@pytest.mark.usefixtures("any_width")
def test_shares_of_balanced_table_match_reml():
    """MixedLM of statsmodels 0.15.0 with crossed effects: REML equals the analysis of variance on balanced data."""
    seed, gpu, residual = 0.171367, 0.155349, 0.00649631
    total = seed + gpu + residual
    shares = estimates(np.exp(LOGS), {"seed": SEEDS, "gpu": GPUS})
    assert shares == pytest.approx({"seed": seed / total, "gpu": gpu / total}, rel=1e-3)


@pytest.mark.usefixtures("any_width")
def test_shares_of_unbalanced_table():
    """Against sums of squares of statsmodels (anova_lm, type 2) and expectations by hand, and close to REML.

    In the expected sum of squares of the seeds, a run of seed s on GPU c has the weight 1 - n_sc / n_c.
    """
    counts = np.zeros((6, 5))
    np.add.at(counts, (SEEDS[KEPT], GPUS[KEPT]), 1)
    residual = 0.252253 / 37
    seed = (6.589412 - 5 * residual) / (counts.sum() - (counts**2 / counts.sum(0)).sum())
    gpu = (5.106271 - 4 * residual) / (counts.sum() - (counts.T**2 / counts.sum(1)).sum())
    shares, total = estimates(np.exp(LOGS)[KEPT], {"seed": SEEDS[KEPT], "gpu": GPUS[KEPT]}), seed + gpu + residual
    assert shares == pytest.approx({"seed": seed / total, "gpu": gpu / total}, rel=1e-5)
    total = 0.182169 + 0.148745 + 0.00681643  # REML
    assert shares == pytest.approx({"seed": 0.182169 / total, "gpu": 0.148745 / total}, rel=0.05)


def test_one_factor_has_the_exact_interval_of_wald():
    """With one factor the generalized interval is Wald's, by the F ratio of factor and residual."""
    generator = np.random.default_rng(8)
    table = generator.normal(0, 1, (20, 1)) + generator.normal(0, 1, (20, 4))
    (entry,) = variance_shares(np.exp(table.ravel()), {"seed": np.repeat(np.arange(20), 4)})
    f_ratio = (4 * table.mean(1).var(ddof=1)) / table.var(1, ddof=1).mean()
    bounds = [(f_ratio / scipy_stats.f.ppf(tail, 19, 60) - 1) / 4 for tail in (0.975, 0.025)]
    expected = [bound / (1 + bound) for bound in bounds]
    assert (entry.share.low, entry.share.high) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("levels", "repeats", "is_shown"), [(10, 2, False), (10, 4, False), (20, 4, True)])
def test_designs_that_say_too_little_are_silent_whatever_the_values(levels, repeats, is_shown):
    generator = np.random.default_rng(2)
    for deviation in (0.1, 1.0, 10.0):
        table = deviation * generator.normal(0, 1, (levels, 1)) + generator.normal(0, 1, (levels, repeats))
        shares = variance_shares(np.exp(table.ravel()), {"seed": np.repeat(np.arange(levels), repeats)})
        assert bool(shares) == is_shown


@pytest.mark.usefixtures("any_width")
def test_says_nothing_about_factors_that_cannot_be_told_apart():
    values = [1.0, 2.0, 3.0, 4.0, 2.5, 1.5]
    collinear = {"gpu": [0, 0, 1, 1, 2, 2], "count": [8, 8, 4, 4, 2, 2], "seed": [1, 2, 1, 2, 1, 2]}
    assert list(estimates(values, collinear)) == ["seed"]
    assert estimates(values, {"run": range(6), "one level": [0] * 6}) == {}
    assert estimates([1.0, 2.0, 1.0, 2.0], {"gpu": [0, 0, 1, 1]}) == {"gpu": 0}  # estimated below 0
    assert estimates([2.0] * 4, {"gpu": [0, 0, 1, 1]}) == {}  # nothing varies


@pytest.mark.usefixtures("any_width")
def test_machines_nested_in_gpus_have_shares_at_equal_gpu():
    """Machines b in GPUs a, n runs each: sigma_b = (MS_b(a) - MS_e) / n, whatever the GPUs differ by."""
    generator = np.random.default_rng(6)
    table = generator.normal(0, 1, (2, 5, 1)) + generator.normal(0, 0.4, (2, 5, 4)) + np.array([0, 3]).reshape(2, 1, 1)
    means = table.mean(axis=2, keepdims=True)
    noise = ((table - means) ** 2).sum() / 30
    machine = (4 * ((means - table.mean(axis=(1, 2), keepdims=True)) ** 2).sum() / 8 - noise) / 4
    factors = {"GPU": np.repeat([0, 1], 20), "machine": np.repeat(np.arange(10), 4)}
    (entry,) = variance_shares(np.exp(table.ravel()), factors)
    assert (entry.factor, entry.within) == ("machine", ("GPU",))
    assert entry.share.estimate == pytest.approx(machine / (machine + noise))


def test_share_of_epochs_covers_the_true_share_for_correlated_factors():
    """Pitman's interval is exact for two normal logs, whatever their correlation."""
    generator = np.random.default_rng(3)
    deviations, correlation, covered = np.array([0.12, 0.06]), 0.6, 0
    covariance = np.outer(deviations, deviations) * np.array([[1, correlation], [correlation, 1]])
    true_share = deviations[0] ** 2 / (deviations**2).sum()
    for _ in range(2000):
        epochs, pace = np.exp(generator.multivariate_normal([2, 4], covariance, size=8)).T
        share = epoch_share(Sample(tuple(epochs)), Sample(tuple(pace)))
        covered += share.low <= true_share <= share.high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


def test_share_of_epochs_needs_four_runs_that_vary():
    values = Sample((3.0, 4.0, 5.0, 6.0))
    assert epoch_share(values, Sample((1.0,) * 4)).estimate == 1
    assert not epoch_share(Sample((2.0,) * 4), values).n  # the grid may hide how the epochs vary
    assert not epoch_share(Sample((2.0,) * 4), Sample((1.0,) * 4)).n
    assert not epoch_share(Sample((3.0, 4.0, 5.0)), Sample((1.0, 2.0, 1.0))).n
