"""A report replaces and removes what earlier reports have written, and nothing else."""

import pytest

from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.results.report.owned_files import LIST, OwnedFiles


@pytest.fixture
def write(tmp_path):
    """Write a report of the given files to a folder: write(*names)."""

    def write_report(*names):
        owned = OwnedFiles(tmp_path / "out")
        for name in names:
            path = owned.claim(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("report")
        owned.remove_others()

    return write_report


def names_below(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_second_report_replaces_the_first(write, tmp_path):
    write("csv/runs.csv", "csv/old.csv", "report.md")
    (tmp_path / "out" / "csv" / "mine.csv").write_text("mine")
    write("csv/runs.csv", "csv/new.csv", "report.md")
    assert names_below(tmp_path / "out") == {"csv/runs.csv", "csv/new.csv", "csv/mine.csv", "report.md", LIST}
    assert (tmp_path / "out" / "csv" / "mine.csv").read_text() == "mine"


def test_report_that_was_killed_is_replaced(tmp_path):
    OwnedFiles(tmp_path).claim("report.md").write_text("half")
    OwnedFiles(tmp_path).claim("report.md")


def test_file_of_the_user_is_not_overwritten(write, tmp_path):
    (tmp_path / "out" / "csv").mkdir(parents=True)
    (tmp_path / "out" / "csv" / "runs.csv").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"runs.csv is not a file of an earlier report: move it"):
        write("csv/runs.csv")
    assert (tmp_path / "out" / "csv" / "runs.csv").read_text() == "mine"


@pytest.mark.parametrize("name", ["csv", "csv/runs.csv", "report.md"])
def test_links_are_not_followed(write, tmp_path, name):
    """In a folder that somebody else made, with a list that claims the link."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "runs.csv").write_text("mine")
    out = tmp_path / "out"
    (out / "csv").mkdir(parents=True)
    if name == "csv":
        (out / "csv").rmdir()
    (out / name).symlink_to(elsewhere if name == "csv" else elsewhere / "runs.csv")
    (out / LIST).write_text("csv/runs.csv\nreport.md\n")
    with pytest.raises(ConfigurationError, match="is not a file of an earlier report"):
        write("csv/runs.csv", "report.md")
    assert (elsewhere / "runs.csv").read_text() == "mine"


def test_list_of_a_stranger_removes_nothing_elsewhere(write, tmp_path):
    (tmp_path / "document.csv").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    hostile = ["../document.csv", "csv/../../document.csv", str(tmp_path / "document.csv"), "notes.txt", ""]
    (tmp_path / "out" / LIST).write_text("\n".join(hostile))
    write("report.md")
    assert names_below(tmp_path) == {"document.csv", "out/notes.txt", "out/report.md", f"out/{LIST}"}
