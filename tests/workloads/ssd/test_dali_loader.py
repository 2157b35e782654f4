"""SSD's images by NVIDIA DALI against data=torch: the same order, boxes and colors, nearly the same pixels."""

import itertools
import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from rich.console import Console

from timetrial.datasets.synthetic.detection import DetectionSpec
from timetrial.runner.core.errors import ConfigurationError, DataError, Exit
from timetrial.runner.launch.run import launch
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.ssd import color_jitter
from timetrial.workloads.ssd.dali_loader import DaliSSDData
from timetrial.workloads.ssd.data import SSDData

LOADERS = {"torch": SSDData, "dali": DaliSSDData}
WHOLE = BatchSharding()
dali = pytest.mark.skipif(not find_spec("nvidia") or not find_spec("nvidia.dali"), reason="needs NVIDIA DALI")


def build(place, loader, sharding=WHOLE, workers=0):
    """32 and 9 photographs, of which some are smaller than the network's square and most are larger."""
    kind = LOADERS[loader]
    settings = kind.Settings(
        train_images=f"{place}/scenes/train", cache_dir=f"{place}/prepared", image_size=96, workers=workers,
        generate=DetectionSpec(
            num_train=32, num_val=9, num_classes=3, max_objects=3, width_range=(90, 300), height_range=(80, 250), seed=5
        ),
        eval_batch_size=4,
    )  # fmt: skip
    device = torch.device("cpu")
    kind.prepare_data(settings, lambda *progress: None)
    data = kind(settings, global_batch_size=8, sharding=sharding, device=device, seeds=seeds.derive_streams(3))
    data.open()
    return data


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("scenes")


def tensors(batches):
    return [torch.cat(parts) for parts in zip(*(batch.inputs for batch in batches), strict=True)]


@dali
def test_loaders_make_the_same_batches(place):
    """Pixels differ, as decoders and roundings do: measured 0.18 of 255 on average, 0.31 in an image, 13 in a pixel."""
    torchs, dalis = build(place, "torch"), build(place, "dali", workers=1)
    for parts in (
        lambda data: itertools.chain(*data.train_batches(1), *data.train_batches(2)),
        lambda data: data.eval_batches(),
    ):
        mine, theirs = tensors(parts(torchs)), tensors(parts(dalis))
        assert len(mine[0]) > 8
        assert all(torch.equal(one, other) for one, other in zip(mine[1:], theirs[1:], strict=True))
        apart = (mine[0].double() - theirs[0].double()).abs()
        assert apart.mean() < 0.25
        assert apart.mean((1, 2, 3)).max() < 0.5
        assert apart.max() < 32
        assert (mine[0].double() - theirs[0].double().flip(3)).abs().mean((1, 2, 3)).min() > 1  # another image


@dali
def test_color_jitter_is_torchvisions_in_every_order():
    from nvidia.dali import fn, pipeline_def

    from timetrial.workloads.ssd import dali_color_jitter

    order = np.array(list(itertools.permutations(range(4))))
    generator = np.random.default_rng(1)
    pixels = generator.integers(256, size=(len(order), 29, 27, 3), dtype=np.uint8)
    pixels[:, :4] = pixels[:, :4, :, :1]  # grays
    pixels[:, 4:6, :, 1] = pixels[:, 4:6, :, 2]  # two colors equally high or low
    pixels[:, 6] = generator.integers(2, size=(27, 3)) * 255
    factors = [color_jitter.jitter_factors(generator)[0] for _ in order]
    factors[3], factors[7], factors[20] = (1.0, 1.0, 1.0, 0.0), (0.0, 2.0, 2.0, 0.5), (1.0, 1.5, 0.0, -0.5)

    @pipeline_def(
        batch_size=len(order), num_threads=1, device_id=None, prefetch_queue_depth=1, enable_conditionals=True
    )
    def jitter():
        names = ("pixels", "factors", "order")
        return dali_color_jitter.jitter(*(fn.external_source(name=name) for name in names))

    pipeline = jitter()
    for whole in (True, False):  # then an image alone, for which most branches have none
        some = slice(None) if whole else slice(5, 6)
        pipeline.feed_input("pixels", list(pixels[some]))
        pipeline.feed_input("factors", list(np.array(factors, np.float32)[some]))
        pipeline.feed_input("order", list(order[some]))
        found = np.array(pipeline.run()[0].as_tensor()).astype(int)
        drawn = zip(torch.from_numpy(pixels[some]), factors[some], order[some].tolist(), strict=True)
        apart = np.abs(found - torch.stack([color_jitter.jitter_image(*each) for each in drawn]).numpy())
        assert (apart > 0).mean() < 1e-3  # what lies on a whole number is rounded either way
        assert apart.max() <= 3
    assert (found != pixels[some]).mean() > 0.8


@dali
def test_ranks_micro_batches_and_workers_split_the_same_global_batches(place):
    whole = [tensors(step) for step in build(place, "dali").train_batches(2)]
    split = [build(place, "dali", BatchSharding(rank, 2, 2), workers=rank) for rank in range(2)]
    for step, *parts in zip(whole, *(data.train_batches(2) for data in split), strict=True):
        together = tensors(itertools.chain(*parts))
        assert all(torch.equal(one, other) for one, other in zip(step, together, strict=True))


@dali
def test_every_image_is_evaluated_once(place):
    size = build(place, "dali").eval_size
    for ranks in (1, 2):
        shares = [build(place, "dali", BatchSharding(rank, ranks)).eval_batches() for rank in range(ranks)]
        assert sorted(torch.cat([b.inputs[1] for share in shares for b in share]).tolist()) == list(range(size))


def invalid_tables(data):
    """Return a JPEG with valid ends, but with a Huffman table that every decoder rejects."""
    at = data.index(b"\xff\xc4") + 5
    return data[:at] + b"\xff" * 16 + data[at + 16 :]


@dali
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("damage", [lambda data: data[:400], invalid_tables, lambda _: b"no image"])
def test_bad_image_has_the_message_of_the_other_loader(tmp_path, damage, workers):
    loaders = [build(tmp_path, loader, workers=workers) for loader in LOADERS]
    victim = loaders[0].train_set.path(3)
    victim.write_bytes(damage(victim.read_bytes()))
    messages = []
    for data in loaders:
        with pytest.raises(DataError, match=rf"^{victim} cannot be decoded") as caught:
            list(data.train_batches(1))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.integration
@dali
def test_first_losses_of_the_embedded_recipe_are_those_of_the_other_loader(build_engine, tmp_path):
    losses = []
    for loader in LOADERS:
        engine = build_engine("workload=ssd", f"data={loader}", f"data_dir={tmp_path}")
        losses.append([])
        for batches in itertools.islice(engine.data.train_batches(1), 6):
            engine.train_step(batches)
            losses[-1].append(engine.synchronize().loss)
    # Pixels differ by a fraction of one, and each step carries that on.
    assert losses[1][0] == pytest.approx(losses[0][0], rel=0.01)
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert losses[1][-1] < losses[1][0]


@dali
def test_run_trains_and_logs_its_loader(compose, tmp_path):
    words = ["workload=ssd", "data=dali", "recipe.data.generate.num_train=48", "recipe.data.generate.num_val=8"]
    words += ["recipe.max_epochs=1", "recipe.first_eval_epoch=1", "launcher=inline"]
    words += [f"data_dir={tmp_path}", f"runs_dir={tmp_path}/runs"]
    result = launch(compose(*words), Console(quiet=True))
    assert result.exit_code == Exit.TARGET_NOT_REACHED
    lines = [
        json.loads(line.partition(" ")[2]) for line in result.run_dir.log.read_text().splitlines() if ":::MLLOG" in line
    ]
    facts = {line["key"]: line["value"] for line in lines}
    assert facts["timetrial_loader"] == "dali"
    assert facts["train_samples"] > 40


def test_missing_extra_is_named_with_its_install_command(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(ConfigurationError, match=r"data=dali needs .*pip install 'timetrial\[dali\]'"):
        build(place, "dali")
