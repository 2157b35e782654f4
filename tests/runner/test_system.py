"""system.json: what this machine is, and cards as their vendor's tool adds to them."""

import subprocess

from timetrial.runner import accelerator, system


class TwoCards:
    closed = False

    def __len__(self):
        return 2

    def facts(self, index):
        return {"driver": "535.104", "power_cap_watts": 60.0, "numa_node": index}

    def links(self):
        return {"0-1": "one host bridge"}

    def close(self):
        self.closed = True


def test_this_machine(tmp_path, root):
    told = system.describe(data=tmp_path / "data")
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
    monkeypatch.setattr(accelerator, "cards", lambda: [{"name": "Tesla T4"}, {"name": "Tesla T4"}])
    monkeypatch.setattr(accelerator, "sensors", lambda count: tool)
    told = system.describe()
    assert told["cards"][1] == {"name": "Tesla T4", "driver": "535.104", "power_cap_watts": 60.0, "numa_node": 1}
    assert told["links"] == {"0-1": "one host bridge"}
    assert tool.closed
