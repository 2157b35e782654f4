"""Compiled code lies in folders that the user alone can write to."""

import os
import stat

import pytest

from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.core.private_caches import use_private_caches


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home without caches."""
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_caches_are_private_and_in_the_home(home):
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    use_private_caches()
    for path in (cache_dir(), os.environ["TRITON_CACHE_DIR"]):
        assert os.path.dirname(path) == str(home / ".cache" / "timetrial")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    use_private_caches()  # they exist already


def test_default_of_inductor_is_replaced(home, monkeypatch):
    """Its import sets the variable, so that it looks as if the user had."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    use_private_caches()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(home / ".cache" / "timetrial" / "inductor")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
@pytest.mark.parametrize("place", ["", "inductor", "triton"])
def test_folder_that_others_can_write_to_is_refused(home, mode, place):
    folder = home / ".cache" / "timetrial" / place
    folder.mkdir(parents=True)
    folder.chmod(mode)
    with pytest.raises(ConfigurationError, match="so that others could run code as you"):
        use_private_caches()


def test_folder_of_another_user_is_refused(home, monkeypatch):
    use_private_caches()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigurationError, match="no folder that only you can write to"):
        use_private_caches()


@pytest.mark.parametrize("make", ["link", "dangling link", "file"])
def test_link_or_file_is_refused(home, tmp_path, make):
    (home / ".cache").mkdir()
    place = home / ".cache" / "timetrial"
    if make == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.write_text("") if make == "file" else place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match=r"timetrial.* is no folder"):
        use_private_caches()


def test_folder_that_the_user_chose_is_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    use_private_caches()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "mine")
    (tmp_path / "mine").chmod(0o777)
    with pytest.raises(ConfigurationError, match="or set TORCHINDUCTOR_CACHE_DIR to a folder of your own"):
        use_private_caches()


def test_without_a_home_a_new_temporary_folder_is_used(home, monkeypatch):
    monkeypatch.setenv("HOME", "/proc/nowhere")
    use_private_caches()
    folder = os.path.dirname(os.environ["TRITON_CACHE_DIR"])
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert os.path.basename(folder).startswith("timetrial_cache_")
