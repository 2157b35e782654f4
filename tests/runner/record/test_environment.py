"""The description of this machine, and GPU facts from the vendor's tool."""

import subprocess
from types import SimpleNamespace

from timetrial.runner.hardware import device_description, devices
from timetrial.runner.record import environment


class TwoGpus:
    closed = False

    def __len__(self):
        return 2

    def describe(self, index):
        return {"driver": "535.104", "power_cap_watts": 60.0, "numa_node": index}

    def links(self):
        return {"0-1": "one host bridge"}

    def close(self):
        self.closed = True


def test_describes_this_machine(tmp_path, root):
    facts = environment.describe(data=tmp_path / "data")
    assert facts["storage"]["data"]["file_system"]
    assert facts["affinity"]
    assert facts["compiled_architectures"] or facts["gpus"] == []
    assert {"governor", "numa_nodes", "huge_pages", "gpu_links"} <= set(facts)
    if (root / ".git").exists():
        head = ["git", "-C", str(root), "rev-parse", "HEAD"]
        revision = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
        assert facts["timetrial"]["revision"] == revision
        assert bool(facts["timetrial"]["changes_sha256"]) == facts["timetrial"]["changed"]


def test_gpus_are_described_by_pytorch_and_the_vendors_tool(monkeypatch):
    sensors = TwoGpus()
    monkeypatch.setattr(device_description, "describe_gpus", lambda: [{"name": "Tesla T4"}, {"name": "Tesla T4"}])
    monkeypatch.setattr(environment, "open_sensors", lambda count: sensors)
    facts = environment.describe()
    assert facts["gpus"][1] == {"name": "Tesla T4", "driver": "535.104", "power_cap_watts": 60.0, "numa_node": 1}
    assert facts["gpu_links"] == {"0-1": "one host bridge"}
    assert sensors.closed


def test_different_changes_have_different_hashes(monkeypatch, tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "runner").mkdir()
    (tmp_path / "a").write_text("1")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "a"], check=True)
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "runner" / "record" / "environment.py"))
    revisions = []
    for text in "23":
        (tmp_path / "a").write_text(text)
        revisions.append(environment._revision())
    assert revisions[0]["changes_sha256"] != revisions[1]["changes_sha256"]
    assert "+3" in revisions[1]["diff"]
    assert revisions[1]["revision"]
    monkeypatch.setenv("PATH", "")
    assert set(environment._revision().values()) == {None}


def test_pci_address(monkeypatch):
    properties = SimpleNamespace(pci_domain_id=1, pci_bus_id=0x3B, pci_device_id=0x1F)
    monkeypatch.setattr(devices, "accelerator_type", lambda: "cuda")
    monkeypatch.setattr(devices.torch.cuda, "get_device_properties", lambda index: properties)
    assert device_description.pci_address(0) == "0001:3b:1f.0"
