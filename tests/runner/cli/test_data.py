"""`timetrial data` on the command line."""

import io
import json
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

from timetrial.runner.cli import byte_progress
from timetrial.runner.cli.app import app
from timetrial.runner.core.errors import ConfigurationError, DataError

BYTES = random.Random(1).randbytes(3_000_000)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a working folder with the description of one more dataset and a folder with its file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(zipfile.ZipInfo("toy/numbers.bin"), BYTES)
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "toy.zip").write_bytes(out.getvalue())
    describe(tmp_path, "https://nowhere.invalid/toy.zip", requires_acceptance=True)
    return tmp_path


def describe(folder, url, **facts):
    toy = {
        "title": "A toy", "used_by": "a test", "homepage": "https://nowhere.invalid/", "license": "be kind",
        "license_url": "https://nowhere.invalid/license", "files": {"toy.zip": {"urls": [url], "strip_components": 1}},
        "outputs": {"numbers.bin": None},
    }  # fmt: skip
    (folder / "sources").mkdir(exist_ok=True)
    (folder / "sources" / "toy.yaml").write_text(yaml.safe_dump(toy | facts))


def run_data(*arguments):
    return CliRunner().invoke(app, ["data", *arguments, "--sources", "sources"])


def test_list_shows_every_dataset_and_its_state(folder):
    result = run_data("list")
    assert result.exit_code == 0, result.output
    datasets, licenses = result.output.split("\n\n")
    lines = {line.split()[0]: line for line in datasets.splitlines()[1:]}
    assert len(lines) == 17
    assert "acceptance required: annotations CC BY 4.0; photographs under Flickr's terms of use" in licenses
    assert {"imagenet", "coco", "wmt17", "ml-20m", "toy"} < set(lines)
    assert "154.6 GB" in lines["imagenet"]
    assert "3 of 4" in lines["wmt16"]
    assert "size unpublished" in lines["toy"]
    assert "missing" in lines["toy"]
    assert "0 of 1  " in lines["toy"]
    run_data("fetch", "toy", "--from", "given", "--accept-license")
    after = next(line for line in run_data("list").output.splitlines() if line.startswith("toy "))
    assert after.split()[1] == "ready"
    assert "0 of 1, 1 recorded" in after


def test_list_names_datasets_with_unencrypted_mirrors(folder):
    ends = [line for line in run_data("list").output.splitlines() if line.startswith("Mirrors without encryption")]
    assert ends == ["Mirrors without encryption rest on the published checksums: coco, wmt16, wmt17."]


def test_license_must_be_accepted_before_the_download(folder):
    result = run_data("fetch", "toy", "bccd", "--from", "given")
    assert "A toy (size unpublished): be kind; https://nowhere.invalid/license" in result.output
    assert isinstance(result.exception, ConfigurationError)
    assert str(result.exception) == "The license of toy must be accepted: read it, then add --accept-license."
    assert not (folder / "data" / "downloads").exists()
    result = run_data("fetch", "toy", "--from", "given", "--accept-license")
    assert result.exit_code == 0, result.output
    assert "data/toy is ready." in result.output
    assert (folder / "data/toy/numbers.bin").read_bytes() == BYTES
    assert "data/toy is ready." in run_data("fetch", "toy").output  # needs no acceptance


def test_bundle_round_trip(folder):
    assert run_data("fetch", "toy", "--from", "given", "--accept-license", "--data-dir", "here").exit_code == 0
    result = run_data("bundle", "toy", "--out", "toy.tar", "--data-dir", "here")
    assert result.exit_code == 0, result.output
    assert "toy.tar contains toy (3.0 MB)." in result.output
    result = run_data("verify", "toy.tar", "toy", "--data-dir", "here")
    assert (result.exit_code, "toy.tar is intact." in result.output, "toy is intact." in result.output) == (
        0,
        True,
        True,
    )
    result = run_data("fetch", "toy", "--from", "toy.tar", "--accept-license", "--data-dir", "there")
    assert result.exit_code == 0, result.output
    assert (folder / "there/toy/.manifest").read_bytes() == (folder / "here/toy/.manifest").read_bytes()
    for path in (folder / "toy.tar", folder / "there/toy/numbers.bin"):
        data = bytearray(path.read_bytes())
        data[1_234_567] ^= 4
        path.write_bytes(data)
    result = run_data("verify", "toy", "toy.tar", "--data-dir", "there")
    assert isinstance(result.exception, DataError)
    assert str(result.exception).startswith("2 problems found")
    assert "there/toy/numbers.bin has changed" in result.output
    assert "toy.zip in toy.tar has changed" in result.output


def test_verify_without_names_checks_all_that_is_present(folder):
    result = run_data("verify")
    assert (result.exit_code, "data holds no dataset to check" in result.output) == (0, True), result.output
    run_data("fetch", "toy", "--from", "given", "--accept-license")
    (folder / "data/bccd").mkdir()
    result = run_data("verify")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "toy is intact."
    assert "data/bccd has no manifest and is not checked." in result.output
    (folder / "data/toy/numbers.bin").write_bytes(b"")
    result = run_data("verify")
    assert str(result.exception).startswith("1 problem found")


def test_list_as_json(folder):
    run_data("fetch", "toy", "--from", "given", "--accept-license")
    entries = {entry["dataset"]: entry for entry in json.loads(run_data("list", "--json").output)}
    assert len(entries) == 17
    facts = {key: entries["toy"][key] for key in ("state", "license", "requires_acceptance", "download_bytes")}
    assert facts == {"state": "ready", "license": "be kind", "requires_acceptance": True, "download_bytes": None}
    assert (entries["toy"]["published_checksums"], entries["toy"]["recorded_checksums"]) == (0, 1)
    assert round(entries["imagenet"]["download_bytes"] / 1e9, 1) == 154.6


def test_damaged_dataset_is_not_overwritten(folder):
    run_data("fetch", "toy", "--from", "given", "--accept-license")
    (folder / "data/toy/numbers.bin").unlink()
    for command in (["fetch", "toy", "--from", "given", "--accept-license"], ["prepare", "toy"]):
        result = run_data(*command)
        assert str(result.exception) == "data/toy is damaged: remove it, then fetch toy again."
    shutil.rmtree(folder / "data/toy")
    assert "data/toy is ready." in run_data("prepare", "toy").output
    (folder / "data/toy/.manifest").unlink()
    assert "data/toy is unmanaged (it has no manifest) and stays unchanged." in run_data("prepare", "toy").output


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["fetch", "tow"], ConfigurationError, "tow is not a dataset: choose one of backbones, .*, toy, wmt16, wmt17"),
        (["fetch", "multi30"], ConfigurationError, r"multi30 is not a dataset: did you mean multi30k\? Choose one of"),
        (["prepare", "Coco"], ConfigurationError, r"Coco is not a dataset: did you mean coco\? Choose one of"),
        (["bundle", "imagnet", "--out", "a.tar"], ConfigurationError, r"did you mean imagenet\?"),
        (["fetch", "toy", "--jobs", "0"], ConfigurationError, "--jobs must be 1 or more"),
        (["fetch", "toy", "--from", "absent"], DataError, "absent is missing: name an existing folder or bundle"),
        (["fetch", "toy", "--from", "sources", "--accept-license"], DataError, r"sources does not contain toy\.zip"),
        (
            ["fetch", "imagenet", "--accept-license"],
            DataError,
            r"ILSVRC2012_img_\w+\.tar cannot be downloaded: request it at",
        ),
        (["prepare", "toy"], DataError, r"toy\.zip has not been fetched: run timetrial data fetch toy"),
        (["bundle", "toy", "--out", "a.tar"], DataError, r"toy\.zip has not been fetched"),
        (["verify", "tow"], ConfigurationError, "tow is neither a dataset nor a bundle"),
        (["verify", "multi30"], ConfigurationError, r"a bundle: did you mean multi30k\? Choose one of backbones"),
        (["verify", "toy"], DataError, "data/toy is missing: run timetrial data fetch toy"),
        (["verify", "given/toy.zip"], DataError, r"given/toy\.zip is not a bundle"),
        (["prepare", "workload=nothing"], Exception, "nothing"),
    ],
)
def test_reports_errors_in_one_sentence(folder, arguments, error, message):
    result = run_data(*arguments)
    assert isinstance(result.exception, error)
    with pytest.raises(error, match=message):
        raise result.exception


def test_overrides_prepare_the_data_of_a_run(folder):
    small = ["recipe.data.generate.num_train=6", "recipe.data.generate.num_val=4"]
    result = CliRunner().invoke(app, ["data", "prepare", "workload=ssd", f"data_dir={folder}", *small])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "SSD's data are ready." in result.output
    assert len(list((folder / "prepared").glob("instances_*.npz"))) == 2
    result = CliRunner().invoke(app, ["data", "prepare", "workload=ncf", f"data_dir={folder}"])
    assert "NCF's data are ready." in result.output
    assert any("ncf" in str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.integration
def test_terminal_shows_progress_bars(folder):
    controller, terminal = pty.openpty()
    arguments = ["fetch", "toy", "--from", "given", "--accept-license"]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
    command = [sys.executable, "-P", "-m", "timetrial", "data", *arguments, "--sources", "sources"]
    process = subprocess.Popen(command, cwd=folder, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    output = b""
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:
            break
        if not chunk:
            break
        output += chunk
    os.close(controller)
    assert process.wait(60) == 0
    assert "checking toy.zip" in output.decode()
    assert "MB" in output.decode()


def test_quiet_shows_no_progress(capsys, monkeypatch):
    for quiet in ("0", "1"):
        monkeypatch.setenv("TIMETRIAL_QUIET", quiet)
        with byte_progress.progress_display() as (_, progress):
            progress("backbones.zip", 0, 100)
        assert ("backbones.zip" in "".join(capsys.readouterr())) == (quiet == "0")
