"""Run folders: unique, whole, and gone when nothing came of them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from timetrial.runner.core.errors import ConfigurationError, RunDirLocked, RunError
from timetrial.runner.core.formatting import slug
from timetrial.runner.record import run_dir
from timetrial.runner.record.run_record import RunRecord, RunState


def test_hundreds_in_one_second_never_collide(tmp_path):
    with ThreadPoolExecutor(32) as pool:
        folders = list(pool.map(lambda _: run_dir.create_run_dir(tmp_path, ["a", "b"], 1).path, range(300)))
    assert len(set(folders)) == 300


def test_a_folder_in_use_is_refused(tmp_path):
    run_dir.claim_run_dir(tmp_path / "run", 1).update_record(state=RunState.RUNNING)
    with pytest.raises(ConfigurationError, match="already holds a run"):
        run_dir.claim_run_dir(tmp_path / "run", 1)


def test_of_two_at_once_one_gets_an_empty_folder(tmp_path):
    (tmp_path / "run").mkdir()

    def claim(_):
        try:
            return run_dir.claim_run_dir(tmp_path / "run", 1).update_record(error="mine")
        except ConfigurationError:
            return None

    with ThreadPoolExecutor(8) as pool:
        assert sum(bool(got) for got in pool.map(claim, range(8))) >= 1


def test_a_claim_that_finds_no_room_leaves_no_folders(tmp_path, monkeypatch):
    real = open

    def full(*words):
        real(*words).close()  # the name fits, what it should hold does not
        raise OSError(28, "No space left on device")

    (tmp_path / "mine").mkdir()
    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(RunError, match="free space"):
        run_dir.claim_run_dir(tmp_path / "mine" / "new" / "run", 1)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_discarding_removes_what_became_empty(tmp_path):
    (tmp_path / "keep").touch()
    folder = run_dir.create_run_dir(tmp_path / "runs", ["a"], 1)
    folder.update_record(state=RunState.RUNNING)
    folder.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]


def test_discarding_keeps_the_folders_that_were_there(tmp_path):
    (tmp_path / "mine").mkdir()
    run_dir.claim_run_dir(tmp_path / "mine", 1).discard()
    run_dir.claim_run_dir(tmp_path / "mine" / "new" / "run", 1).discard()
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_a_folder_is_held_by_one_launcher_and_its_ranks(tmp_path):
    folder = run_dir.claim_run_dir(tmp_path / "run", 1)
    assert not folder.in_use()
    with folder.locked():
        rank = folder.locked_by_rank()
        rank.__enter__()
        with pytest.raises(RunDirLocked, match="wait until it ends"), folder.locked():
            pass
    assert folder.in_use()  # by the rank, which has outlived its launcher
    rank.__exit__(None, None, None)
    assert not folder.in_use()
    with folder.locked():
        assert folder.in_use()


def test_who_looks_whether_a_folder_is_in_use_keeps_nobody_out(tmp_path):
    folder, over = run_dir.claim_run_dir(tmp_path / "run", 1), threading.Event()
    curious = [threading.Thread(target=lambda: [folder.in_use() for _ in iter(over.is_set, True)]) for _ in range(4)]
    for thread in curious:
        thread.start()
    for _ in range(20):
        with folder.locked():
            pass
    over.set()
    for thread in curious:
        thread.join()


def test_what_a_killed_writer_left_is_swept_and_what_it_never_wrote_is_empty(tmp_path):
    folder = run_dir.claim_run_dir(tmp_path / "run", 1)
    (tmp_path / "run" / ".status.json.7-ab.tmp").write_text("{")
    (tmp_path / "run" / "status.json").write_text("")
    with folder.locked():
        assert folder.record() == RunRecord()
    assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "status.json"]


def test_slugs():
    assert slug("NVIDIA A100-SXM4 80GB!") == "nvidia-a100-sxm4-80gb"
