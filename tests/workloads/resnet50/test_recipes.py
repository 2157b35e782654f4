"""Facts of the composed reference recipes: schedule, updates, evaluations, parameters (docs/workloads/resnet50.md)."""

import numpy as np
import pytest
import torch

from timetrial.runner.config.validation import build_settings, validate
from timetrial.runner.launch.train import training_plan
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.common.imagenet.synthetic import SyntheticImageNetData
from timetrial.workloads.resnet50.model import build_resnet
from timetrial.workloads.resnet50.workload import ResNet50

# recipe: (peak rate, epochs of warmup, end of the decay, updates an epoch, most epochs)
RECIPES = {
    "reference": (7.4, 2, 37, 786, 39),
    "reference_3264": (10.5, 2, 37, 393, 39),
    "reference_256": (0.512, 5, 45, 5005, 47),
}


@pytest.mark.parametrize(("name", "facts"), RECIPES.items())
def test_schedule_updates_and_evaluations(compose, name, facts):
    peak, warmup, end, updates, most = facts
    config = validate(compose("workload=resnet50", f"recipe=resnet50/{name}", "data=synthetic"))
    recipe = config.recipe
    data = SyntheticImageNetData(
        build_settings(SyntheticImageNetData, recipe.data, "recipe.data"),
        global_batch_size=recipe.global_batch_size,
        sharding=BatchSharding(),
        device=torch.device("cpu"),
        seeds=seeds.derive_streams(1),
    )
    assert (data.train_size, data.eval_size, data.steps_per_epoch) == (1_281_167, 50_000, updates)
    task = ResNet50(build_settings(ResNet50, recipe.training, "recipe.training"), data)
    step = np.arange(most * updates)
    # MLPerf's rules: linear from 0, then (peak - 1e-4) (1 - t / (decay + 1))^2 + 1e-4 over `decay` updates.
    decay = (end - warmup) * updates
    falling = (peak - 1e-4) * (1 - np.minimum((step - warmup * updates) / (decay + 1), 1)) ** 2 + 1e-4
    expected = np.where(step < warmup * updates, peak * step / (warmup * updates), falling)
    np.testing.assert_allclose([task.learning_rate(int(number), updates) for number in step], expected, rtol=1e-9)
    plan, epoch, evaluated = training_plan(config), 0, []
    while epoch < plan.max_epochs:
        epoch += min(plan.epochs_until_eval(epoch), plan.max_epochs - epoch)
        evaluated.append(epoch)
    assert evaluated == list(range(3, most + 1, 4))
    assert evaluated[-1] == most > end


def test_network_has_the_reference_parameters():
    with torch.device("meta"):
        network = build_resnet([3, 4, 6, 3], 1000)
    assert sum(weight.numel() for weight in network.parameters()) == 25_557_032
