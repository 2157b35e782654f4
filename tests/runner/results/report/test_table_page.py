"""A page of tables: what is on it, and how."""

import re

from timetrial.runner.results.report.table_page import BAD, Cell, PageTable, write_table_page


def write(path):
    rows = [
        [Cell(f"row {number}", detail="<b>"), *(Cell(f"{number * 1e6:,.0f}", BAD) for _ in range(9))]
        for number in range(9)
    ]
    tables = [
        PageTable("Wide", ("name", *map(str, range(9))), rows, 1, "a caption"),
        PageTable("Empty", ("name",), []),
        PageTable("Folded", ("name",), [(Cell("hidden"),)], is_folded=True),
    ]
    return write_table_page(path, "A title", "A lead.", Cell("BAD", BAD, "detail"), tables, {"CPU": "a CPU"})


def test_values_are_escaped_and_empty_tables_left_out(tmp_path):
    text = write(tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("&lt;b&gt;") == 9
    assert "Empty" not in text
    assert re.search(r"<details><summary><h2>Folded</h2></summary>", text)
    assert text.count('<th scope="col" class="number">') == 9
