"""A bad detection set: all problems are reported at once, and no run starts on it."""

import json

import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from timetrial.datasets.synthetic.detection import DetectionSpec, write_detection_dataset
from timetrial.runner.cli.app import app
from timetrial.runner.core.errors import DataError
from timetrial.runner.launch.run import launch


@pytest.fixture
def place(tmp_path):
    write_detection_dataset(
        tmp_path / "scenes", DetectionSpec(num_train=6, num_val=4, num_classes=2, max_objects=2, seed=3)
    )
    return tmp_path


@pytest.fixture
def words(place):
    chosen = [
        "workload=ssd",
        f"data_dir={place}",
        "recipe.data.generate=null",
        f"recipe.data.cache_dir={place}/prepared",
    ]
    for side in ("train", "val"):
        chosen.append(f"recipe.data.{side}_annotations={place}/scenes/annotations/instances_{side}.json")
        chosen.append(f"recipe.data.{side}_images={place}/scenes/{side}")
    return chosen


def spoil(place):
    """Faults of three kinds on one side: the words that each sentence must have. Its empty box is left out."""
    path = place / "scenes/annotations/instances_train.json"
    found = json.loads(path.read_text())
    one, two, three = found["annotations"][:3]
    one["image_id"] = 999
    two["bbox"] = [5.0, 5.0, 0.0, 4.0]
    three["bbox"][2] = 4000.0
    found["annotations"].append(dict(found["annotations"][3]))
    path.write_text(json.dumps(found))
    return ["999", "leaves|outside", "twice|duplicate|same id"]


def verify(words):
    return CliRunner().invoke(app, ["data", "verify", *words])


def test_reports_a_valid_set(words):
    done = verify(words)
    assert done.exit_code == 0, done.output
    assert "SSD's data are intact." in done.output


def test_reports_all_problems_at_once(place, words):
    kinds = spoil(place)
    done = verify(words)
    lines = done.output.splitlines()
    assert isinstance(done.exception, DataError)
    assert len(lines) == len(kinds), done.output
    for kind in kinds:
        assert any(word in line for line in lines for word in kind.split("|")), (kind, done.output)


def test_truncated_images_and_images_of_another_size_are_named(place, words):
    paths = sorted((place / "scenes/val").iterdir())
    paths[0].write_bytes(paths[0].read_bytes()[:400])
    Image.new("RGB", (31, 17)).save(paths[1])
    done = verify(words)
    assert isinstance(done.exception, DataError)
    assert "2 problems" in str(done.exception)
    assert f"{paths[0]} cannot be decoded" in done.output
    assert f"{paths[1]} is 31x17 pixels" in done.output


@pytest.mark.parametrize("fault", ["json", "image"])
def test_run_rejects_a_bad_set(place, words, compose, fault):
    if fault == "json":
        spoil(place)
    else:
        path = sorted((place / "scenes/train").iterdir())[2]
        path.write_bytes(b"not an image")
    with pytest.raises(
        DataError, match="and 2 more: timetrial data verify" if fault == "json" else "cannot be decoded"
    ):
        launch(compose(*words, "launcher=inline", f"runs_dir={place}/runs"), Console(quiet=True))
    assert not list((place / "runs").rglob("result_*.txt"))
    assert not (place / "prepared").exists() or not list((place / "prepared").glob("instances_train*"))


def change(place, side, how):
    path = place / f"scenes/annotations/instances_{side}.json"
    found = json.loads(path.read_text())
    how(found)
    path.write_text(json.dumps(found))
    return path


def test_problem_in_the_json_hides_no_bad_image(place, words):
    change(place, "train", lambda found: found["annotations"][0].update(bbox=[5.0, 5.0, 4000.0, 4.0]))
    paths = sorted((place / "scenes/train").iterdir())
    paths[0].write_bytes(paths[0].read_bytes()[:400])
    paths[1].unlink()
    done = verify(words)
    assert "3 problems" in str(done.exception), done.output
    for wrong in ("leaves its image", f"{paths[0]} cannot be decoded", f"{paths[1]} is missing"):
        assert done.output.count(wrong) == 1, done.output


def test_run_rejects_a_truncated_png(place, words, compose):
    def as_png(found):
        name = place / "scenes/train" / found["images"][0]["file_name"]
        Image.open(name).save(name.with_suffix(".png"))
        found["images"][0]["file_name"] = f"{name.stem}.png"

    change(place, "train", as_png)
    (path,) = (place / "scenes/train").glob("*.png")
    path.write_bytes(path.read_bytes()[:-200])
    assert f"{path} cannot be decoded" in verify(words).output
    with pytest.raises(DataError, match=f"{path} cannot be decoded"):
        launch(compose(*words, "launcher=inline", f"runs_dir={place}/runs"), Console(quiet=True))
    assert not list((place / "runs").rglob("result_*.txt"))


@pytest.mark.parametrize("workload", ["ssd", "maskrcnn"])
@pytest.mark.parametrize(
    ("side", "how", "wrong"),
    [
        ("val", lambda found: [one.update(iscrowd=1) for one in found["annotations"]], "has no box of a single object"),
        ("val", lambda found: found["annotations"].clear(), "has no box of a single object"),
        ("train", lambda found: found["annotations"].clear(), "has no image with a box"),
        ("val", lambda found: found["categories"][0].update(name="other"), "name other categories"),
        ("val", lambda found: found["annotations"][0].update(bbox=[5, 5, 0, 4]), "a box without area"),
    ],
)  # fmt: skip
def test_run_rejects_splits_that_do_not_fit_together(place, words, compose, workload, side, how, wrong):
    change(place, side, how)
    words = [f"workload={workload}", *words[1:]]
    done = verify(words)
    assert isinstance(done.exception, DataError)
    assert len(done.output.splitlines()) == 1, done.output
    assert wrong in done.output
    with pytest.raises(DataError, match=wrong):
        launch(compose(*words, "launcher=inline", f"runs_dir={place}/runs"), Console(quiet=True))
    assert not list((place / "runs").rglob("result_*.txt"))


def test_training_drops_boxes_without_area_and_logs_their_number(place, words, compose):
    change(place, "train", lambda found: found["annotations"][0].update(bbox=[5.0, 5.0, 0.0, 4.0]))
    small = ["recipe.max_epochs=1", "recipe.first_eval_epoch=1", "recipe.global_batch_size=2", "recipe.data.workers=0"]
    result = launch(compose(*words, *small, "launcher=inline", f"runs_dir={place}/runs"), Console(quiet=True))
    assert '"key": "timetrial_dropped_boxes", "value": 1,' in result.run_dir.log.read_text()
