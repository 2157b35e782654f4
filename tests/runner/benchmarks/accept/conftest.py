"""Results of `timetrial accept` as files, and a state directory of the test's own."""

import json

import pytest


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def write_result(tmp_path):
    """write_result(node, speed, id=..., gpu=..., num_gpus=...) -> path of its accept.json."""

    def write(name, speed, id="20260101-1", gpu="NVIDIA H100", num_gpus=2, **changes):
        figures = [
            {"name": "memory copy", "device": f"GPU {index}", "unit": "GB/s", "values": [2900.0 * speed],
             "expected": None, "source": "", "median": 2900.0 * speed}
            for index in range(num_gpus)
        ]  # fmt: skip
        gpus = [{"name": gpu, "id": f"{name}-{index}"} for index in range(num_gpus)]
        system = {"gpus": gpus, "cpu": {"model": "a CPU"}, "hostname": name}
        document = {"schema": 1, "node": name, "id": id, "result": "PASS", "figures": figures, "system": system}
        path = tmp_path / "results" / f"{name}-{id}" / "accept.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(document | changes))
        return path

    return write
