"""The page on luck, and its table computed again with pandas from the file alone."""

import re

import pandas as pd

from timetrial.runner.record.published_results import FILE
from timetrial.scripts.measure import published_luck


def test_page_and_picture_are_those_of_the_file(monkeypatch, root):
    entries = published_luck.read_all()
    assert published_luck.tables(entries) in (root / "docs/luck.md").read_text(encoding="utf-8")
    assert published_luck.PICTURE.read_text(encoding="utf-8") == published_luck.picture(entries)


ROW = re.compile(
    r"^\| (\S+) \| (v[\d.]+)(?: to \S+)? \| (\d+) \| (\d+) \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|$", re.M
)


def test_table_equals_one_by_pandas(root):
    page = (root / "docs/luck.md").read_text(encoding="utf-8")
    data = pd.read_csv(FILE)
    varied = data[(data.converged >= 3) & data.cv_time.notna() & data.cv_pace.notna()]
    rows = list(ROW.finditer(page))
    assert len(rows) == varied.benchmark.nunique() + len(varied.groupby(["benchmark", "round"]))
    for row in rows:
        benchmark, round_, entries, runs, converged, time, pace = row.groups()
        chosen = data.benchmark == benchmark
        if row.start() > page.index("By round:"):
            chosen &= data["round"] == round_
        some = varied[chosen.reindex(varied.index)]
        assert len(some) == int(entries)
        assert data[chosen].runs.sum() == int(runs)
        assert abs(100 * data[chosen].converged.sum() / int(runs) - float(converged)) <= 0.0501
        assert abs(100 * some.cv_time.median() - float(time)) <= 0.00501
        assert abs(100 * some.cv_pace.median() - float(pace)) <= 0.00501
