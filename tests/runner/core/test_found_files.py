"""Files of others: what is read, what is refused, and text made visible."""

import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timetrial.runner.core import found_files
from timetrial.runner.core.found_files import UnreadableFile


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("plain Ünïcode 日本 €", "plain Ünïcode 日本 €"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\x00\x07\x7f\x9b", "a\\x00\\x07\\x7f\\x9b"),
        ("\u202e\u2066\u200f", "\\u202e\\u2066\\u200f"),
        ("\u2028\udcff\ufeff", "\\u2028\\udcff\\ufeff"),
        ("a\nb\tc", "a\\nb\\tc"),
    ],
)
def test_invisible_characters_are_escaped(text, visible):
    assert found_files.make_visible(text) == visible


@given(st.text(alphabet=st.characters()))
def test_visible_text_is_stable_and_can_be_printed(text):
    visible = found_files.make_visible(text)
    assert found_files.make_visible(visible) == visible
    visible.encode("utf-8")


def test_name_is_one_short_line():
    assert found_files.as_name(" a\n b\t c ") == "a b c"
    assert len(found_files.as_name("x" * 10**6)) == 200
    assert found_files.as_name({"a": 1}) == "{'a': 1}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(-1e30, 1e30) | st.text("aé\n\t ", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=3),
)


@given(JSON)
def test_data_are_read_unchanged(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(json.dumps(value))
    assert found_files.read_json(path) == value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 34 + b"]" * 34, "nested more than 32 deep"),
        (b"[" * 100_000, "recursion" if sys.version_info < (3, 14) else "Stack overflow"),
        (b"NaN", "beyond any result"),
        (b"1e31", "beyond any result"),
        (b"1" * 400, "beyond any result"),
        (b"9" * 5000, "4300"),
        (b'"\xff"', "byte 1 is not UTF-8"),
        (b"{", "Expecting property name"),
    ],
)
def test_json_that_is_no_data_is_refused(tmp_path, content, reason):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match=reason) as error:
        found_files.read_json(path)
    assert error.value.path == path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &a [1]\nb: *a", "references"),
        ("a: ${b}", "interpolation"),
        ('a: "\\x24{b}"', "interpolation"),
        ("a: !!python/name:os.system", "constructor"),
        ("a: !!binary aGk=", "bytes"),
        ("[" * 50_000, "recursion"),
        ("a: [", "expected the node content"),
        ("? [1, 2]\n: 3", "unhashable"),
        ("1", "no keys"),
    ],
)
def test_yaml_that_is_no_data_is_refused(tmp_path, text, reason):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UnreadableFile, match=reason):
        found_files.read_config(path)


def test_dates_stay_text(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("system: 2026-01-01\nseed: 3\n")
    assert found_files.read_config(path) == {"system": "2026-01-01", "seed": 3}


@pytest.mark.parametrize("read", [found_files.read_json, found_files.read_csv, found_files.read_config])
def test_only_regular_files_of_bounded_size_are_read(tmp_path, read):
    path = tmp_path / "a"
    with pytest.raises(UnreadableFile, match="No such file"):
        read(path)
    os.mkfifo(path)
    with pytest.raises(UnreadableFile, match="not a regular file"):
        read(path)
    for target in ("/dev/zero", tmp_path):
        path.unlink()
        path.symlink_to(target)
        with pytest.raises(UnreadableFile, match="not a regular file"):
            read(path)
    path.unlink()
    with open(path, "wb") as file:
        file.truncate(2**40)
    with pytest.raises(UnreadableFile, match="is larger than"):
        read(path)
