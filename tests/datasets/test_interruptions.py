"""Killed and interrupted commands lose no data and leave nothing half-written."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from timetrial.runner.core.errors import Exit

# Fetches or prepares the dataset in child processes that are killed at their first file operation, their second, ...
PROGRAM = """
import hashlib, os, shutil, signal, sys
from pathlib import Path
from timetrial.datasets.registry import catalog
from timetrial.datasets.build.store import DatasetStore

source = catalog.read(Path("sources"))["toy"]
data = Path("data")
steps = 0


def work(last):
    def count(event, words):
        global steps
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir") and "data" in str(words[0]):
            steps += 1
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)
    data.mkdir(exist_ok=True)
    sys.addaudithook(count)
    store = DatasetStore(data, 1)
    store.fetch([source]) if sys.argv[1] == "fetch" else store.prepare(source)


def check():
    for file in source.files:
        path = data / "downloads" / file.name
        assert not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256, path
    if (data / "toy").exists():
        assert not list(DatasetStore(data, 1).find_faults(source))


last, killed = 0, True
while killed:
    last += 1
    child = os.fork()
    if not child:
        work(last)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    check()
    if killed and (data / "toy").exists():  # the next kill comes later into another attempt
        shutil.rmtree(data / "toy")
print(last - 1)
"""


@pytest.fixture
def fetched(place):
    """Return a dataset whose raw files are fetched, and the manifest of an uninterrupted build."""
    source = place.describe()
    place.get(source)
    expected = (place.data / "toy" / ".manifest").read_bytes()
    shutil.rmtree(place.data / "toy")
    return source, expected


def run(program, folder, *words):
    command = [sys.executable, "-P", "-c", program, *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def test_kill_at_any_file_operation_can_be_continued(place, fetched):
    source, expected = fetched
    shutil.rmtree(place.data)
    for command, least in (("fetch", 15), ("prepare", 60)):
        process = run(PROGRAM, place.root, command)
        said, _ = process.communicate(timeout=100)
        assert process.returncode == 0
        assert int(said) > least  # the number of kills
    assert (place.data / "toy" / ".manifest").read_bytes() == expected
    assert list(place.store().find_faults(source)) == []
    assert sorted(os.listdir(place.data)) == ["downloads", "toy"]
    left = {
        name for name in os.listdir(place.data / "downloads") if not name.endswith(".part.json")
    }  # left if the last step was killed
    assert left == {*place.raw, *(f".{name}.record" for name in place.raw)}


def test_kills_at_random_times_can_be_continued(place, fetched, until):
    source, expected = fetched
    program = (
        "from pathlib import Path\nfrom timetrial.datasets.registry import catalog\n"
        "from timetrial.datasets.build.store import DatasetStore\nstore = DatasetStore(Path('data'), 2)\n"
        "source = catalog.read(Path('sources'))['toy']\nprint('ready', flush=True)\nstore.prepare(source)\n"
    )
    generator = random.Random(3)
    for _ in range(6):
        process = run(program, place.root)
        process.stdout.readline()
        time.sleep(generator.uniform(0, 0.02))
        process.kill()
        process.communicate()
        assert not (place.data / "toy").exists() or not list(place.store().find_faults(source))
    place.store().prepare(source)
    assert (place.data / "toy" / ".manifest").read_bytes() == expected
    assert list(place.store().find_faults(source)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_signal_exits_cleanly_and_can_be_continued(place, until, number):
    place.describe()
    place.server.faults["/images.zip"] = [lambda request: request.hang(after=5000)]
    command = [sys.executable, "-P", "-m", "timetrial", "data", "fetch", "toy", "--sources", "sources"]
    started = partial(
        subprocess.Popen, command, cwd=place.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process = started()
    part = place.data / "downloads" / "images.zip.part"
    until(lambda: part.exists() and part.stat().st_size == 5000)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    signal_name = signal.Signals(number).name
    assert (process.returncode, said) == (Exit.STOPPED, f"timetrial: Stopped by {signal_name}: run it again.\n")
    process = started()
    out, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    assert "data/toy is ready." in out
    assert place.server.ranges("images.zip") == [None, "bytes=5000-"]
    assert place.found(place.data / "toy") == place.prepared
