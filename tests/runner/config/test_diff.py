"""Differences between configurations that forbid a resume."""

from omegaconf import OmegaConf

from timetrial.runner.config.diff import diff_configs


def test_differences_name_the_keys_that_a_resume_may_not_change(compose):
    may_change = ("runs_dir=elsewhere", "telemetry.every_seconds=0", "usd_per_gpu_hour=2.5")
    configs = [OmegaConf.to_container(node) for node in (compose(), compose("seed=2", *may_change))]
    assert diff_configs(*configs) == ["seed"]
