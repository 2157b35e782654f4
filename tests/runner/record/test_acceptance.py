"""Acceptances of machines in the user's state directory."""

import stat

import pytest

from timetrial.runner.record.acceptance import find_acceptance, keep_acceptance, revoke_acceptance
from timetrial.runner.record.run_record import Acceptance

FIRST, SECOND = Acceptance("a", "2026-01-01"), Acceptance("b", "2026-02-01")
CPU = {"hostname": "head", "cpu": {"model": "a CPU"}, "gpus": []}


def gpus(*ids):
    return {"hostname": "node", "gpus": [{"name": "GPU", "id": name} for name in ids]}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "timetrial" / "accepted"


def test_a_machine_is_accepted_if_all_its_gpus_are_and_by_the_oldest(state):
    keep_acceptance(gpus("1", "2"), FIRST)
    keep_acceptance(gpus("2", "3"), SECOND)
    assert find_acceptance(gpus("2")) == SECOND
    assert find_acceptance(gpus("1", "3")) == FIRST
    assert find_acceptance(gpus("1", "4")) is None
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_a_host_without_gpus_is_known_by_name_and_processor():
    keep_acceptance(CPU, FIRST)
    assert find_acceptance(CPU) == FIRST
    assert find_acceptance(CPU | {"hostname": "other"}) is None
    assert find_acceptance(CPU | {"cpu": {"model": "another"}}) is None


def test_a_machine_that_fails_later_is_no_longer_accepted():
    keep_acceptance(gpus("1", "2"), FIRST)
    revoke_acceptance(gpus("2"))
    revoke_acceptance(gpus("2"))
    assert find_acceptance(gpus("1")) == FIRST
    assert find_acceptance(gpus("1", "2")) is None


def test_a_damaged_file_accepts_nothing(state):
    keep_acceptance(CPU, FIRST)
    (path,) = state.iterdir()
    path.write_text('{"id": 1}')
    assert find_acceptance(CPU) is None


def test_equal_gpus_without_an_id_are_told_apart(state):
    keep_acceptance({"hostname": "mac", "gpus": [{"name": "GPU"}, {"name": "GPU"}]}, FIRST)
    assert len(list(state.iterdir())) == 2
