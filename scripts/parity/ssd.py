"""SSD: `retired_benchmarks/ssd-v1` of the references, from the same random backbone as timetrial."""

from pathlib import Path
from typing import Any

import torch

from timetrial.runner.config.schema import Config

from . import stubs
from .curves import Recorder, eval_epochs, recipe_settings

DEFAULTS = (
    "workload=ssd", "recipe=ssd/mini", "precision=tf32", "recipe.max_epochs=30", "recipe.eval_every_epochs=5",
)  # fmt: skip


def prepare(folder: Path) -> list[str]:
    """Write a backbone with random weights, the same whenever it is written; return the override that loads it."""
    from torchvision.models import resnet34

    torch.manual_seed(0)
    path = folder / "resnet34.pth"
    torch.save(resnet34().state_dict(), path)
    return [f"+recipe.training.backbone={path}"]


def train_reference(config: Config, checkout: Path, seed: int, folder: Path, recorder: Recorder) -> None:
    """Train the reference on the recipe's images, linked under the names of COCO."""
    source = stubs.find_folder(checkout, ["retired_benchmarks/ssd-v1/ssd", "single_stage_detector/ssd"])
    (training, data), batch = recipe_settings(config), config.recipe.global_batch_size
    (folder / "annotations").mkdir()
    for split in ("train", "val"):
        annotations, images = getattr(data, f"{split}_annotations"), getattr(data, f"{split}_images")
        (folder / "annotations" / f"instances_{split}2017.json").symlink_to(Path(annotations).resolve())
        (folder / f"{split}2017").symlink_to(Path(images).resolve())
    stubs.install_packages()
    if config.precision.name == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    warmup_steps = round(training.warmup_samples / batch)
    options = (
        "--data", folder, "--pretrained-backbone", Path(training.backbone).resolve(), "--seed", seed,
        "--epochs", config.recipe.max_epochs, "--batch-size", batch, "--lr", training.learning_rate * 32 / batch,
        # Batches of one image: the reference drops a whole batch if nothing is detected in one of its images.
        "--val-batch-size", 1, "--val-interval", 0, "--val-epochs", *eval_epochs(config), "--threshold", 2,
        "--lr-decay-schedule", *training.lr_milestones, "--log-interval", 0, "--no-save",
        "--warmup", 1, "--warmup-factor", training.warmup_factor,
        "--weight-decay", training.weight_decay,
    )  # fmt: skip
    with stubs.arguments(source, *options):
        _train(config, seed, warmup_steps, recorder)


def _train(config: Config, seed: int, warmup_steps: int, recorder: Recorder) -> None:
    """Run the reference's training; its loss and its evaluation are observed.

    It draws all from one generator. `seeds.initialization` and `seeds.data_order` seed it before and after the model is
    built, as they seed a stream of timetrial.
    """
    import train  # type: ignore[import-not-found]

    forward, evaluate, decode, warm_up = (
        train.Loss.forward,
        train.coco_eval,
        train.Encoder.decode_batch,
        train.lr_warmup,
    )

    def observe_loss(self: Any, *inputs: Any) -> Any:
        loss = forward(self, *inputs)
        recorder.step(loss)
        return loss

    def observe_quality(*_: Any, key: str = "", value: Any = None, metadata: Any = None, **__: Any) -> None:
        if key == "EVAL_ACCURACY":
            recorder.evaluated(metadata["EPOCH_NUM"], value)

    def observe_evaluation(model: Any, *inputs: Any, **options: Any) -> bool:
        try:
            evaluate(model, *inputs, **options)
        except IndexError:  # of an empty list of detections
            recorder.evaluated(inputs[5], 0.0)
            model.train()
        return False

    def decode_on_cpu(self: Any, boxes: Any, scores: Any, *inputs: Any, **options: Any) -> Any:
        # The labels are made on the CPU and indexed by tensors of the scores' device, which PyTorch now refuses.
        return decode(self, boxes.cpu(), scores.cpu(), *inputs, **options)

    def warm_up_exactly(optimizer: Any, _: int, step: int, rate: float, args: Any) -> None:
        warm_up(optimizer, warmup_steps, step, rate, args)

    build_model, seeds = train.SSD300, config.seeds

    def build_seeded_model(*inputs: Any, **options: Any) -> Any:
        if seeds.initialization is not None:
            torch.manual_seed(seeds.initialization)
        model = build_model(*inputs, **options)
        if seeds.initialization is not None or seeds.data_order is not None:
            torch.manual_seed(seed if seeds.data_order is None else seeds.data_order)
        return model

    train.SSD300 = build_seeded_model
    train.Loss.forward, train.Encoder.decode_batch = observe_loss, decode_on_cpu
    train.ssd_print, train.coco_eval = observe_quality, observe_evaluation
    train.lr_warmup = warm_up_exactly
    train.main()
