"""Where downloads go, and where archives are unpacked."""

import pytest


@pytest.fixture
def place(tmp_path):
    return tmp_path / "downloads" / "file.bin"


@pytest.fixture
def out(tmp_path):
    """Return the folder to unpack to, and check that everything beside it is unchanged."""
    (tmp_path / "outside.txt").write_text("untouched")
    yield tmp_path / "out"
    assert (tmp_path / "outside.txt").read_text() == "untouched"
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} <= {"out"}
