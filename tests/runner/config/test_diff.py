from timetrial.runner.config.diff import differences


def test_differences_name_the_keys(compose):
    where = ("runs=elsewhere", "telemetry.every_seconds=0", "price=2.5")
    assert differences(compose(), compose("seed=2", *where)) == ["seed"]
