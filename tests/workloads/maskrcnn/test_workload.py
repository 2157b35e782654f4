"""Mask R-CNN's learning rate schedule, optimizer, MLPerf parameters, scores, logs and rejected settings."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from mlperf_logging.compliance_checker import mlp_compliance

from timetrial.datasets.formats import coco, coco_masks
from timetrial.datasets.synthetic.detection import DetectionSpec, write_detection_dataset
from timetrial.runner.config.validation import build_settings, validate
from timetrial.runner.core.errors import ConfigurationError
from timetrial.runner.launch.train import training_plan
from timetrial.runner.training.workload import Batch
from timetrial.workloads.common.detection.coco_evaluation import Detections
from timetrial.workloads.maskrcnn import workload as module
from timetrial.workloads.maskrcnn.detection import DetectionBatch
from timetrial.workloads.maskrcnn.model import MaskRCNN, SamplingSettings
from timetrial.workloads.maskrcnn.workload import InstanceSegmentation

pytest.importorskip("pycocotools")
RULES = Path(mlp_compliance.__file__).parent / "training_0.7.0/closed_maskrcnn.yaml"
spec = importlib.util.spec_from_file_location("maskrcnn_oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(oracle)


def workload(batch_size=16, truth=None, **changes):
    settings = {"learning_rate": 0.02, "warmup_samples": 8000, "lr_milestone_samples": [960_000, 1_280_000]} | changes
    data = SimpleNamespace(
        global_batch_size=batch_size, images_per_statistic=4, short_edge=800, long_edge=1333, num_classes=3
    )
    data.truth = data.val_set = truth
    data.eval_size = 0 if truth is None else len(truth)
    return InstanceSegmentation(InstanceSegmentation.Settings(**settings), data)


def tiny_workload(**changes):
    sampling = SamplingSettings(eval_proposals_per_level=30, eval_proposals=20)
    return workload(width=8, fpn_channels=8, representation_size=16, sampling=sampling, **changes)


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """Return a synthetic validation set with crowds, empty images and gaps in the category ids."""
    folder = tmp_path_factory.mktemp("scenes") / "scenes"
    write_detection_dataset(folder, DetectionSpec(num_train=1, num_val=20, num_classes=3))
    return coco.read(folder / "annotations/instances_val.json", folder / "val", masks=True)


def test_reference_recipe_has_mlperf_values(compose):
    """docs/mlperf_rules.md, "Mask R-CNN"."""
    config = validate(compose("workload=maskrcnn", "scale=reference", "round=v07"))
    recipe, plan = config.recipe, training_plan(config)
    assert (recipe.data["short_edge"], recipe.data["long_edge"]) == (800, 1333)
    assert all(recipe.target[edition] == {"BBOX": 0.377, "SEGM": 0.339} for edition in ("v05", "v07"))
    assert SamplingSettings() == SamplingSettings(256, 2000, 1000, 512, 0.25, 1000, 1000)
    evaluated = [0]
    while evaluated[-1] < plan.max_epochs:
        evaluated.append(evaluated[-1] + plan.epochs_until_eval(evaluated[-1]))
    assert evaluated[1:] == list(range(1, 21))


def test_reference_schedule_equals_the_formula_at_every_step(compose):
    """K = 2 in the rules' table: decays at (60,000, 80,000) x (1 + K / 10) x 16 / batch, as in the RCPs."""
    recipe = validate(compose("workload=maskrcnn", "scale=reference", "round=v07")).recipe
    settings = build_settings(InstanceSegmentation, recipe.training, "recipe.training")
    task = InstanceSegmentation(settings, SimpleNamespace(global_batch_size=recipe.global_batch_size))
    optimizer, schedule = task.build_optimizer(torch.nn.Conv2d(1, 1, 1), 7330)
    optimizer.step()  # without gradients: only the schedule moves
    rates = []
    for _ in range(20 * 7330):
        rates.append([group["lr"] for group in optimizer.param_groups])
        schedule.step()
    expected = np.array([oracle.learning_rate(step, steps=(72_000, 96_000)) for step in range(len(rates))])
    assert recipe.global_batch_size == 16
    np.testing.assert_allclose(rates, np.stack([expected, 2 * expected], 1), rtol=1e-9)


def test_schedule_equals_the_reference_script():
    task = workload()
    for step in (0, 1, 250, 499, 500, 59_999, 60_000, 79_999, 80_000, 89_999):
        assert 0.02 * task.lr_factor(step) == pytest.approx(oracle.learning_rate(step))


def test_reference_model_has_the_references_parameters(compose):
    """44,347,573 weights, 44,125,173 of them trained; `random` stands for R-50.pkl, which has the same layers."""
    node = compose("workload=maskrcnn", "scale=reference", "round=v07", "recipe.training.backbone=random")
    settings = build_settings(InstanceSegmentation, validate(node).recipe.training, "recipe.training")
    net = InstanceSegmentation(settings, SimpleNamespace(num_classes=80)).build_model()
    assert sum(weight.numel() for weight in net.parameters()) == 44_347_573
    assert sum(weight.numel() for weight in net.parameters() if weight.requires_grad) == 44_125_173


def test_schedule_in_samples_does_not_depend_on_the_batch_size():
    for batch_size in (8, 16, 128):
        params = workload(batch_size).mlperf_params()
        assert params["opt_learning_rate_warmup_steps"] == 8000 // batch_size
        assert params["opt_learning_rate_decay_steps"] == [960_000 // batch_size, 1_280_000 // batch_size]
        assert workload(batch_size).lr_factor(960_000 // batch_size) == pytest.approx(0.1)
    assert workload(warmup_samples=0).lr_factor(0) == 1


@pytest.mark.parametrize("pretrained", [True, False])
def test_biases_have_twice_the_learning_rate_and_no_weight_decay(pretrained):
    task = tiny_workload()
    net = MaskRCNN(4, SamplingSettings(), width=8, fpn_channels=8, representation_size=16, pretrained=pretrained)
    optimizer, schedule = task.build_optimizer(net, 10)
    rates = {id(x): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for x in group["params"]}
    first = 0.02 / 3
    for name, weight in net.named_parameters():
        if not weight.requires_grad:
            assert pretrained
            assert id(weight) not in rates, name
        else:
            expected = (2 * first, 0.0) if name.endswith("bias") else (first, 1e-4)
            assert rates[id(weight)] == pytest.approx(expected), name
    assert ("backbone.conv1.weight" in {name for name, x in net.named_parameters() if x.requires_grad}) != pretrained
    assert isinstance(optimizer, torch.optim.SGD)
    assert all(group["momentum"] == 0.9 for group in optimizer.param_groups)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[1]["lr"] == 2 * optimizer.param_groups[0]["lr"]


def test_trains_everything_from_scratch():
    torch.manual_seed(1)
    net = tiny_workload().build_model()
    names = {name for name, x in net.named_parameters() if x.requires_grad}
    assert names == {name for name, _ in net.named_parameters()}
    assert {"backbone.bn1.weight", "backbone.stages.0.0.downsample.1.bias"} <= names
    frozen = MaskRCNN(4, SamplingSettings(), width=8, fpn_channels=8, representation_size=16)
    assert net.state_dict().keys() == frozen.state_dict().keys()
    assert net.mask_logits.weight.std() < 0.02 < frozen.mask_logits.weight.std()


def test_mlperf_params_satisfy_the_closed_rules(compose):
    task = workload()
    params = task.mlperf_params() | {"global_batch_size": 16}
    records = [
        record["KEY"] for record in yaml.safe_load(RULES.read_text()) if record["KEY"]["NAME"] != "eval_accuracy"
    ]
    for record in records:
        checks = record["CHECK"]
        variables = {"v": {"value": params[record["NAME"]]}, "is_integer": lambda number: float(number).is_integer()}
        assert eval(checks.strip(), variables), record["NAME"]
    assert params["opt_name"] == "sgd"
    assert params["num_image_candidates"] == 4000
    assert (params["min_image_size"], params["max_image_size"]) == (800, 1333)
    settings = validate(compose("workload=maskrcnn", "scale=reference", "round=v07"))
    chosen = build_settings(InstanceSegmentation, settings.recipe.training, "recipe.training")
    expected = params | {"opt_learning_rate_decay_steps": [72_000, 96_000]}
    assert InstanceSegmentation(chosen, task._data).mlperf_params() | {"global_batch_size": 16} == expected


def test_perfect_detections_score_one(truth):
    single = ~truth.crowd
    masks = [truth.rle(number) for number in np.flatnonzero(single).tolist()]
    image_id, category_id = truth.image_id[truth.image[single]], truth.category_id[truth.category[single]]
    scores = np.ones(int(single.sum()), np.float32)
    detections = Detections(image_id, category_id, truth.box[single], scores, masks)
    half = len(masks) // 2
    parts = [
        Detections(*(getattr(detections, name)[part] for name in ("image_id", "category_id", "box", "score", "mask")))
        for part in (slice(half), slice(half, None))
    ]
    assert workload(truth=truth).score(parts) == {"BBOX": 1.0, "SEGM": 1.0}


def test_predicts_in_pixels_of_the_original_images(truth, monkeypatch):
    """Objects detected in resized images, with full masks, are returned with their original boxes."""
    numbers = torch.from_numpy(np.flatnonzero(np.diff(truth.first) >= 2)[[2, 0, 1]])
    sizes = torch.tensor([[100, 120], [64, 64], [200, 90]])

    def detect_known_objects(model, pixels, image_sizes):
        """Return the first two objects of each image; the second of the last image does not exist."""
        boxes, labels = torch.zeros(3, 2, 4), torch.zeros(3, 2, dtype=torch.int64)
        for row, number in enumerate(numbers.tolist()):
            x, y, width, height = torch.from_numpy(truth.boxes(number)[:2].copy()).T
            original = torch.tensor([truth.width[number], truth.height[number]] * 2)
            corners = torch.stack([x, y, x + width - 1, y + height - 1], 1)
            boxes[row] = corners * image_sizes[row].flip(0).repeat(2) / original
            labels[row] = torch.from_numpy(truth.categories(number)[:2] + 1)
        valid = torch.tensor([[True, True], [True, True], [True, False]])
        return DetectionBatch(boxes, torch.tensor([[0.9, 0.8]] * 3), labels, valid), torch.ones(3, 2, 28, 28)

    monkeypatch.setattr(module, "detect", detect_known_objects)
    task = tiny_workload(truth=truth)
    with torch.no_grad():
        detections = task.predict(task.build_model(), [Batch((torch.zeros(3), sizes, numbers), 3, 3)])
    a, b, c = numbers.tolist()
    assert detections.image_id.tolist() == truth.image_id[[a, a, b, b, c]].tolist()
    rows = [truth.annotations_of(number).start + place for number, place in ((a, 0), (a, 1), (b, 0), (b, 1), (c, 0))]
    np.testing.assert_allclose(detections.box, truth.box[rows], atol=1e-3)
    assert detections.category_id.tolist() == truth.category_id[truth.category[rows]].tolist()
    for row, mask in zip(rows, detections.mask, strict=True):
        y, x = np.nonzero(coco_masks.decode_rle(mask))
        box = [x.min(), y.min(), x.max() - x.min() + 1, y.max() - y.min() + 1]
        np.testing.assert_allclose(box, truth.box[row], atol=2.1)  # the border of the pasted mask is rounded


def test_evaluates_a_model_from_pixels_to_scores(truth):
    torch.manual_seed(1)
    task = tiny_workload(truth=truth)
    net = task.build_model().eval()
    batches = []
    for indices in torch.arange(len(truth)).split(8):
        pixels = torch.randint(256, (len(indices), 3, 64, 96), dtype=torch.uint8)
        batches.append(Batch((pixels, torch.tensor([[64, 90]] * len(indices)), indices), len(indices), len(truth)))
    with torch.no_grad():
        part, empty = task.predict(net, batches), task.predict(net, [])
    assert (len(empty), empty.mask) == (0, [])
    assert len(part) == len(part.mask) > 0
    quality = task.score([part, empty])
    assert quality.keys() == {"BBOX", "SEGM"}
    assert all(0 <= value < 0.1 for value in quality.values())
    assert task.score([empty]) == {"BBOX": 0.0, "SEGM": 0.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 0.0},
        {"momentum": 1.0},
        {"warmup_samples": -1},
        {"warmup_factor": 0.0},
        {"lr_milestone_samples": [2, 1]},
        {"lr_milestone_samples": [1]},
        {"width": 1},
        {"fpn_channels": 0},
        {"fpn_channels": 48},
        {"representation_size": 0},
    ],
)
def test_rejects_invalid_settings(changes):
    with pytest.raises(ValueError, match="must be"):
        workload(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"rpn_batch_size_per_image": 0},
        {"box_batch_size_per_image": 3},
        {"positive_fraction": 1.5},
        {"eval_proposals": 0},
    ],
)
def test_rejects_invalid_sampling(changes):
    with pytest.raises(ValueError, match="must be"):
        SamplingSettings(**changes)
    node = {"learning_rate": 1.0, "warmup_samples": 0, "lr_milestone_samples": [1, 2], "sampling": changes}
    with pytest.raises(ConfigurationError, match=r"recipe.training: sampling numbers must be"):
        build_settings(InstanceSegmentation, node, "recipe.training")


@pytest.mark.parametrize("recipe", ["embedded", "mini", "mini_nwpu", "reference"])
def test_recipes_compose(compose, recipe):
    scale = recipe.split("_")[0]
    settings = validate(compose("workload=maskrcnn", f"scale={scale}", f"recipe=maskrcnn/{recipe}", "round=v07"))
    assert settings.recipe.target["v07"].keys() == {"BBOX", "SEGM"}
