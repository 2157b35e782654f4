"""Images that a GPU decodes and crops."""

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.imagenet.torch_loader import TorchImageNetData
from timetrial.workloads.common.vision import nvjpeg

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("decoder", ["gpu", "workers"])
def test_images_decoded_on_the_gpu_equal_those_of_the_cpu(tmp_path, decoder):
    """Without chroma subsampling, so that decoders agree; one image is progressive, which hardware decoders reject."""
    generator = np.random.default_rng(1)
    for number in range(70):
        small = Image.fromarray(generator.integers(256, size=(6, 8, 3), dtype=np.uint8))
        path = tmp_path / ("train" if number < 60 else "val") / str(number % 2) / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = small.resize(
            (int(generator.integers(90, 300)), int(generator.integers(90, 300))), Image.Resampling.BICUBIC
        )
        image.save(path, quality=95, subsampling=0, progressive=number == 7)
    datasets = []
    for kind, chosen_decoder in (("cuda:0", decoder), ("cpu", None)):
        settings = TorchImageNetData.Settings(
            str(tmp_path),
            cache_dir=str(tmp_path / "prepared"),
            image_size=64,
            eval_batch_size=7,
            workers=2,
            decoder=chosen_decoder,
        )
        TorchImageNetData.prepare_data(settings, lambda *progress: None)
        data = TorchImageNetData(
            settings,
            global_batch_size=16,
            sharding=BatchSharding(),
            device=torch.device(kind),
            seeds=seeds.derive_streams(1),
        )
        data.open()
        datasets.append(data)
    batches = [[*itertools.chain(*data.train_batches(1)), *data.eval_batches()] for data in datasets]
    for on_gpu, on_cpu in zip(*batches, strict=True):
        assert torch.equal(on_gpu.inputs[1].cpu(), on_cpu.inputs[1])
        difference = (on_gpu.inputs[0].cpu().float() - on_cpu.inputs[0].float()).abs()
        assert difference.mean() < (1 if decoder == "gpu" else 1e-9)
        assert difference.amax((1, 2, 3)).max() < 40


def test_jpeg_engines_interpolate_chroma_samples():
    """As Pillow does; repeating them would be 1 to 3 of 255 away."""
    device = torch.device("cuda", 0)
    try:
        engines = nvjpeg.Engines(device)
    except (OSError, AttributeError, RuntimeError):
        pytest.skip("no JPEG engines here")
    generator, files, images = np.random.default_rng(1), [], []
    for width, height in ((160, 96), (99, 131), (64, 64)):
        small = Image.fromarray(generator.integers(256, size=(9, 11, 3), dtype=np.uint8))
        file = io.BytesIO()
        small.resize((width, height), Image.Resampling.BICUBIC).save(file, "jpeg", quality=90, subsampling="4:2:0")
        files.append(file.getvalue())
        images.append(torch.from_numpy(np.array(Image.open(file).convert("RGB"))).permute(2, 0, 1))
    data = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)
    sizes = torch.tensor([image.shape[1:] for image in images], dtype=torch.int32)
    planes, offsets = engines.decode(data, torch.tensor([len(file) for file in files]), sizes)
    torch.cuda.synchronize(device)
    for image, offset in zip(images, offsets.tolist(), strict=True):
        decoded = planes[offset : offset + image.numel()].view(image.shape).cpu()
        assert (decoded.float() - image.float()).abs().mean() < 0.1


@pytest.mark.parametrize("workload", ["resnet50", "ssd"])
def test_dali_makes_the_batches_of_our_decoder(build_on_accelerator, workload):
    """The same images, crops and flips; pixels differ as decoders and filters do."""
    pytest.importorskip("nvidia.dali")
    batches = {}
    for loader in ("torch", "dali"):
        engine = build_on_accelerator(f"workload={workload}", f"data={loader}")
        steps = itertools.islice(engine.data.train_batches(1), 5)
        some = [batch.inputs for batch in (*itertools.chain(*steps), *engine.data.eval_batches())]
        batches[loader] = [[tensor.cpu() for tensor in inputs] for inputs in some]
    apart = []
    for ours, dalis in zip(batches["torch"], batches["dali"], strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours[1:], dalis[1:], strict=True))
        apart.append((ours[0].double() - dalis[0].double()).abs().mean((1, 2, 3)))
        assert (ours[0].double() - dalis[0].double().flip(3)).abs().mean() > 5  # the other way round
    assert torch.cat(apart).mean() < 0.5
    assert torch.cat(apart).max() < 2
