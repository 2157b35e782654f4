"""system.json: what this machine is, and cards as their vendor's tool adds to them."""

import subprocess
from types import SimpleNamespace

from timetrial.runner.hardware import devices
from timetrial.runner.record import environment


class TwoCards:
    closed = False

    def __len__(self):
        return 2

    def describe(self, index):
        return {"driver": "535.104", "power_cap_watts": 60.0, "numa_node": index}

    def links(self):
        return {"0-1": "one host bridge"}

    def close(self):
        self.closed = True


def test_this_machine(tmp_path, root):
    told = environment.describe(data=tmp_path / "data")
    assert told["storage"]["data"]["file_system"]
    assert told["affinity"]
    assert told["compiled_architectures"] or told["cards"] == []
    assert {"governor", "numa_nodes", "huge_pages", "links"} <= set(told)
    if (root / ".git").exists():
        head = ["git", "-C", str(root), "rev-parse", "HEAD"]
        revision = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
        assert told["timetrial"]["revision"] == revision
        assert bool(told["timetrial"]["difference"]) == told["timetrial"]["changed"]


def test_cards_are_completed_by_their_tool(monkeypatch):
    tool = TwoCards()
    monkeypatch.setattr(devices, "cards", lambda: [{"name": "Tesla T4"}, {"name": "Tesla T4"}])
    monkeypatch.setattr(devices, "sensors", lambda count: tool)
    told = environment.describe()
    assert told["cards"][1] == {"name": "Tesla T4", "driver": "535.104", "power_cap_watts": 60.0, "numa_node": 1}
    assert told["links"] == {"0-1": "one host bridge"}
    assert tool.closed


def test_another_change_is_another_difference(monkeypatch, tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "runner").mkdir()
    (tmp_path / "a").write_text("1")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "a"], check=True)
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "runner" / "record" / "environment.py"))
    found = []
    for text in "23":
        (tmp_path / "a").write_text(text)
        found.append(environment._revision())
    assert found[0]["difference"] != found[1]["difference"]
    assert "+3" in found[1]["diff"]
    assert found[1]["revision"]
    monkeypatch.setenv("PATH", "")
    assert set(environment._revision().values()) == {None}


def test_a_place_on_the_bus(monkeypatch):
    card = SimpleNamespace(pci_domain_id=1, pci_bus_id=0x3B, pci_device_id=0x1F)
    monkeypatch.setattr(devices, "_kind", lambda: "cuda")
    monkeypatch.setattr(devices.torch.cuda, "get_device_properties", lambda index: card)
    assert devices._address(0) == "0001:3b:1f.0"
