"""Tables and status lines, on a terminal and elsewhere."""

import io

from rich.console import Console

from timetrial.runner.core.console import StatusLine, table_console


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


def test_tables_are_folded_on_terminals_only():
    out = io.StringIO()
    assert table_console(Console(file=out)).width == 1000
    terminal = Console(file=out, width=50, force_terminal=True)
    assert table_console(terminal) is terminal
