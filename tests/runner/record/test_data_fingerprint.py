"""The digest of a run's data: equal for equal data wherever they lie; runs on others are another group."""

import os
import shutil

import pytest
from rich.console import Console

from timetrial.runner.config.compose import compose
from timetrial.runner.core.errors import DataError
from timetrial.runner.launch.run import launch as launch_run
from timetrial.runner.record import data_fingerprint
from timetrial.runner.results.analysis.group_differences import list_differences
from timetrial.runner.results.analysis.groups import group_runs
from timetrial.runner.results.parse.sources import read_runs


def write_ratings(path, shift):
    path.parent.mkdir()
    lines = [f"{user},{(user * 7 + place * (3 + shift)) % 150},5,{place}" for user in range(60) for place in range(9)]
    path.write_text("\n".join(["userId,movieId,rating,timestamp", *lines]) + "\n")
    return path


def test_digest_is_that_of_the_content_in_its_order(tmp_path):
    for name, text in (("a", b"one"), ("b", b"two")):
        (tmp_path / name).write_bytes(text)
    digest = data_fingerprint.digest([tmp_path / "a", tmp_path / "b"])
    assert digest == data_fingerprint.digest([b"one", b"two"])
    assert len({digest, data_fingerprint.digest([b"two", b"one"]), data_fingerprint.digest([b"onetwo"])}) == 3
    assert data_fingerprint.digest([]) is None
    with pytest.raises(DataError, match="absent cannot be read"):
        data_fingerprint.digest([tmp_path / "absent"])


def test_large_file_counts_by_its_size_and_blocks(tmp_path):
    path = tmp_path / "large"
    with open(path, "wb") as file:
        file.truncate(100 << 20)
    digest = data_fingerprint.digest([path])
    with open(path, "r+b") as file:
        file.seek((100 << 20) - 1)
        file.write(b"x")
    assert data_fingerprint.digest([path]) != digest
    with open(path, "wb") as file:
        file.truncate((100 << 20) + 1)
    assert data_fingerprint.digest([path]) != digest


def test_file_that_changed_on_the_disk_is_found(tmp_path):
    path = tmp_path / "ids"
    path.write_bytes(b"ids")

    def check(cache=tmp_path):
        data_fingerprint.digest([path, b"sizes"], cache)

    check()
    check()
    path.write_bytes(b"prepared again")
    check()
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(b"prepared agaIn")
    os.utime(path, ns=times)
    with pytest.raises(DataError, match=f"Prepared data in {tmp_path} have changed on the disk: delete them"):
        check()
    check(tmp_path / "cache")  # of which it is no file: it is the user's


@pytest.mark.integration
def test_flipped_bit_of_prepared_text_stops_the_next_run(tmp_path):
    small = ["workload=gnmt", "accelerator=cpu", "launcher=inline", "recipe.max_epochs=1", "seed=1"]
    small += [f"data_dir={tmp_path}/data", f"runs_dir={tmp_path}/runs"]
    small += ["++recipe.data.generate.num_train=300", "++recipe.data.generate.num_test=16"]

    def run():
        return launch_run(compose(small).node, Console(quiet=True))

    run()
    (ids,) = (tmp_path / "data").rglob("train.source.ids")
    times = ids.stat().st_atime_ns, ids.stat().st_mtime_ns
    content = bytearray(ids.read_bytes())
    content[100] ^= 1
    ids.write_bytes(content)
    os.utime(ids, ns=times)
    with pytest.raises(DataError, match="have changed on the disk: delete them"):
        run()


@pytest.mark.integration
def test_runs_on_other_data_are_another_group(launch, tmp_path):
    first, other = write_ratings(tmp_path / "first" / "r.csv", 0), write_ratings(tmp_path / "other" / "r.csv", 2)
    copy = shutil.copytree(first.parent, tmp_path / "copy") / "r.csv"
    small = ["recipe.data.generate=null", "recipe.data.eval_negatives=99", "recipe.max_epochs=1", "launcher=inline"]
    run_dirs = [launch(f"recipe.data.path={path}", *small)[1] for path in (first, other, copy)]
    digests = [run_dir.record().data_digest for run_dir in run_dirs]
    assert digests[0] == digests[2] != digests[1]
    assert None not in digests
    groups = group_runs(read_runs([run_dir.path for run_dir in run_dirs]))
    assert sorted(len(group.runs) for group in groups) == [1, 2]
    assert "data" in [difference.name for difference in list_differences(*groups)]
