"""What is read of the host: this one, and a container's limits."""

import os
import subprocess
import sys
from types import SimpleNamespace

from timetrial.runner.hardware import host


def test_a_look_at_this_host(tmp_path):
    now = host.Host().read()
    assert 0 <= now.cpu_percent <= 100
    assert now.host_memory_mib > 100
    kind = host.storage(tmp_path / "not" / "there" / "yet")
    assert kind["file_system"]
    assert kind["free_bytes"] > 0


def test_limits_of_a_container(tmp_path):
    assert host.limits(tmp_path, tmp_path / "none") == (None, None)
    (tmp_path / "memory.max").write_text("8589934592\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert host.limits(tmp_path, tmp_path / "none") == (8 * 2**30, 1.5)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert host.limits(tmp_path, tmp_path / "none") == (None, None)


def test_limits_of_an_older_kernel(tmp_path):
    (tmp_path / "memory").mkdir()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("1073741824\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert host.limits(tmp_path, tmp_path / "none") == (2**30, None)


def test_children_are_ours():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert host.others([os.getpid(), child.pid]) == 0
        child.communicate(b"\n")


def test_a_stranger_that_can_be_seen_is_never_taken_for_ours():
    assert host.others([1]) == (1 if os.getppid() != 1 else 0)
    assert host.others([2**22 + 1]) == 0


def test_rates_are_of_their_own_direction(monkeypatch):
    looks = iter([SimpleNamespace(read_bytes=0, write_bytes=0), SimpleNamespace(read_bytes=2e9, write_bytes=1e6)])
    monkeypatch.setattr(host.psutil, "disk_io_counters", lambda: next(looks))
    now = host.Host().read()
    assert now.disk_read_mb_s > 1000 * now.disk_write_mb_s > 0


def test_the_innermost_mount_counts(monkeypatch, tmp_path):
    mounts = [
        SimpleNamespace(device="/dev/sda", mountpoint="/", fstype="ext4"),
        SimpleNamespace(device="srv:/x", mountpoint=str(tmp_path), fstype="nfs4"),
    ]
    monkeypatch.setattr(host.psutil, "disk_partitions", lambda all: mounts)
    assert host.storage(tmp_path / "data")["file_system"] == "nfs4"


def test_a_mount_without_a_device_has_no_disk(monkeypatch, tmp_path):
    mounts = [SimpleNamespace(device="", mountpoint="/", fstype="tmpfs")]
    monkeypatch.setattr(host.psutil, "disk_partitions", lambda all: mounts)
    told = host.storage(tmp_path)
    assert (told["file_system"], told["rotational"]) == ("tmpfs", None)


def test_a_batch_jobs_limit_lies_below_the_root(tmp_path):
    own, job = tmp_path / "cgroup", tmp_path / "tree" / "slurm" / "job_7"
    job.mkdir(parents=True)
    own.write_text("0::/slurm/job_7\n")
    (job / "memory.max").write_text("max\n")
    (job.parent / "memory.max").write_text("4096\n")
    (job / "cpu.max").write_text("200000 100000\n")
    assert host.limits(tmp_path / "tree", own) == (4096, 2.0)


def test_whose_accelerators_are_on_the_bus(tmp_path):
    for number, (kind, vendor) in enumerate([("0x030200", "0x10de"), ("0x030000", "0x1a03"), ("0x020000", "0x8086")]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "class").write_text(f"{kind}\n")
        (tmp_path / str(number) / "vendor").write_text(f"{vendor}\n")
    assert host.vendors(tmp_path) == {"NVIDIA"}
