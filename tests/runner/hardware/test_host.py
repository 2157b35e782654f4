"""What is read of the host: this one, and a container's limits."""

from timetrial.runner.hardware import host


def test_a_look_at_this_host(tmp_path):
    now = host.Host().read()
    assert 0 <= now.cpu_percent <= 100
    assert now.host_memory_mib > 100
    kind = host.storage(tmp_path / "not" / "there" / "yet")
    assert kind["file_system"]
    assert kind["free_bytes"] > 0


def test_limits_of_a_container(tmp_path):
    assert host.limits(tmp_path) == (None, None)
    (tmp_path / "memory.max").write_text("8589934592\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert host.limits(tmp_path) == (8 * 2**30, 1.5)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert host.limits(tmp_path) == (None, None)


def test_limits_of_an_older_kernel(tmp_path):
    (tmp_path / "memory").mkdir()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("1073741824\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert host.limits(tmp_path) == (2**30, None)
