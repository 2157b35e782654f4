"""Files and folders written by temporary name and rename."""

import contextlib
import errno
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from timetrial.runner.core import atomic_files
from timetrial.runner.core.errors import ConfigurationError, DataError, DiskFull, Exit, RunError


def _disk_full(*_):
    raise OSError(28, "No space left on device")


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_failed_write_keeps_old_file_and_leaves_no_temporary_file(tmp_path, monkeypatch):
    atomic_files.write_atomically(tmp_path / "file", "old")
    monkeypatch.setattr("os.fsync", _disk_full)
    with pytest.raises(RunError, match="free space"):
        atomic_files.write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert _names(tmp_path) == ["file"]


def test_rename_is_tried_again_after_a_stale_handle(tmp_path, monkeypatch):
    """NFS answers so once after the folder has changed on its server."""
    rename, answers = os.replace, [errno.ESTALE, errno.ESTALE]

    def replace(old, new):
        if answers:
            raise OSError(answers.pop(), "Stale file handle")
        rename(old, new)

    monkeypatch.setattr(pathlib.Path, "replace", replace)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    atomic_files.write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    answers += [errno.ESTALE] * 9
    with pytest.raises(RunError, match="Stale file handle"):
        atomic_files.write_atomically(tmp_path / "file", "newer")
    assert (tmp_path / "file").read_text() == "new"


def test_only_durable_writes_are_flushed_to_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", _disk_full)
    atomic_files.write_atomically(tmp_path / "file", b"bytes", durable=False)
    assert (tmp_path / "file").read_bytes() == b"bytes"


def test_old_file_is_visible_until_new_file_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with atomic_files.replace_on_success(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert _names(tmp_path) == ["file"]


def test_exception_in_body_discards_the_temporary_file(tmp_path):
    with contextlib.suppress(KeyError), atomic_files.replace_on_success(tmp_path / "file") as temporary:
        temporary.write_text("half")
        raise KeyError
    assert _names(tmp_path) == []


def test_single_writer_overwrites_leftovers_of_a_killed_process(tmp_path):
    (tmp_path / "file.part").write_text("left over")
    with atomic_files.atomic_write(tmp_path / "file", single_writer=True) as temporary:
        assert temporary == tmp_path / "file.part"
        temporary.write_text("new")
    assert _names(tmp_path) == ["file"]


def test_concurrent_writers_use_different_temporary_names(tmp_path):
    with (
        atomic_files.atomic_write(tmp_path / "file") as first,
        atomic_files.atomic_write(tmp_path / "file") as second,
    ):
        assert first != second
        first.write_text("1")
        second.write_text("2")
    assert (tmp_path / "file").read_text() == "1"  # the outer body ended last


def test_data_file_creates_its_folder_and_reports_data_errors(tmp_path):
    with atomic_files.atomic_write(tmp_path / "new" / "file") as temporary:
        temporary.write_text("data")
    assert (tmp_path / "new" / "file").read_text() == "data"
    path = tmp_path / "full"
    with pytest.raises(DataError, match=r"Cannot write .*name another place"), atomic_files.atomic_write(path):
        raise PermissionError(13, "Permission denied")


def test_directory_appears_only_when_complete(tmp_path):
    with atomic_files.atomic_directory(tmp_path / "folder") as temporary:
        (temporary / "file").write_text("data")
        assert not (tmp_path / "folder").exists()
    assert (tmp_path / "folder" / "file").read_text() == "data"
    with pytest.raises(DataError, match="Cannot write"), atomic_files.atomic_directory(tmp_path / "other"):
        raise PermissionError(13, "Permission denied")
    assert _names(tmp_path) == ["folder"]


def test_leftover_folders_of_killed_processes_are_removed(tmp_path):
    program = "import os, pathlib, sys; from timetrial.runner.core.atomic_files import atomic_directory as new\n"
    program += "with new(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    command = [sys.executable, "-P", "-c", program, str(tmp_path / "folder")]
    assert subprocess.run(command).returncode == -9
    (leftover,) = tmp_path.iterdir()
    with atomic_files.atomic_directory(tmp_path / "folder") as temporary:
        assert not leftover.exists()
        with atomic_files.atomic_directory(tmp_path / "folder"):
            assert temporary.exists()  # this process is alive
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("write", [atomic_files.atomic_write, atomic_files.atomic_directory])
def test_full_disk_or_quota_has_its_own_exit_code(tmp_path, write, number):
    with pytest.raises(DiskFull, match=r"Cannot write .*free space there") as caught, write(tmp_path / "path"):
        raise OSError(number, os.strerror(number))
    assert caught.value.exit_code == Exit.DISK_FULL == 34
    assert not _names(tmp_path)


def test_folder_that_cannot_be_written_is_not_told_to_free_space(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"Cannot write .*\(Not a directory\): choose another place\.$"):
        atomic_files.write_atomically(tmp_path / "file" / "path", "text")


def test_full_disk_is_translated_wherever_it_is_noticed(tmp_path):
    (tmp_path / "source").write_text("text")
    with pytest.raises(DiskFull, match=r"Cannot write .*No space left"), atomic_files.file_errors_as_run_errors():
        shutil.copyfile(tmp_path / "source", "/dev/full")
    with pytest.raises(FileNotFoundError), atomic_files.file_errors_as_run_errors():
        (tmp_path / "absent").read_text()


@pytest.mark.parametrize("name", ["long" * 100, "short/" * 1000])
def test_long_names_are_a_mistake_of_the_configuration(name, tmp_path):
    (tmp_path / "file").write_text("text")
    sentence = f"Cannot use {re.escape(name[:40])}.*\\.\\.\\. \\(File name too long\\): choose a shorter name."
    for use in (os.stat, lambda name: os.rename(tmp_path / "file", name)):
        with pytest.raises(ConfigurationError, match=sentence), atomic_files.file_errors_as_run_errors():
            use(name)


def test_directory_that_another_process_created_first_is_kept(tmp_path):
    with atomic_files.atomic_directory(tmp_path / "folder") as temporary:
        (temporary / "file").write_text("second")
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_text("first")
    assert (tmp_path / "folder" / "file").read_text() == "first"
    assert _names(tmp_path) == ["folder"]


def test_json_is_indented_and_ends_with_a_newline():
    assert atomic_files.to_json({"a": 1}) == '{\n  "a": 1\n}\n'


def test_lock_file_is_neither_truncated_nor_followed(tmp_path):
    from timetrial.runner.core.atomic_files import open_lock

    (tmp_path / "document").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "document")
    with pytest.raises(OSError, match="symbolic links"):
        open_lock(tmp_path / "lock")
    with open_lock(tmp_path / "document"):
        assert (tmp_path / "document").read_text() == "mine"


def test_lock_file_on_a_read_only_disk_can_be_read(tmp_path, monkeypatch):
    from timetrial.runner.core.atomic_files import open_lock

    opened = os.open

    def open_for_reading(path, flags, *mode):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", open_for_reading)
    with pytest.raises(OSError, match="Read-only"):
        open_lock(tmp_path / "absent")
    (tmp_path / "lock").touch()
    with open_lock(tmp_path / "lock") as lock:
        assert lock.read() == b""
