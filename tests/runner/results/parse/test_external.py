"""Tables of external measurements: separators, encodings and notations of numbers, and tables in folders."""

import codecs
import dataclasses
import json
import shutil

import pytest

from timetrial.runner.core.errors import DataError
from timetrial.runner.results.parse import external
from timetrial.runner.results.parse.external import ExternalMeasurement

COLUMNS = ["schema", *(field.name for field in dataclasses.fields(ExternalMeasurement))]
GNMT = ["2", "Desk", "a blog", "03.2026", "gnmt", "train", "T4", "2", "fp16", "", "64", "samples_per_second"]
ROWS = [[*GNMT, value, "", "", ""] for value in ("1200.5", "90000.25")]
STUDY = external.REFERENCE_DATA / "studies" / "t4_v100_2019.csv"


def table(rows, separator=","):
    lines = [[f'"{cell}"' if separator in cell else cell for cell in row] for row in [COLUMNS, *rows]]
    return "\n".join(map(separator.join, lines)) + "\n"


def with_values(*values, batch="64"):
    return [[*GNMT[:10], batch, "samples_per_second", value, "", "", ""] for value in values]


def read(folder, content, name="a.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return external.read_measurements(path)


@pytest.fixture
def expected(tmp_path):
    found = read(tmp_path, table(ROWS))
    assert [entry.value for entry in found] == [1200.5, 90000.25]
    assert (found[0].published, found[0].num_accelerators, found[0].batch) == ("03.2026", 2, 64)
    return found


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("mark", [".", ","])
@pytest.mark.parametrize(
    ("encoding", "mark_of_bytes", "line_end"),
    [
        ("utf-8", b"", "\n"),
        ("utf-8", codecs.BOM_UTF8, "\r\n"),
        ("utf-16-le", codecs.BOM_UTF16_LE, "\r\n"),
        ("utf-16-be", codecs.BOM_UTF16_BE, "\n"),
    ],
)
def test_a_table_means_the_same_in_every_notation(
    tmp_path, expected, separator, mark, encoding, mark_of_bytes, line_end
):
    text = table(with_values("1200.5".replace(".", mark), "90000.25".replace(".", mark)), separator)
    assert read(tmp_path, mark_of_bytes + text.replace("\n", line_end).encode(encoding)) == expected


def test_empty_rows_and_columns_are_left_out(tmp_path, expected):
    head, *rows = (f"{line},," for line in table(ROWS).splitlines())
    assert read(tmp_path, "\n".join(["", head, *rows, "", ",,"])) == expected


def test_columns_have_any_order_and_optional_ones_may_be_missing(tmp_path, expected):
    kept = [name for name in reversed(COLUMNS) if name not in ("outcome", "baseline", "note", "interconnect")]
    text = "\n".join(",".join(row[COLUMNS.index(name)] for name in kept) for row in [COLUMNS, *ROWS])
    assert read(tmp_path, text) == expected
    with pytest.raises(DataError, match=r"row 1: the columns must be among schema,.*, and not colour\."):
        read(tmp_path, text.replace("published", "colour"))


@pytest.mark.parametrize(
    ("separator", "cells", "values"),
    [
        (",", ["1,200.5", "90,000"], [1200.5, 90000]),
        ("\t", ["23,476,979", "79,111"], [23476979, 79111]),
        (";", ["1.200,5", "90.000"], [1200.5, 90000]),
        (";", ["0,5", "1,234"], [0.5, 1.234]),
        (";", ["0.5", "1.234"], [0.5, 1.234]),
        (",", ["1.234", "31.3"], [1.234, 31.3]),
        (",", ["1.234", "5.678"], [1.234, 5.678]),
        ("\t", ["1.234", "5.678"], [1.234, 5.678]),
        (",", ["1e3", "12,5"], [1000, 12.5]),
    ],
)
def test_other_numbers_tell_how_one_is_read(tmp_path, separator, cells, values):
    assert [entry.value for entry in read(tmp_path, table(with_values(*cells), separator))] == values


@pytest.mark.parametrize(
    ("separator", "cells", "reading"),
    [
        (",", ["1,234", "5,678"], "1,234 may be 1.234 or 1234"),
        ("\t", ["1,234", "950"], "1,234 may be 1.234 or 1234"),
        (";", ["950", "1.234"], "1.234 may be 1.234 or 1234"),
        (";", ["0,5", "0.5", "1.234"], "1.234 may be 1.234 or 1234"),
    ],
)
def test_a_number_that_may_be_two_is_refused(tmp_path, separator, cells, reading):
    with pytest.raises(DataError, match=rf"\({reading}\): write a decimal point, and no thousands separator\.$"):
        read(tmp_path, table(with_values(*cells), separator))


@pytest.mark.parametrize("cell", ["1,2,3", "1.2.3", "12,34.5", "fast", "1 200", ",", "nan", "1e31"])
def test_what_is_no_number_is_refused(tmp_path, cell):
    with pytest.raises(DataError, match="row 1: value must be a number of 0 or more"):
        read(tmp_path, table(with_values(cell), ";"))


def test_json_rows_are_objects(tmp_path, expected):
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
    assert read(tmp_path, json.dumps(rows), "a.json") == expected
    for content, reason in (("[1]", "its rows are not objects"), ("{}", "it has no rows"), ("[]", "it has no rows")):
        with pytest.raises(DataError, match=reason):
            read(tmp_path, content, "b.json")


@pytest.mark.parametrize("content", [b"", b"\n\n", COLUMNS[0].encode(), b"\xff\xfe", ",".join(COLUMNS).encode()])
def test_a_table_without_rows_is_refused(tmp_path, content):
    with pytest.raises(DataError, match="it has no rows"):
        read(tmp_path, content)


def test_damaged_utf16_is_named(tmp_path):
    with pytest.raises(DataError, match=r"byte .* is not UTF-16"):
        read(tmp_path, table(ROWS).encode("utf-16")[:-1])


def test_tables_in_folders_are_found_once(tmp_path):
    tables = {
        "a/long.csv": table(ROWS),
        "a/unicode.txt": table(ROWS, "\t"),
        "a/b/wide.tsv": "gpu\tresnet50\nT4\t3\n",
        "a/b/long.json": json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in ROWS]),
    }
    others = {
        "a/database.csv": "schema,name\npublic,users\n",
        "a/notes.txt": "schema of the disks\n",
        "a/peaks.json": '{"schema": 1}',
        "a/runs.csv": "path,benchmark,epochs_to_converge\nx,gnmt,3\n",
        "a/time.csv": "kernel,time (ms)\ngemm,3\n",
        "a/scores.csv": "benchmark,system,minutes\ngnmt,T4,3\n",
        "a/result_0.txt": ':::MLLOG {"key": "resnet", "schema": 1}\n',
    }
    for name, text in (tables | others).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-16" if name == "a/unicode.txt" else None)
    found = external.find_tables([tmp_path, tmp_path / "a", tmp_path / "a/long.csv"])
    assert sorted(path.relative_to(tmp_path).as_posix() for path in found) == sorted(tables)
    assert external.find_tables([tmp_path / "a/time.csv"]) == [tmp_path / "a/time.csv"]  # it is named as one
    assert not external.find_tables([tmp_path / "a/notes.txt", tmp_path / "a/peaks.json"])


def test_unreadable_tables_are_passed_over(tmp_path):
    shutil.copy(STUDY, tmp_path / "good.csv")
    (tmp_path / "bad.csv").write_text(table(with_values("fast")))
    errors = []
    found = external.read_tables(external.find_tables([tmp_path]), errors.append)
    assert found == external.read_measurements(STUDY)
    assert [error.path.name for error in errors] == ["bad.csv"]
