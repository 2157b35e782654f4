"""Sets are fetched, prepared, verified and bundled over a folder; a kill at any moment costs time and nothing else."""

import hashlib
import json
import os
import shutil
import time

import pytest
import yaml

from timetrial.datasets.build.store import Store
from timetrial.datasets.download import bundles
from timetrial.datasets.download.transport import Patience
from timetrial.datasets.registry import catalog
from timetrial.runner.core.errors import ConfigurationError, DataError


def test_a_set_is_fetched_made_and_known_again(place):
    source = place.describe()
    assert place.store().state(source) == "absent"
    store = place.get(source)
    assert place.found(place.data / "toy") == place.whole
    assert store.state(source) == "there"
    assert list(store.faults(source)) == []
    assert sorted(os.listdir(place.data)) == [".acquiring", "downloads", "toy"]
    assert ("fetching images.zip", len(place.raw["images.zip"]), len(place.raw["images.zip"])) in place.told
    assert any(what == "preparing toy" and done == total for what, done, total in place.told)
    asked = len(place.server.asked)
    place.get(source)
    assert len(place.server.asked) == asked == 3


def test_equal_downloads_make_equal_sets(place):
    source = place.describe()
    place.get(source)
    first = (place.data / "toy" / ".receipt").read_bytes()
    shutil.rmtree(place.data / "toy")
    place.store().prepare(source)  # without a network
    assert (place.data / "toy" / ".receipt").read_bytes() == first
    assert len(place.server.asked) == 3


def test_files_of_two_sets_are_fetched_once(place):
    both = [place.describe("one"), place.describe("two")]
    place.get(*both)
    assert place.found(place.data / "one") == place.found(place.data / "two") == place.whole
    assert len(place.server.asked) == 3


def test_damage_is_seen(place):
    source = place.describe()
    store = place.get(source)
    path = place.data / "toy" / "train" / "7.jpg"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    assert store.state(source) == "there"  # at a glance
    assert list(store.faults(source)) == [f"{path} has changed: its SHA-256 is not that of its receipt."]
    path.unlink()
    assert store.state(source) == "damaged"
    (place.data / "toy" / ".receipt").write_text("timetrial 1\n")
    assert store.state(source) == "damaged"
    (place.data / "toy" / ".receipt").unlink()
    assert store.state(source) == "by hand"
    shutil.rmtree(place.data / "toy")
    with pytest.raises(DataError, match="toy is missing: timetrial data fetch toy brings it"):
        store.faults(source)
    assert store.state(source) == "begun"


def test_what_was_put_there_by_hand_stays(place):
    source = place.describe()
    (place.data / "toy").mkdir(parents=True)
    (place.data / "toy" / "mine.txt").write_text("mine")
    place.get(source)
    assert place.found(place.data / "toy") == {"mine.txt": b"mine"}
    assert not place.server.asked


def test_only_one_at_a_time(place):
    source = place.describe()
    with place.store().held(), pytest.raises(ConfigurationError, match="Another timetrial data command works in"):
        place.get(source)
    place.get(source)


def test_files_that_a_user_has_are_used_where_they_are(place):
    source = place.describe()
    given = place.root / "given"
    given.mkdir()
    for name, data in place.raw.items():
        (given / name).write_bytes(data)
    place.get(source, given=given)
    assert place.found(place.data / "toy") == place.whole
    assert not place.server.asked
    assert not [path for path in (place.data / "downloads").iterdir() if not path.name.endswith(".record")]
    (given / "images.zip").write_bytes(place.raw["images.zip"] + b"?")
    shutil.rmtree(place.data / "toy")
    with pytest.raises(DataError, match=r"images\.zip has [\d,]+ bytes, not [\d,]+: replace it"):
        place.get(source, given=given)
    (given / "images.zip").write_bytes(bytes(len(place.raw["images.zip"])))
    with pytest.raises(DataError, match=r"images\.zip has the sha256 [0-9a-f]+, not [0-9a-f]+: replace it"):
        place.get(source, given=given)
    (given / "images.zip").unlink()
    with pytest.raises(DataError, match=r"given does not hold images\.zip: add it, from https://there/"):
        place.get(source, given=given)


def test_a_file_without_address_must_be_brought(place):
    source = place.describe(**{"weights.pth": {"urls": []}})
    with pytest.raises(DataError, match=r"weights\.pth must be brought: ask for it at https://there/, then add --from"):
        place.get(source)
    (place.data / "downloads" / "weights.pth").write_bytes(place.raw["weights.pth"])
    place.get(source)
    assert place.found(place.data / "toy") == place.whole


def test_a_sum_that_nobody_published_is_kept_from_the_first_time(place):
    source = place.describe(published=False)
    place.get(source)
    shutil.rmtree(place.data / "toy")
    (place.data / "downloads" / "weights.pth").unlink()
    place.server.add("weights.pth", b"WEIGHTS")
    before = hashlib.sha256(b"weights").hexdigest()
    words = rf"weights\.pth is not the file that was first fetched \(its SHA-256 was {before}\)"
    for _ in range(2):
        with pytest.raises(DataError, match=words):
            place.get(source)
    for name in (".weights.pth.record", "weights.pth"):
        (place.data / "downloads" / name).unlink()
    place.get(source)
    assert place.found(place.data / "toy") == place.whole | {"weights.pth": b"WEIGHTS"}


def test_what_is_too_large_for_the_disk_is_not_begun(place):
    source = place.describe(**{"images.zip": {"bytes": 10**18}})
    with pytest.raises(DataError, match=r"1000000000\.0 GB are to be fetched and .* has room for"):
        place.get(source)
    assert not place.server.asked
    (place.data / "downloads" / "images.zip.part").write_bytes(b"")
    os.truncate(place.data / "downloads" / "images.zip.part", 10**12)  # which takes no room, but is there
    with pytest.raises(DataError, match=r"999999000\.0 GB are to be fetched"):
        place.get(source)


@pytest.mark.parametrize("hurdle", ["downloads", ".toy.preparing"])
def test_what_cannot_be_written_is_one_sentence(place, hurdle):
    source = place.describe()
    place.data.mkdir()
    (place.data / hurdle).write_text("no folder")
    with pytest.raises(DataError, match=rf"{hurdle}.* cannot be read or written \(.*\): free space there"):
        place.get(source)


def test_what_recipes_read_must_come_of_it(place):
    with pytest.raises(DataError, match=r"toy/test did not come of the files fetched: they are another edition"):
        place.get(place.describe(makes={"test": None}))
    with pytest.raises(DataError, match=rf"toy/weights\.pth would not have the md5 {'0' * 32}"):
        place.get(place.describe(makes={"weights.pth": "0" * 32}))
    assert not (place.data / "toy").exists()


def test_archives_that_overwrite_each_other_are_refused(place):
    place.server.add("more.zip", place.zipped({"val/words.txt": b"other words\n"}))
    place.describe()
    facts = yaml.safe_load((place.root / "sources" / "toy.yaml").read_text())
    facts["files"]["more.zip"] = {"urls": [f"{place.server.root}/more.zip"]}
    (place.root / "sources" / "toy.yaml").write_text(yaml.safe_dump(facts))
    source = catalog.read(place.root / "sources")["toy"]
    with pytest.raises(DataError, match="toy"):
        place.get(source)
    assert not (place.data / "toy").exists()


def test_a_bundle_carries_sets_to_a_machine_without_network(place, tmp_path):
    source = place.describe()
    store = place.store()
    with pytest.raises(DataError, match=r"images\.zip is not fetched: timetrial data fetch toy brings it"):
        store.bundle([source], tmp_path / "toy.tar")
    store = place.get(source)
    store.bundle([source], tmp_path / "toy.tar")
    assert list(bundles.faults(tmp_path / "toy.tar", lambda *words: None)) == []
    first, asked = (tmp_path / "toy.tar").read_bytes(), len(place.server.asked)
    shutil.rmtree(place.data)
    store = place.get(source, given=tmp_path / "toy.tar")
    assert place.found(place.data / "toy") == place.whole
    assert len(place.server.asked) == asked
    store.bundle([source], tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == first
    other = place.describe("other", **{"weights.pth": {"sha256": "0" * 64}})
    with pytest.raises(DataError, match=r"weights\.pth has the sha256"):
        place.get(other, given=tmp_path / "toy.tar")


def test_the_first_failure_stops_the_others(place):
    source = place.describe()
    place.server.add("images.zip", place.raw["images.zip"], lambda request: request.hang(after=10))
    place.server.add("weights.pth", b"", lambda request: request.say(404, {"Content-Length": "0"}))
    place.data.mkdir()
    began = time.monotonic()
    store = Store(place.data, 3, patience=Patience(stall_seconds=60))
    with pytest.raises(DataError, match=r"weights\.pth could not be fetched \(127\.0\.0\.1 answers 404\)"):
        store.fetch([source])
    assert time.monotonic() - began < 10


def test_a_record_that_is_damaged_is_made_anew(place):
    source = place.describe()
    place.get(source)
    shutil.rmtree(place.data / "toy")
    record = place.data / "downloads" / ".images.zip.record"
    record.write_text("{")
    with pytest.raises(DataError, match=r"images\.zip is not fetched"):
        place.store().prepare(source)
    place.get(source)
    assert json.loads(record.read_text())["bytes"] == len(place.raw["images.zip"])
