"""`timetrial data` as a person types it."""

import io
import os
import pty
import random
import shutil
import subprocess
import sys
import zipfile

import pytest
import yaml
from typer.testing import CliRunner

from timetrial.runner.cli.main import app
from timetrial.runner.core.errors import ConfigurationError, DataError

BYTES = random.Random(1).randbytes(3_000_000)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with a description of one more set, and the folder that holds its file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(zipfile.ZipInfo("toy/numbers.bin"), BYTES)
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "toy.zip").write_bytes(out.getvalue())
    describe(tmp_path, "https://nowhere.invalid/toy.zip", accept=True)
    return tmp_path


def describe(folder, url, **facts):
    toy = {
        "title": "A toy", "serves": "a test", "page": "https://nowhere.invalid/", "licence": "be kind",
        "licence_url": "https://nowhere.invalid/licence", "files": {"toy.zip": {"urls": [url], "strip": 1}},
        "makes": {"numbers.bin": None},
    }  # fmt: skip
    (folder / "sources").mkdir(exist_ok=True)
    (folder / "sources" / "toy.yaml").write_text(yaml.safe_dump(toy | facts))


def ask(*words):
    return CliRunner().invoke(app, ["data", *words, "--sources", "sources"])


def test_the_list_shows_every_set_and_its_state(place):
    done = ask("list")
    assert done.exit_code == 0, done.output
    lines = {line.split()[0]: line for line in done.output.splitlines()[1:-1]}
    assert len(lines) == 15
    assert {"imagenet", "coco", "wmt17", "ml-20m", "toy"} < set(lines)
    assert "154.6 GB" in lines["imagenet"]
    assert "3 of 4" in lines["wmt16"]
    assert "size unpublished" in lines["toy"]
    assert "absent" in lines["toy"]
    ask("fetch", "toy", "--from", "given", "--accept-licence")
    assert next(line for line in ask("list").output.splitlines() if line.startswith("toy ")).split()[1] == "there"


def test_the_licence_stands_before_the_download(place):
    done = ask("fetch", "toy", "bccd", "--from", "given")
    assert "A toy (size unpublished): be kind; https://nowhere.invalid/licence" in done.output
    assert isinstance(done.exception, ConfigurationError)
    assert str(done.exception) == "The licence of toy binds who downloads: read it, then add --accept-licence."
    assert not (place / "data" / "downloads").exists()
    done = ask("fetch", "toy", "--from", "given", "--accept-licence")
    assert done.exit_code == 0, done.output
    assert "data/toy is ready." in done.output
    assert (place / "data/toy/numbers.bin").read_bytes() == BYTES
    assert "data/toy is there." in ask("fetch", "toy").output  # which asks for nothing


def test_from_fetched_to_bundle_and_back(place):
    assert ask("fetch", "toy", "--from", "given", "--accept-licence", "--data-dir", "here").exit_code == 0
    done = ask("bundle", "toy", "--out", "toy.tar", "--data-dir", "here")
    assert done.exit_code == 0, done.output
    assert "toy.tar holds toy (3.0 MB)." in done.output
    done = ask("verify", "toy.tar", "toy", "--data-dir", "here")
    assert (done.exit_code, "toy.tar is whole." in done.output, "toy is whole." in done.output) == (0, True, True)
    done = ask("fetch", "toy", "--from", "toy.tar", "--accept-licence", "--data-dir", "there")
    assert done.exit_code == 0, done.output
    assert (place / "there/toy/.receipt").read_bytes() == (place / "here/toy/.receipt").read_bytes()
    for path in (place / "toy.tar", place / "there/toy/numbers.bin"):
        data = bytearray(path.read_bytes())
        data[1_234_567] ^= 4
        path.write_bytes(data)
    done = ask("verify", "toy", "toy.tar", "--data-dir", "there")
    assert isinstance(done.exception, DataError)
    assert str(done.exception).startswith("2 problems were found")
    assert "there/toy/numbers.bin has changed" in done.output
    assert "toy.zip in toy.tar has changed" in done.output


def test_a_damaged_set_is_not_made_over(place):
    ask("fetch", "toy", "--from", "given", "--accept-licence")
    (place / "data/toy/numbers.bin").unlink()
    for command in (["fetch", "toy", "--from", "given", "--accept-licence"], ["prepare", "toy"]):
        done = ask(*command)
        assert str(done.exception) == "data/toy is damaged: remove it, then fetch toy again."
    shutil.rmtree(place / "data/toy")
    assert "data/toy is ready." in ask("prepare", "toy").output
    (place / "data/toy/.receipt").unlink()
    assert "data/toy was put there by hand and stays as it is." in ask("prepare", "toy").output


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (["fetch", "tow"], ConfigurationError, "tow is no data set: choose from backbones, .*, toy, wmt16, wmt17"),
        (["fetch", "toy", "--jobs", "0"], ConfigurationError, "--jobs must be 1 or more"),
        (["fetch", "toy", "--from", "absent"], DataError, "absent is missing: name a folder or a bundle"),
        (["fetch", "toy", "--from", "sources", "--accept-licence"], DataError, r"sources does not hold toy\.zip"),
        (
            ["fetch", "imagenet", "--accept-licence"],
            DataError,
            r"ILSVRC2012_img_\w+\.tar must be brought: ask for it at",
        ),
        (["prepare", "toy"], DataError, r"toy\.zip is not fetched: timetrial data fetch toy brings it"),
        (["bundle", "toy", "--out", "a.tar"], DataError, r"toy\.zip is not fetched"),
        (["verify", "tow"], ConfigurationError, "tow is no data set and no bundle"),
        (["verify", "toy"], DataError, "data/toy is missing: timetrial data fetch toy brings it"),
        (["verify", "given/toy.zip"], DataError, r"given/toy\.zip is no bundle"),
        (["prepare", "workload=nothing"], Exception, "nothing"),
    ],
)
def test_what_cannot_be_is_one_sentence(place, words, kind, said):
    done = ask(*words)
    assert isinstance(done.exception, kind)
    with pytest.raises(kind, match=said):
        raise done.exception


def test_overrides_prepare_what_a_run_reads(place):
    drawn = ["recipe.data.generate.train=6", "recipe.data.generate.val=4"]
    done = CliRunner().invoke(app, ["data", "prepare", "workload=ssd", f"data_dir={place}", *drawn])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "SSD's data are ready." in done.output
    assert len(list((place / "prepared").glob("instances_*.npz"))) == 2
    done = CliRunner().invoke(app, ["data", "prepare", "workload=ncf"])
    assert "NCF's data are made ready as a run starts." in done.output


def test_a_person_at_a_terminal_sees_bars(place):
    checkpointer, terminal = pty.openpty()
    words = ["fetch", "toy", "--from", "given", "--accept-licence"]
    colours = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
    command = [sys.executable, "-P", "-m", "timetrial", "data", *words, "--sources", "sources"]
    process = subprocess.Popen(command, cwd=place, stdout=terminal, stderr=terminal, env=colours)
    os.close(terminal)
    seen = b""
    while True:
        try:
            piece = os.read(checkpointer, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(checkpointer)
    assert process.wait(60) == 0
    assert "checking toy.zip" in seen.decode()
    assert "MB" in seen.decode()
