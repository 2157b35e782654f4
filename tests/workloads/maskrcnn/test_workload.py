"""Mask R-CNN's schedule and optimizer as the reference has them, its facts, its scores, and what cannot be."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from mlperf_logging.compliance_checker import mlp_compliance
from rich.console import Console

from timetrial.datasets.formats import coco, coco_masks
from timetrial.datasets.synthetic.detection import DetectionSpec, write_detection_dataset
from timetrial.runner.config import schema
from timetrial.runner.core.errors import ConfigurationError, Exit
from timetrial.runner.launch.launcher import launch
from timetrial.runner.mlperf import compliance
from timetrial.runner.training.workload import Batch
from timetrial.workloads.common.detection.coco_evaluation import Detections
from timetrial.workloads.maskrcnn import workload as module
from timetrial.workloads.maskrcnn.detection import Chosen
from timetrial.workloads.maskrcnn.model import Draws, MaskRCNN
from timetrial.workloads.maskrcnn.workload import InstanceSegmentation

pytest.importorskip("pycocotools")
RULES = Path(mlp_compliance.__file__).parent / "training_0.7.0/closed_maskrcnn.yaml"
spec = importlib.util.spec_from_file_location("maskrcnn_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)


def workload(batch=16, truth=None, **changes):
    given = {"learning_rate": 0.02, "warmup_samples": 8000, "decay_samples": [960_000, 1_280_000]} | changes
    data = SimpleNamespace(
        global_batch_size=batch, images_per_statistic=4, short_edge=800, long_edge=1333, num_classes=3
    )
    data.truth = data.val_set = truth
    return InstanceSegmentation(InstanceSegmentation.Settings(**given), data)


def tiny(**changes):
    draws = Draws(judged_of_level=30, eval_proposals=20)
    return workload(width=8, pyramid=8, hidden=16, draws=draws, **changes)


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """A generated validation set, with crowds and empty images, whose categories' ids have gaps."""
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    write_detection_dataset(folder, DetectionSpec(num_train=1, num_val=20, num_classes=3))
    return coco.read(folder / "annotations/instances_val.json", folder / "val", masks=True)


def test_the_reference_recipe_has_mlperfs_numbers(compose):
    """mlperf.md 12.3."""
    recipe = compose("workload=maskrcnn", "scale=reference").recipe
    batch, training = recipe.global_batch_size, recipe.training
    assert (batch, training.learning_rate, training.warmup_samples / batch) == (16, 0.02, 500)
    assert [samples / batch for samples in training.decay_samples] == [60_000, 80_000]
    assert (recipe.data.short_edge, recipe.data.long_edge) == (800, 1333)
    assert (recipe.get("first_eval_epoch", 1), recipe.get("eval_every_epochs", 1)) == (1, 1)
    assert all(recipe.target[edition] == {"BBOX": 0.377, "SEGM": 0.339} for edition in ("v05", "v07"))
    assert Draws() == Draws(256, 2000, 1000, 512, 0.25, 1000, 1000)


def test_the_schedule_is_the_references():
    task = workload()
    for step in (0, 1, 250, 499, 500, 59_999, 60_000, 79_999, 80_000, 89_999):
        assert 0.02 * task.factor(step) == pytest.approx(oracle.learning_rate(step))


def test_the_schedule_is_as_long_for_every_batch():
    for batch in (8, 16, 128):
        facts = workload(batch).mlperf_params()
        assert facts["opt_learning_rate_warmup_steps"] == 8000 // batch
        assert facts["opt_learning_rate_decay_steps"] == [960_000 // batch, 1_280_000 // batch]
        assert workload(batch).factor(960_000 // batch) == pytest.approx(0.1)
    assert workload(warmup_samples=0).factor(0) == 1


@pytest.mark.parametrize("pretrained", [True, False])
def test_biases_have_twice_the_rate_and_do_not_decay(pretrained):
    task = tiny()
    net = MaskRCNN(4, Draws(), width=8, pyramid=8, hidden=16, pretrained=pretrained)
    optimizer, schedule = task.build_optimizer(net, 10)
    rates = {id(x): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for x in group["params"]}
    first = 0.02 / 3
    for name, weight in net.named_parameters():
        if not weight.requires_grad:
            assert pretrained
            assert id(weight) not in rates, name
        else:
            right = (2 * first, 0.0) if name.endswith("bias") else (first, 1e-4)
            assert rates[id(weight)] == pytest.approx(right), name
    assert ("backbone.conv1.weight" in {name for name, x in net.named_parameters() if x.requires_grad}) != pretrained
    assert isinstance(optimizer, torch.optim.SGD)
    assert all(group["momentum"] == 0.9 for group in optimizer.param_groups)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[1]["lr"] == 2 * optimizer.param_groups[0]["lr"]


def test_from_nothing_everything_is_trained():
    torch.manual_seed(1)
    net = tiny().build_model()
    names = {name for name, x in net.named_parameters() if x.requires_grad}
    assert names == {name for name, _ in net.named_parameters()}
    assert {"backbone.bn1.weight", "backbone.stages.0.0.downsample.1.bias"} <= names
    frozen = MaskRCNN(4, Draws(), width=8, pyramid=8, hidden=16)
    assert net.state_dict().keys() == frozen.state_dict().keys()
    assert net.mask.weight.std() < 0.02 < frozen.mask.weight.std()


def test_facts_are_those_of_the_closed_rules(compose):
    task = workload()
    facts = task.mlperf_params() | {"global_batch_size": 16}
    records = [
        record["KEY"] for record in yaml.safe_load(RULES.read_text()) if record["KEY"]["NAME"] != "eval_accuracy"
    ]
    for record in records:
        checks = record["CHECK"]
        found = {"v": {"value": facts[record["NAME"]]}, "is_integer": lambda number: float(number).is_integer()}
        assert eval(checks.strip(), found), record["NAME"]
    assert facts["opt_name"] == "sgd"
    assert facts["num_image_candidates"] == 4000
    assert (facts["min_image_size"], facts["max_image_size"]) == (800, 1333)
    settings = schema.check(compose("workload=maskrcnn", "scale=reference", "round=v07"))
    chosen = schema.settings_of(InstanceSegmentation, settings.recipe.training, "recipe.training")
    assert InstanceSegmentation(chosen, task._data).mlperf_params() == task.mlperf_params()


def test_perfect_answers_score_one(truth):
    single = ~truth.crowd
    masks = [truth.packed_mask(number) for number in np.flatnonzero(single).tolist()]
    image, category = truth.image_id[truth.image[single]], truth.category_id[truth.category[single]]
    scores = np.ones(int(single.sum()), np.float32)
    found = Detections(image, category, truth.box[single], scores, masks)
    half = len(masks) // 2
    parts = [
        Detections(*(getattr(found, name)[some] for name in ("image", "category", "box", "score", "mask")))
        for some in (slice(half), slice(half, None))
    ]
    assert workload(truth=truth).score(parts) == {"BBOX": 1.0, "SEGM": 1.0}


def test_what_is_found_is_in_pixels_of_the_originals(truth, monkeypatch):
    """Each image's objects, said in images of another size with masks that are all there, come back as they were."""
    numbers = torch.from_numpy(np.flatnonzero(np.diff(truth.first) >= 2)[[2, 0, 1]])
    sizes = torch.tensor([[100, 120], [64, 64], [200, 90]])

    def known(model, pixels, given):
        """Of every image its first two objects, the second of which is not there in the last image."""
        boxes, labels = torch.zeros(3, 2, 4), torch.zeros(3, 2, dtype=torch.int64)
        for place, number in enumerate(numbers.tolist()):
            x, y, width, height = torch.from_numpy(truth.boxes(number)[:2].copy()).T
            own = torch.tensor([truth.width[number], truth.height[number]] * 2)
            corners = torch.stack([x, y, x + width - 1, y + height - 1], 1)
            boxes[place] = corners * given[place].flip(0).repeat(2) / own
            labels[place] = torch.from_numpy(truth.categories(number)[:2] + 1)
        exists = torch.tensor([[True, True], [True, True], [True, False]])
        return Chosen(boxes, torch.tensor([[0.9, 0.8]] * 3), labels, exists), torch.ones(3, 2, 28, 28)

    monkeypatch.setattr(module, "detect", known)
    task = tiny(truth=truth)
    with torch.no_grad():
        found = task.predict(task.build_model(), [Batch((torch.zeros(3), sizes, numbers), 3, 3)])
    a, b, c = numbers.tolist()
    assert found.image.tolist() == truth.image_id[[a, a, b, b, c]].tolist()
    rows = [truth.of(number).start + place for number, place in ((a, 0), (a, 1), (b, 0), (b, 1), (c, 0))]
    np.testing.assert_allclose(found.box, truth.box[rows], atol=1e-3)
    assert found.category.tolist() == truth.category_id[truth.category[rows]].tolist()
    for row, mask in zip(rows, found.mask, strict=True):
        y, x = np.nonzero(coco_masks.unpack(mask))
        box = [x.min(), y.min(), x.max() - x.min() + 1, y.max() - y.min() + 1]
        np.testing.assert_allclose(box, truth.box[row], atol=2.1)  # the border of the pasted grid is rounded


def test_a_model_is_judged_from_pixels_to_scores(truth):
    torch.manual_seed(1)
    task = tiny(truth=truth)
    net = task.build_model().eval()
    batches = []
    for some in torch.arange(len(truth)).split(8):
        pixels = torch.randint(256, (len(some), 3, 64, 96), dtype=torch.uint8)
        batches.append(Batch((pixels, torch.tensor([[64, 90]] * len(some)), some), len(some), len(truth)))
    with torch.no_grad():
        part, nothing = task.predict(net, batches), task.predict(net, [])
    assert (len(nothing), nothing.mask) == (0, [])
    assert len(part) == len(part.mask) > 0
    quality = task.score([part, nothing])
    assert quality.keys() == {"BBOX", "SEGM"}
    assert all(0 <= value < 0.1 for value in quality.values())
    assert task.score([nothing]) == {"BBOX": 0.0, "SEGM": 0.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0.0},
        {"momentum": 1.0},
        {"warmup_samples": -1},
        {"warmup_factor": 0.0},
        {"decay_samples": [2, 1]},
        {"decay_samples": [1]},
        {"width": 0},
        {"pyramid": 48},
    ],
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        workload(**wrong)


@pytest.mark.parametrize("wrong", [{"anchors": 0}, {"regions": 3}, {"positive": 1.5}, {"eval_proposals": 0}])
def test_draws_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        Draws(**wrong)
    node = {"learning_rate": 1.0, "warmup_samples": 0, "decay_samples": [1, 2], "draws": wrong}
    with pytest.raises(ConfigurationError, match=r"recipe.training: draws must be"):
        schema.settings_of(InstanceSegmentation, node, "recipe.training")


@pytest.mark.parametrize("met", [True, False])
def test_a_log_is_closed_when_both_targets_are_met(compose, tmp_path, monkeypatch, met):
    """The reference recipe but for its size, by the official checker; the precision is pretended."""
    quality = {"BBOX": 0.3771, "SEGM": 0.3391 if met else 0.3389}
    monkeypatch.setattr(InstanceSegmentation, "score", lambda self, parts: quality)
    small = ["global_batch_size=4", "max_epochs=1", "data.short_edge=48", "data.long_edge=64", "data.workers=0"]
    small += ["training.width=8", "training.pyramid=8", "training.hidden=16", "training.backbone=null"]
    small += ["data.generate={num_train: 8, num_val: 4, num_classes: 2, max_objects: 2, high_contrast: true}"]
    places = ["launcher=inline", f"data_dir={tmp_path}", f"runs={tmp_path}"]
    changes = [f"++recipe.{change}" for change in small]
    code, folder = launch(
        compose("workload=maskrcnn", "scale=reference", "round=v07", *places, *changes), Console(quiet=True)
    )
    assert code == (Exit.TARGET_REACHED if met else Exit.TARGET_NOT_REACHED)
    verdict = compliance.check(folder.log)
    assert (verdict.rules, verdict.compliant) == ("closed, 0.7.0", met), verdict.problems


@pytest.mark.parametrize("recipe", ["embedded", "mini", "mini_nwpu", "reference"])
def test_recipes_compose(compose, recipe):
    scale = recipe.split("_")[0]
    settings = schema.check(compose("workload=maskrcnn", f"scale={scale}", f"recipe=maskrcnn/{recipe}", "round=v07"))
    assert settings.recipe.target["v07"].keys() == {"BBOX", "SEGM"}
