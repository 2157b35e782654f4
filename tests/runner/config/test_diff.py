from timetrial.runner.config.diff import diff_configs


def test_differences_name_the_keys(compose):
    where = ("runs=elsewhere", "telemetry.every_seconds=0", "usd_per_gpu_hour=2.5")
    assert diff_configs(compose(), compose("seed=2", *where)) == ["seed"]
