"""NCF: `retired_benchmarks/ncf` of the references, which samples and shuffles with NumPy and ranks with topk."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from timetrial.datasets.formats import movielens
from timetrial.runner.config.schema import Config
from timetrial.workloads.ncf.data import NCFData

from . import stubs
from .curves import Recorder, recipe_settings

DEFAULTS = ("workload=ncf", "recipe=ncf/mini_1m", "precision=fp32", "recipe.max_epochs=12")


def train_reference(config: Config, checkout: Path, seed: int, folder: Path, recorder: Recorder) -> None:
    """Train the reference on the split of the recipe's ratings."""
    source = stubs.find_folder(checkout, ["retired_benchmarks/ncf", "recommendation/pytorch"])
    training, data = recipe_settings(config)
    split = movielens.read_split(NCFData._prepare(data))
    positives = np.stack([split.users, split.items], 1).astype(np.int64)
    held_out = np.stack([np.arange(split.num_users), split.held_out], 1).astype(np.int64)
    np.savez(folder / "trainx1x1_0.npz", positives)
    np.savez(folder / "testx1x1_0.npz", held_out)
    stubs.install_packages()
    stubs.install_gpu()
    scaling = ("--user_scaling", 1, "--item_scaling", 1, "--valid-negative", data.eval_negatives, "--seed", seed)
    with stubs.arguments(source, folder, *scaling):
        _convert(folder, split.num_items)
    options = (
        "--epochs", config.recipe.max_epochs, "--batch-size", config.recipe.global_batch_size,
        "--factors", training.mf_dim, "--layers", *training.mlp_layer_sizes,
        "--negative-samples", data.train_negatives, "--learning-rate", training.learning_rate,
        "--valid-negative", data.eval_negatives, "--seed", seed,
        "--cpu_dataloader", "--beta1", training.beta_1, "--beta2", training.beta_2, "--eps", training.epsilon,
    )  # fmt: skip
    with stubs.arguments(source, folder, *options):
        _train(recorder)


def _convert(folder: Path, num_items: int) -> None:
    """Prepare the reference's sampler, for all items: its own count leaves out items that are only held out."""
    import convert  # type: ignore[import-not-found]

    process_data = convert.process_data

    def process_all(**options: Any) -> Any:
        return process_data(**{**options, "num_items": num_items})

    convert.process_data = process_all
    convert.main()
    [path] = folder.glob("*cached_sampler.pkl")
    values = pickle.loads(path.read_bytes())
    values[3] = num_items
    path.write_bytes(pickle.dumps(values))


def _train(recorder: Recorder) -> None:
    """Run the reference's training; its traced loss and its evaluation are observed."""
    import ncf  # type: ignore[import-not-found]

    evaluate = ncf.val_epoch

    def observe_loss(function: Any, _: Any) -> Any:
        def loss(*inputs: torch.Tensor) -> torch.Tensor:
            values = function(*inputs)
            recorder.step(values.detach().mean())
            return values

        return loss

    def observe_evaluation(model: Any, users: Any, items: Any, masks: Any, *inputs: Any, **options: Any) -> Any:
        # PyTorch no longer takes masks of another type than bool.
        quality = evaluate(model, users, items, [mask.bool() for mask in masks], *inputs, **options)
        if options.get("epoch") is not None:
            recorder.evaluated(options["epoch"] + 1, quality[0])
        return quality

    torch.jit.trace, ncf.val_epoch = observe_loss, observe_evaluation
    ncf.main()
