"""Run directories: unique, complete, and removed when a run did not start."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from timetrial.runner.core.errors import ConfigurationError, RunDirLocked, RunError
from timetrial.runner.core.formatting import slug
from timetrial.runner.record import run_dir
from timetrial.runner.record.run_record import RunRecord, RunState


def test_concurrently_created_directories_are_unique(tmp_path):
    with ThreadPoolExecutor(32) as pool:
        folders = list(pool.map(lambda _: run_dir.create_run_dir(tmp_path, ["a", "b"], 1).path, range(300)))
    assert len(set(folders)) == 300


def test_rejects_directory_that_holds_a_run(tmp_path):
    run_dir.claim_run_dir(tmp_path / "run", 1).update(lambda record: replace(record, state=RunState.RUNNING))
    with pytest.raises(ConfigurationError, match="already holds a run"):
        run_dir.claim_run_dir(tmp_path / "run", 1)


@pytest.mark.parametrize("below", ["", "folder", "folder/run"])
def test_rejects_a_file_where_a_directory_must_be(tmp_path, below):
    (tmp_path / "file").write_text("")
    for claim in (
        lambda: run_dir.claim_run_dir(tmp_path / "file" / below, 1),
        lambda: run_dir.create_run_dir(tmp_path / "file" / below, ["a"], 1),
    ):
        with pytest.raises(ConfigurationError, match="file is a file: choose a folder"):
            claim()


def test_one_of_several_concurrent_claims_succeeds(tmp_path):
    (tmp_path / "run").mkdir()

    def claim(_):
        try:
            return run_dir.claim_run_dir(tmp_path / "run", 1).update(lambda record: replace(record, error="claimed"))
        except ConfigurationError:
            return None

    with ThreadPoolExecutor(8) as pool:
        assert sum(bool(result) for result in pool.map(claim, range(8))) >= 1


def test_claim_on_a_full_disk_leaves_no_directories(tmp_path, monkeypatch):
    real_open = open

    def fail(*arguments):
        real_open(*arguments).close()  # the file is created, its content does not fit
        raise OSError(28, "No space left on device")

    (tmp_path / "parent").mkdir()
    monkeypatch.setattr("builtins.open", fail)
    with pytest.raises(RunError, match="free space"):
        run_dir.claim_run_dir(tmp_path / "parent" / "new" / "run", 1)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.rglob("*")] == ["parent"]


def test_discard_removes_empty_parents(tmp_path):
    (tmp_path / "keep").touch()
    claimed = run_dir.create_run_dir(tmp_path / "runs", ["a"], 1)
    claimed.update(lambda record: replace(record, state=RunState.RUNNING))
    claimed.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]


def test_discard_keeps_folders_that_existed_before(tmp_path):
    (tmp_path / "parent").mkdir()
    run_dir.claim_run_dir(tmp_path / "parent", 1).discard()
    run_dir.claim_run_dir(tmp_path / "parent" / "new" / "run", 1).discard()
    assert [path.name for path in tmp_path.rglob("*")] == ["parent"]


def test_directory_is_locked_by_one_launcher_and_its_ranks(tmp_path):
    claimed = run_dir.claim_run_dir(tmp_path / "run", 1)
    assert not claimed.in_use()
    with claimed.locked():
        rank = claimed.locked_by_rank()
        rank.__enter__()
        with pytest.raises(RunDirLocked, match="wait until it ends"), claimed.locked():
            pass
    assert claimed.in_use()  # by the rank, whose launcher has ended
    rank.__exit__(None, None, None)
    assert not claimed.in_use()
    with claimed.locked():
        assert claimed.in_use()


def test_asking_for_the_lock_state_blocks_nobody(tmp_path):
    claimed, finished = run_dir.claim_run_dir(tmp_path / "run", 1), threading.Event()
    threads = [
        threading.Thread(target=lambda: [claimed.in_use() for _ in iter(finished.is_set, True)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with claimed.locked():
            pass
    finished.set()
    for thread in threads:
        thread.join()


def test_temporary_files_of_a_killed_writer_are_removed(tmp_path):
    claimed = run_dir.claim_run_dir(tmp_path / "run", 1)
    (tmp_path / "run" / ".status.json.7-ab.tmp").write_text("{")
    (tmp_path / "run" / "status.json").write_text("")
    with claimed.locked():
        assert claimed.record() == RunRecord()
    assert sorted(path.name for path in claimed.path.iterdir()) == [".lock", "status.json"]


def test_slug_is_lower_case_with_hyphens():
    assert slug("NVIDIA A100-SXM4 80GB!") == "nvidia-a100-sxm4-80gb"
