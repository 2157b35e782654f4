"""Datasets are fetched, prepared, verified and bundled."""

import hashlib
import json
import os
import shutil
import time

import pytest
import yaml

from timetrial.datasets.build.store import DatasetStore
from timetrial.datasets.download import bundles
from timetrial.datasets.download.transport import RetryPolicy
from timetrial.datasets.registry import catalog
from timetrial.runner.core.errors import ConfigurationError, DataError, DiskFull
from timetrial.runner.core.progress import no_progress


def test_fetches_and_prepares_once(place):
    source = place.describe()
    assert place.store().state(source) == "missing"
    store = place.get(source)
    assert place.found(place.data / "toy") == place.prepared
    assert store.state(source) == "ready"
    assert list(store.find_faults(source)) == []
    assert sorted(os.listdir(place.data)) == [".acquiring", "downloads", "toy"]
    assert ("fetching images.zip", len(place.raw["images.zip"]), len(place.raw["images.zip"])) in place.reports
    assert any(what == "preparing toy" and done == total for what, done, total in place.reports)
    asked = len(place.server.asked)
    place.get(source)
    assert len(place.server.asked) == asked == 3


def test_equal_downloads_give_equal_datasets(place):
    source = place.describe()
    place.get(source)
    first = (place.data / "toy" / ".manifest").read_bytes()
    shutil.rmtree(place.data / "toy")
    place.store().prepare(source)  # without a network
    assert (place.data / "toy" / ".manifest").read_bytes() == first
    assert len(place.server.asked) == 3


def test_files_shared_by_two_datasets_are_fetched_once(place):
    both = [place.describe("one"), place.describe("two")]
    place.get(*both)
    assert place.found(place.data / "one") == place.found(place.data / "two") == place.prepared
    assert len(place.server.asked) == 3


def test_state_and_verification_find_damage(place):
    source = place.describe()
    store = place.get(source)
    path = place.data / "toy" / "train" / "7.jpg"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    assert store.state(source) == "ready"  # sizes only
    assert list(store.find_faults(source)) == [f"{path} has changed: its SHA-256 differs from the manifest."]
    path.unlink()
    assert store.state(source) == "damaged"
    (place.data / "toy" / ".manifest").write_text("timetrial 1\n")
    assert store.state(source) == "damaged"
    (place.data / "toy" / ".manifest").unlink()
    assert store.state(source) == "unmanaged"
    shutil.rmtree(place.data / "toy")
    with pytest.raises(DataError, match="toy is missing: run timetrial data fetch toy"):
        store.find_faults(source)
    assert store.state(source) == "partial"


def test_unmanaged_folder_is_left_unchanged(place):
    source = place.describe()
    (place.data / "toy").mkdir(parents=True)
    (place.data / "toy" / "mine.txt").write_text("mine")
    place.get(source)
    assert place.found(place.data / "toy") == {"mine.txt": b"mine"}
    assert not place.server.asked


def test_lock_admits_one_process(place):
    source = place.describe()
    with place.store().lock(), pytest.raises(ConfigurationError, match="Another timetrial data command is running in"):
        place.get(source)
    place.get(source)


def test_files_from_a_folder_are_used_in_place(place):
    source = place.describe()
    folder = place.root / "given"
    folder.mkdir()
    for name, data in place.raw.items():
        (folder / name).write_bytes(data)
    place.get(source, origin=folder)
    assert place.found(place.data / "toy") == place.prepared
    assert not place.server.asked
    assert not [path for path in (place.data / "downloads").iterdir() if not path.name.endswith(".record")]
    (folder / "images.zip").write_bytes(place.raw["images.zip"] + b"?")
    shutil.rmtree(place.data / "toy")
    with pytest.raises(DataError, match=r"images\.zip has [\d,]+ bytes, not [\d,]+: replace it"):
        place.get(source, origin=folder)
    (folder / "images.zip").write_bytes(bytes(len(place.raw["images.zip"])))
    with pytest.raises(DataError, match=r"images\.zip has the sha256 [0-9a-f]+, not [0-9a-f]+: replace it"):
        place.get(source, origin=folder)
    (folder / "images.zip").unlink()
    with pytest.raises(DataError, match=r"given does not contain images\.zip: add it, from https://there/"):
        place.get(source, origin=folder)


def test_file_without_url_must_be_provided(place):
    source = place.describe(**{"weights.pth": {"urls": []}})
    with pytest.raises(
        DataError, match=r"weights\.pth cannot be downloaded: request it at https://there/, then add --from"
    ):
        place.get(source)
    (place.data / "downloads" / "weights.pth").write_bytes(place.raw["weights.pth"])
    place.get(source)
    assert place.found(place.data / "toy") == place.prepared


def test_first_checksum_is_recorded_where_none_is_published(place):
    source = place.describe(published=False)
    place.get(source)
    shutil.rmtree(place.data / "toy")
    (place.data / "downloads" / "weights.pth").unlink()
    place.server.add("weights.pth", b"WEIGHTS")
    before = hashlib.sha256(b"weights").hexdigest()
    message = rf"weights\.pth differs from the file that was first fetched \(SHA-256 {before}\)"
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            place.get(source)
    for name in (".weights.pth.record", "weights.pth"):
        (place.data / "downloads" / name).unlink()
    place.get(source)
    assert place.found(place.data / "toy") == place.prepared | {"weights.pth": b"WEIGHTS"}


def test_rejects_download_larger_than_free_space(place):
    source = place.describe(**{"images.zip": {"bytes": 10**18}})
    with pytest.raises(DiskFull, match=r"The download takes 1000000000\.0 GB and .* has .* GB free"):
        place.get(source)
    assert not place.server.asked
    (place.data / "downloads" / "images.zip.part").write_bytes(b"")
    os.truncate(place.data / "downloads" / "images.zip.part", 10**12)  # a sparse file
    with pytest.raises(DiskFull, match=r"The download takes 999999000\.0 GB"):
        place.get(source)


@pytest.mark.parametrize("name", ["downloads", ".toy.preparing"])
def test_reports_unwritable_folder_in_one_sentence(place, name):
    source = place.describe()
    place.data.mkdir()
    (place.data / name).write_text("no folder")
    with pytest.raises(DataError, match=rf"{name}.* cannot be read or written \(.*\): free space there"):
        place.get(source)


def test_rejects_missing_or_different_outputs(place):
    with pytest.raises(DataError, match=r"The raw files do not contain .*toy/test: they are another version"):
        place.get(place.describe(outputs={"test": None}))
    with pytest.raises(DataError, match=rf"toy/weights\.pth does not have the md5 {'0' * 32}"):
        place.get(place.describe(outputs={"weights.pth": "0" * 32}))
    assert not (place.data / "toy").exists()


def test_rejects_archives_that_overwrite_each_other(place):
    place.server.add("more.zip", place.zipped({"val/words.txt": b"other words\n"}))
    place.describe()
    facts = yaml.safe_load((place.root / "sources" / "toy.yaml").read_text())
    facts["files"]["more.zip"] = {"urls": [f"{place.server.root}/more.zip"]}
    (place.root / "sources" / "toy.yaml").write_text(yaml.safe_dump(facts))
    source = catalog.read(place.root / "sources")["toy"]
    with pytest.raises(DataError, match="toy"):
        place.get(source)
    assert not (place.data / "toy").exists()


def test_bundle_replaces_the_network(place, tmp_path):
    source = place.describe()
    store = place.store()
    with pytest.raises(DataError, match=r"images\.zip has not been fetched: run timetrial data fetch toy"):
        store.write_bundle([source], tmp_path / "toy.tar")
    store = place.get(source)
    store.write_bundle([source], tmp_path / "toy.tar")
    assert list(bundles.find_faults(tmp_path / "toy.tar", no_progress)) == []
    first, asked = (tmp_path / "toy.tar").read_bytes(), len(place.server.asked)
    shutil.rmtree(place.data)
    store = place.get(source, origin=tmp_path / "toy.tar")
    assert place.found(place.data / "toy") == place.prepared
    assert len(place.server.asked) == asked
    store.write_bundle([source], tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == first
    other = place.describe("other", **{"weights.pth": {"sha256": "0" * 64}})
    with pytest.raises(DataError, match=r"weights\.pth has the sha256"):
        place.get(other, origin=tmp_path / "toy.tar")


def test_first_failure_stops_other_downloads(place):
    source = place.describe()
    place.server.add("images.zip", place.raw["images.zip"], lambda request: request.hang(after=10))
    place.server.add("weights.pth", b"", lambda request: request.say(404, {"Content-Length": "0"}))
    place.data.mkdir()
    began = time.monotonic()
    store = DatasetStore(place.data, 3, retry=RetryPolicy(stall_seconds=60))
    with pytest.raises(DataError, match=r"weights\.pth could not be fetched \(127\.0\.0\.1 answers 404\)"):
        store.fetch([source])
    assert time.monotonic() - began < 10


def test_damaged_record_is_written_again(place):
    source = place.describe()
    place.get(source)
    shutil.rmtree(place.data / "toy")
    record = place.data / "downloads" / ".images.zip.record"
    record.write_text("{")
    with pytest.raises(DataError, match=r"images\.zip has not been fetched"):
        place.store().prepare(source)
    place.get(source)
    assert json.loads(record.read_text())["bytes"] == len(place.raw["images.zip"])
