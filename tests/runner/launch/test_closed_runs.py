"""Division, seed and caches of whole runs: what the log states, and the refusal of closed runs by the ranks."""

import json

import pytest
from omegaconf import OmegaConf

from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import ConfigurationError, Exit
from timetrial.runner.launch import page_cache
from timetrial.runner.launch.validate_run import with_seed
from timetrial.runner.mlperf import closed_division

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def drop_caches(tmp_path, monkeypatch):
    """Keep the page cache of this machine."""
    monkeypatch.setattr(page_cache, "_DROP_CACHES", tmp_path / "missing" / "drop_caches")


def values_of(log):
    entries = [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]
    return {entry["key"]: entry["value"] for entry in entries}


def test_open_run_logs_its_division_its_seed_and_uncleared_caches(launch):
    _, run_dir = launch("recipe.max_epochs=1")
    values = values_of(run_dir.log)
    assert (values["submission_division"], values["seed"], values["cache_clear"]) == ("open", 1, False)


def test_log_states_cleared_caches_after_they_were_cleared(launch, monkeypatch):
    cleared = []
    monkeypatch.setattr(page_cache, "clear_page_cache", lambda paths: cleared.extend(paths))
    _, run_dir = launch("recipe.max_epochs=1", "clear_caches=true")
    assert values_of(run_dir.log)["cache_clear"] is True
    assert "prepared" in {path.name for path in cleared}


def test_run_whose_caches_stay_does_not_start(launch, tmp_path, monkeypatch):
    monkeypatch.setattr(page_cache, "resident_pages", lambda path: 1)
    with pytest.raises(ConfigurationError, match="data files stay in memory"):
        launch("clear_caches=true")
    assert not (tmp_path / "runs").exists()


def test_seed_is_drawn_logged_and_kept_by_a_resumed_run(launch, tmp_path):
    overrides = (f"run_dir={tmp_path}/one", "seed=null", "resume=true", "recipe.target.v05.hit_rate=0.99")
    exit_code, run_dir = launch(*overrides)
    seed = OmegaConf.load(run_dir.config).seed
    assert values_of(run_dir.log)["seed"] == seed
    assert run_dir.log.name == f"result_{seed}.txt"
    assert launch(*overrides)[0] == exit_code == Exit.TARGET_NOT_REACHED
    assert OmegaConf.load(run_dir.config).seed == seed


def test_drawn_seeds_differ_and_chosen_ones_stay(compose):
    config = validate(compose("seed=null"))
    seeds = {with_seed(config).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert config.seed is None
    assert with_seed(validate(compose("seed=7"))).seed == 7


def test_ranks_compare_the_number_of_samples_before_the_clock_starts(launch, tmp_path, monkeypatch):
    """The rules of another benchmark stand in for those that NCF, which is the smallest run, does not have."""
    rules = closed_division.ClosedRules(datasets={}, free={}, train_samples=117266)
    monkeypatch.setattr(closed_division, "check_config", lambda config: None)
    monkeypatch.setattr(closed_division, "load_rules", lambda benchmark: rules)
    with pytest.raises(ConfigurationError, match=r"training samples and the reference's have 117,266"):
        launch("division=closed")
    assert not (tmp_path / "runs").exists()


def test_closed_run_draws_a_seed_and_logs_its_division(launch, monkeypatch):
    monkeypatch.setattr(closed_division, "check_config", lambda config: None)
    rules = closed_division.ClosedRules(datasets={}, free={})
    monkeypatch.setattr(closed_division, "load_rules", lambda benchmark: rules)
    monkeypatch.setattr(page_cache, "clear_page_cache", lambda paths: None)
    _, run_dir = launch("division=closed", "recipe.max_epochs=1")
    values = values_of(run_dir.log)
    assert (values["submission_division"], values["cache_clear"]) == ("closed", True)
    assert values["seed"] == OmegaConf.load(run_dir.config).seed
