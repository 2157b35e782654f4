"""Manifests: what is written is read, and a missing or damaged one is named with the command that writes it."""

from pathlib import Path

import pytest

from timetrial.runner.core.errors import DataError
from timetrial.workloads.common.manifest import manifest_path, read_manifest, write_manifest


def test_reads_what_was_written_and_names_sources_apart(tmp_path):
    one, other = (manifest_path(str(tmp_path / "new"), "images", Path(name)) for name in ("a/set", "b/set"))
    write_manifest(one, {"train_size": 3})
    write_manifest(other, {"train_size": 4})
    assert [read_manifest(path)["train_size"] for path in (one, other)] == [3, 4]


@pytest.mark.parametrize("text", [None, "{"])
def test_missing_or_damaged_manifest_is_named(tmp_path, text):
    path = manifest_path(str(tmp_path), "images", Path("set"))
    if text:
        path.write_text(text)
    with pytest.raises(DataError, match=rf"^{path} is missing or damaged: run timetrial data prepare"):
        read_manifest(path)
