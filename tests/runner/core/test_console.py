"""Tables and status lines, on a terminal and elsewhere."""

import io
import subprocess
import sys

import pytest
from rich.console import Console

from timetrial.runner.core.console import StatusLine, table_console
from timetrial.runner.core.errors import Exit


def test_status_line_prints_each_activity_once_without_a_terminal():
    out = io.StringIO()
    with StatusLine(Console(file=out, width=30)) as status_line:
        for activity, items in (("reading [file]", 0), ("reading [file]", 500), ("sorting a file with a long name", 0)):
            status_line(activity, items)
    assert out.getvalue() == "reading [file]\nsorting a file with a long name\n"


def test_status_line_is_redrawn_on_a_terminal():
    out = io.StringIO()
    with StatusLine(Console(file=out, width=60, force_terminal=True)) as status_line:
        status_line("reading", 1234)
    assert "reading, 1,234 lines" in out.getvalue()
    assert "\x1b[2K" in out.getvalue()  # the line is erased at the end


def test_status_line_shows_names_as_they_are():
    out = io.StringIO()
    with StatusLine(Console(file=out, width=60, force_terminal=True)) as status_line:
        status_line("reading [/nope] [red]file", 5)
    assert "reading [/nope] [red]file, 5 lines" in out.getvalue()


def test_tables_are_folded_on_terminals_only():
    out = io.StringIO()
    assert table_console(Console(file=out)).width == 1000
    terminal = Console(file=out, width=50, force_terminal=True)
    assert table_console(terminal) is terminal


PROGRAM = """
import sys
from timetrial.runner.core.console import flush_output, survive_output_errors
survive_output_errors()
for _ in range(3):
    print("x" * 100_000)
print("goes on", file=sys.stderr)
sys.exit(flush_output({code}))
"""


@pytest.mark.integration
@pytest.mark.parametrize(("code", "expected"), [(Exit.TARGET_REACHED, Exit.DISK_FULL), (Exit.DATA, Exit.DATA)])
def test_process_goes_on_when_its_output_cannot_be_written(code, expected):
    with open("/dev/full", "w") as full:
        completed = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM.format(code=int(code))],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    sentence = "timetrial: Cannot write to standard output (No space left on device): free space there.\n"
    assert completed.stderr == "goes on\n" + sentence
    assert completed.returncode == expected


@pytest.mark.integration
@pytest.mark.parametrize("code", [Exit.TARGET_REACHED, Exit.TARGET_NOT_REACHED])
def test_reader_that_closes_the_pipe_changes_no_exit_code(code):
    command = f"{sys.executable} -P -c '{PROGRAM.format(code=int(code))}' | head -c 1; echo ${{PIPESTATUS[0]}}"
    completed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (completed.stdout, completed.stderr) == (f"x{int(code)}\n", "goes on\n")


@pytest.mark.integration
def test_closed_output_is_no_error():
    completed = subprocess.run(
        ["bash", "-c", f"{sys.executable} -P -c '{PROGRAM.format(code=0)}' >&-"], capture_output=True, timeout=60
    )
    assert (completed.returncode, completed.stderr) == (0, b"goes on\n")


@pytest.mark.integration
def test_no_file_gets_the_number_of_a_closed_output(tmp_path):
    program = (
        "import os, sys\nfrom timetrial.runner.core.console import survive_output_errors\nsurvive_output_errors()\n"
        f"numbers = [os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY), os.dup(1), os.dup(2)]\n"
        "print('lost', flush=True)\nsys.exit(min(numbers))"
    )
    completed = subprocess.run(["bash", "-c", f'{sys.executable} -P -c "{program}" >&- 2>&-'], timeout=60)
    assert completed.returncode >= 3
    assert (tmp_path / "file").read_text() == ""
