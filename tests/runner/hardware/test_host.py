"""Sensors and facts of this host, and the limits of a container."""

import os
import subprocess
import sys
from types import SimpleNamespace

from timetrial.runner.hardware import host


def test_reading_of_this_host(tmp_path):
    reading = host.HostSensors().read()
    assert 0 <= reading.cpu_percent <= 100
    assert reading.host_memory_mib > 100
    storage = host.describe_storage(tmp_path / "not" / "there" / "yet")
    assert storage["file_system"]
    assert storage["free_bytes"] > 0


def test_cgroup_limits(tmp_path):
    assert host.cgroup_limits(tmp_path, tmp_path / "none") == (None, None)
    (tmp_path / "memory.max").write_text("8589934592\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert host.cgroup_limits(tmp_path, tmp_path / "none") == (8 * 2**30, 1.5)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert host.cgroup_limits(tmp_path, tmp_path / "none") == (None, None)


def test_cgroup_v1_limits(tmp_path):
    (tmp_path / "memory").mkdir()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("1073741824\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert host.cgroup_limits(tmp_path, tmp_path / "none") == (2**30, None)


def test_children_are_not_other_processes():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert host.count_other_processes([os.getpid(), child.pid]) == 0
        child.communicate(b"\n")


def test_visible_process_of_another_user_is_counted():
    assert host.count_other_processes([1]) == (1 if os.getppid() != 1 else 0)
    assert host.count_other_processes([2**22 + 1]) == 0


def test_read_and_write_rates_are_not_mixed_up(monkeypatch):
    counters = iter([SimpleNamespace(read_bytes=0, write_bytes=0), SimpleNamespace(read_bytes=2e9, write_bytes=1e6)])
    monkeypatch.setattr(host.psutil, "disk_io_counters", lambda: next(counters))
    reading = host.HostSensors().read()
    assert reading.disk_read_mb_s > 1000 * reading.disk_write_mb_s > 0


def test_innermost_mount_is_used(monkeypatch, tmp_path):
    mounts = [
        SimpleNamespace(device="/dev/sda", mountpoint="/", fstype="ext4"),
        SimpleNamespace(device="srv:/x", mountpoint=str(tmp_path), fstype="nfs4"),
    ]
    monkeypatch.setattr(host.psutil, "disk_partitions", lambda all: mounts)
    assert host.describe_storage(tmp_path / "data")["file_system"] == "nfs4"


def test_mount_without_device_has_no_disk(monkeypatch, tmp_path):
    mounts = [SimpleNamespace(device="", mountpoint="/", fstype="tmpfs")]
    monkeypatch.setattr(host.psutil, "disk_partitions", lambda all: mounts)
    storage = host.describe_storage(tmp_path)
    assert (storage["file_system"], storage["rotational"]) == ("tmpfs", None)


def test_tightest_limit_of_nested_cgroups_counts(tmp_path):
    own_cgroup, job = tmp_path / "cgroup", tmp_path / "tree" / "slurm" / "job_7"
    job.mkdir(parents=True)
    own_cgroup.write_text("0::/slurm/job_7\n")
    (job / "memory.max").write_text("max\n")
    (job.parent / "memory.max").write_text("4096\n")
    (job / "cpu.max").write_text("200000 100000\n")
    assert host.cgroup_limits(tmp_path / "tree", own_cgroup) == (4096, 2.0)


def test_width_of_a_device_on_the_pci_bus(tmp_path):
    assert host.max_pcie_width("0000:3B:00.0", tmp_path) is None
    for text, width in (("16", 16), ("255", None), ("Unknown", None)):
        (tmp_path / "0000:3b:00.0").mkdir(exist_ok=True)
        (tmp_path / "0000:3b:00.0" / "max_link_width").write_text(f"{text}\n")
        assert host.max_pcie_width("0000:3B:00.0", tmp_path) == width


def test_width_of_the_slot_of_a_device(tmp_path):
    devices = tmp_path / "devices"
    devices.mkdir()
    for port, text, width in (("root", None, None), ("port", "8", 8)):
        device = tmp_path / port / "0000:3b:00.0"
        device.mkdir(parents=True)
        if text:
            (tmp_path / port / "max_link_width").write_text(f"{text}\n")
        (devices / "0000:3b:00.0").unlink(missing_ok=True)
        (devices / "0000:3b:00.0").symlink_to(device)
        assert host.slot_width("0000:3B:00.0", devices) == width


def test_vendors_of_gpus_on_the_pci_bus(tmp_path):
    for number, (device_class, vendor) in enumerate(
        [("0x030200", "0x10de"), ("0x030000", "0x1a03"), ("0x020000", "0x8086")]
    ):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "class").write_text(f"{device_class}\n")
        (tmp_path / str(number) / "vendor").write_text(f"{vendor}\n")
    assert host.pci_gpu_vendors(tmp_path) == {"NVIDIA"}
