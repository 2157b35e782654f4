"""CIFAR-10: published network sizes, learning rate schedules, and batches gathered on the device."""

import copy
import json

import numpy as np
import pytest
import torch

from timetrial.datasets.formats import cifar
from timetrial.datasets.synthetic.images import ClassificationSpec
from timetrial.runner.config.validation import validate
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.cifar10.data import CIFAR10Data
from timetrial.workloads.cifar10.networks import MEAN, NETWORKS, STD, Whitening
from timetrial.workloads.cifar10.workload import Cifar10


class Sizes:
    num_classes = 10

    def __init__(self, batch_size):
        self.global_batch_size = batch_size


def data(folder, *, sharding=None, opened=True, **changes):
    settings = CIFAR10Data.Settings(str(folder), ClassificationSpec(3, 20, 5, 32), str(folder / "prepared"), **changes)
    CIFAR10Data.prepare_data(settings, lambda *progress: None)
    data = CIFAR10Data(
        settings,
        global_batch_size=16,
        sharding=sharding or BatchSharding(),
        device=torch.device("cpu"),
        seeds=seeds.derive_streams(1),
    )
    if opened:
        data.open()
    return data


def read_images(folder, names):
    """Return pixels [N, 32, 32, 3] and classes of the files."""
    pixels, labels = cifar.split(cifar.read(folder, names))
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), labels


def settings(**changes):
    return Cifar10.Settings(**{"network": "cnn10", "learning_rate": 0.1, "weight_decay": 0.0} | changes)


@pytest.mark.parametrize(
    ("name", "millions"), [("cnn10", 1.9), ("wrn28_10", 36.5), ("resnet9", 6.6), ("airbench", 2.0)]
)
def test_networks_have_their_published_size(name, millions):
    with torch.device("meta"):
        network = NETWORKS[name](10)
    assert sum(weight.numel() for weight in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_normalize_pixels(name):
    network = NETWORKS[name](10, 4).eval()
    pixels = torch.tensor(MEAN).round().to(torch.uint8).view(1, 3, 1, 1).expand(2, 3, 32, 32)
    assert network(pixels).shape == (2, 10)
    inputs = []
    network.body.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    network(pixels)
    assert inputs[0].abs().max() < 0.01


def test_learning_rate_is_proportional_to_the_batch_and_decays_at_milestones():
    for batch_size in (128, 2048):
        workload = Cifar10(settings(lr_milestones=[50, 80]), Sizes(batch_size))
        optimizer, schedule = workload.build_optimizer(torch.nn.Linear(2, 2), 10)
        rates = []
        for _ in range(1000):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        peak = 0.1 * batch_size / 128
        assert [rates[step] for step in (0, 499, 500, 799, 800)] == pytest.approx(
            [peak, peak, peak / 10, peak / 10, peak / 100]
        )


def test_learning_rate_rises_and_falls_linearly():
    workload = Cifar10(settings(warmup_epochs=5, end_epoch=24), Sizes(128))
    assert [workload.lr_factor(epochs) for epochs in (0, 2.5, 5, 14.5, 24, 30)] == [0, 0.5, 1, 0.5, 0, 0]


def test_epoch_has_every_image_once_for_any_number_of_ranks(tmp_path):
    single_rank = data(tmp_path, crop_padding=0)
    pixels, labels = read_images(single_rank.folder, cifar.TRAIN_FILES)
    known = {image.tobytes() for image in pixels} | {image[:, ::-1].tobytes() for image in pixels}
    steps = list(single_rank.train_batches(1))
    assert [len(step[0].inputs[1]) for step in steps] == [16, 16, 16, 16]
    trained = torch.cat([step[0].inputs[1] for step in steps])
    assert sorted(trained[:60].tolist()) == sorted(labels.tolist())
    assert trained[60:].tolist() == trained[:4].tolist()
    for step in steps:
        images = step[0].inputs[0].permute(0, 2, 3, 1).numpy()
        assert all(np.ascontiguousarray(image).tobytes() in known for image in images)
    shardings = [BatchSharding(rank, 2, 2) for rank in range(2)]
    parts = [list(data(tmp_path, crop_padding=0, sharding=sharding).train_batches(1)) for sharding in shardings]
    for number, step in enumerate(steps):
        joined = torch.cat([batch.inputs[0] for part in parts for batch in part[number]])
        assert torch.equal(joined, step[0].inputs[0])
    next_epoch = next(iter(single_rank.train_batches(2)))[0].inputs[0]
    assert not torch.equal(next_epoch, steps[0][0].inputs[0])


@pytest.mark.parametrize("reflect", [False, True])
def test_crops_are_shifts_of_the_padded_image(tmp_path, reflect):
    shifted = data(tmp_path, crop_padding=2, reflect_padding=reflect)
    images, _ = read_images(shifted.folder, cifar.TRAIN_FILES)
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)), "reflect" if reflect else "constant")
    windows = {
        window.tobytes()
        for image in padded
        for flipped in (image, image[:, ::-1])
        for row in range(5)
        for column in range(5)
        for window in [np.ascontiguousarray(flipped[row : row + 32, column : column + 32])]
    }
    crops = next(iter(shifted.train_batches(1)))[0].inputs[0].permute(0, 2, 3, 1).numpy()
    assert all(np.ascontiguousarray(image).tobytes() in windows for image in crops)


def test_alternate_flips_mirror_each_image_in_every_second_epoch(tmp_path):
    alternating = data(tmp_path, crop_padding=0, alternate_flips=True)
    pixels, _ = read_images(alternating.folder, cifar.TRAIN_FILES)
    numbers = {image.tobytes(): number for number, image in enumerate(pixels)}

    def unflipped(epoch):
        images = torch.cat([step[0].inputs[0] for step in alternating.train_batches(epoch)]).permute(0, 2, 3, 1)
        return {
            numbers[image] for image in (each.numpy().tobytes() for each in images.contiguous()) if image in numbers
        }

    first = unflipped(1)
    assert 0 < len(first) < len(pixels)
    assert unflipped(2) == set(range(len(pixels))) - first
    assert unflipped(3) == first


def test_cutout_covers_one_square_with_the_mean(tmp_path):
    plain, covered = (next(iter(data(tmp_path, cutout_size=size).train_batches(1)))[0].inputs[0] for size in (0, 6))
    mean = torch.tensor(MEAN).to(torch.uint8).view(3, 1, 1)
    for before, after in zip(plain, covered, strict=True):
        changed = (before != after).any(0).nonzero()
        assert 0 < len(changed) <= 36
        (top, left), (bottom, right) = changed.min(0).values, changed.max(0).values
        assert bottom - top < 6
        assert right - left < 6
        assert torch.equal(after[:, changed[:, 0], changed[:, 1]], mean[:, :, 0].expand(3, len(changed)))


def test_evaluation_has_every_image_once(tmp_path):
    single_rank = data(tmp_path, eval_batch_size=4)
    images, labels = read_images(single_rank.folder, cifar.VAL_FILES)
    for ranks in (1, 2, 3):
        batches = [
            batch
            for rank in range(ranks)
            for batch in data(tmp_path, sharding=BatchSharding(rank, ranks), eval_batch_size=4).eval_batches()
        ]
        pixels = torch.cat([batch.inputs[0] for batch in batches]).permute(0, 2, 3, 1)
        assert np.array_equal(pixels.numpy(), images)
        assert torch.cat([batch.inputs[1] for batch in batches]).tolist() == labels.tolist()


def test_whitening_makes_patches_uncorrelated():
    generator = np.random.default_rng(1)
    colors = generator.integers(256, size=(50, 9, 9, 1), dtype=np.uint8)
    pixels = np.clip(colors + generator.integers(-40, 40, (50, 9, 9, 3)), 0, 255).astype(np.uint8)
    whitening = Whitening()
    whitening.fit(torch.from_numpy(pixels))
    normalized = (torch.from_numpy(pixels).permute(0, 3, 1, 2) - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(
        STD
    ).view(3, 1, 1)
    whitening.bias.data.zero_()
    projections = whitening(normalized).transpose(0, 1).flatten(1).double()
    torch.testing.assert_close(projections[:12], -projections[12:])
    moments = projections[:12] @ projections[:12].T / projections.shape[1]
    torch.testing.assert_close(moments, torch.eye(12, dtype=torch.float64), rtol=0, atol=0.02)


def airbench(data):
    """A newly built network for `data`, and its whitening layer."""
    torch.manual_seed(1)
    model = Cifar10(settings(network="airbench", end_epoch=2, width=4), data).build_model()
    return model, next(module for module in model.modules() if isinstance(module, Whitening))


def test_whitening_is_fitted_in_place_to_the_training_images_when_they_are_opened(tmp_path):
    unopened = data(tmp_path, crop_padding=2, opened=False)
    _, whitening = airbench(unopened)
    initial, address = whitening.filters.clone(), whitening.filters.data_ptr()
    pixels, _ = read_images(unopened.folder, cifar.TRAIN_FILES)
    expected = Whitening()
    expected.fit(torch.from_numpy(pixels))
    assert not torch.equal(initial, expected.filters)
    unopened.open()
    assert torch.equal(whitening.filters, expected.filters)
    assert whitening.filters.data_ptr() == address  # where captured steps read them


def test_warm_up_fits_without_the_data_and_leaves_no_trace(tmp_path, monkeypatch):
    unopened = data(tmp_path, opened=False)
    model, whitening = airbench(unopened)
    initial, fitted = whitening.filters.clone(), []
    monkeypatch.setattr(unopened, "fit", lambda pixels: [fitted.append(len(pixels)), whitening.fit(pixels)])
    state = copy.deepcopy(model.state_dict())
    list(unopened.warm_up_steps())
    assert fitted == [60]
    assert not torch.equal(whitening.filters, initial)
    model.load_state_dict(state)  # as the engine does after its warm-up
    unopened.open()
    assert fitted == [60, 60]
    pixels, _ = read_images(unopened.folder, cifar.TRAIN_FILES)
    expected = Whitening()
    expected.fit(torch.from_numpy(pixels))
    assert torch.equal(whitening.filters, expected.filters)


def test_all_ranks_fit_equal_filters(tmp_path):
    filters = []
    for rank in range(2):
        part = data(tmp_path, sharding=BatchSharding(rank, 2), opened=False)
        _, whitening = airbench(part)
        part.open()
        filters.append(whitening.filters)
    assert torch.equal(*filters)


def test_filters_of_a_checkpoint_are_kept(tmp_path):
    first = data(tmp_path, opened=False)
    model, whitening = airbench(first)
    first.open()
    whitening.filters.mul_(2)
    resumed = data(tmp_path, opened=False)
    resumed_model, resumed_whitening = airbench(resumed)
    resumed_model.load_state_dict(model.state_dict())
    resumed.open()
    assert torch.equal(resumed_whitening.filters, whitening.filters)


def test_manifest_holds_nothing_but_sizes(tmp_path):
    data(tmp_path)
    (manifest,) = (tmp_path / "prepared").glob("*.manifest.json")
    assert json.loads(manifest.read_text()) == {"train_size": 60, "eval_size": 15}


def test_views_are_mirrored_and_shifted_images():
    pixels = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)

    class Model(torch.nn.Module):
        def forward(self, images):
            places = torch.arange(3 * 32 * 32).view(3, 32, 32)
            return torch.stack([(images * (places % prime)).double().mean((1, 2, 3)) for prime in (7, 11)], 1)

    def average(images):
        return (Model()(images) + Model()(images.flip(-1))) / 2

    padded = torch.nn.functional.pad(pixels.float(), [1] * 4, "reflect").to(torch.uint8)
    shifted = (average(padded[:, :, :32, :32]) + average(padded[:, :, 2:, 2:])) / 2
    expected = {1: Model()(pixels), 2: average(pixels), 6: (average(pixels) + shifted) / 2}
    for views, logits in expected.items():
        workload = Cifar10(settings(end_epoch=2, eval_views=views), Sizes(128))
        torch.testing.assert_close(workload.classify(Model(), pixels), logits)


def test_airbench_recipe_trains_filters_by_muon_and_freezes_the_scale_of_batch_norms(compose):
    config = validate(compose("workload=cifar10", "recipe=cifar10/mini_airbench"))
    sizes = Sizes(config.recipe.global_batch_size)
    workload = Cifar10(Cifar10.Settings(**config.recipe.training), sizes)
    model = workload.build_model()
    optimizer, schedule = workload.build_optimizer(model, 25)
    filters, others = optimizer.param_groups
    assert (filters["lr"], len(filters["params"])) == (0.24, 6)
    assert others["lr"] == pytest.approx(0.053 * 2000)
    assert others["lr"] * others["weight_decay"] == pytest.approx(0.004, rel=1e-3)
    trained = {id(param) for group in optimizer.param_groups for param in group["params"]}
    frozen = {name for name, param in model.named_parameters() if id(param) not in trained}
    assert len(frozen) == 6
    assert all(name.endswith("weight") for name in frozen)
    for _ in range(100):
        optimizer.step()
        schedule.step()
    assert filters["lr"] == pytest.approx(0.12)


def test_reference_recipe_composes_with_the_studys_batch_sizes(compose):
    for batch_size in (128, 2048):
        override = f"recipe.global_batch_size={batch_size}"
        node = compose("workload=cifar10", "scale=reference", "model=wrn28_10", override)
        config = validate(node)
        assert (config.recipe.max_epochs, config.recipe.training["lr_milestones"]) == (100, [50, 80])
