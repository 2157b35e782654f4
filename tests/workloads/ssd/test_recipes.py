"""Facts of the composed reference recipe: schedule, updates, evaluations, parameters (docs/workloads/ssd.md)."""

import numpy as np
import torch

from timetrial.runner.config.validation import build_settings, validate
from timetrial.runner.launch.train import training_plan
from timetrial.runner.training import seeds
from timetrial.runner.training.workload import BatchSharding
from timetrial.workloads.ssd.model import SSD
from timetrial.workloads.ssd.synthetic import SyntheticSSDData
from timetrial.workloads.ssd.workload import SingleShotDetection


def test_schedule_updates_and_evaluations(compose):
    config = validate(compose("workload=ssd", "scale=reference", "data=synthetic"))
    recipe = config.recipe
    data = SyntheticSSDData(
        build_settings(SyntheticSSDData, recipe.data, "recipe.data"),
        global_batch_size=recipe.global_batch_size,
        sharding=BatchSharding(),
        device=torch.device("cpu"),
        seeds=seeds.derive_streams(1),
    )
    assert (data.train_size, data.eval_size, data.steps_per_epoch) == (117_266, 4_952, 115)
    task = SingleShotDetection(build_settings(SingleShotDetection, recipe.training, "recipe.training"), data)
    step = np.arange(70 * 115)
    expected = 0.08 * np.minimum(step / 300, 1) * 0.1 ** ((step >= 40 * 115).astype(int) + (step >= 50 * 115))
    rates = [recipe.training["learning_rate"] * task.lr_factor(int(number), 115) for number in step]
    np.testing.assert_allclose(rates, expected, rtol=1e-9, atol=1e-15)
    # int(2.619685 epochs of 117,266 / 1,024 updates) = 299 updates of warmup in the reference's code
    reference = 0.08 * np.minimum(step / 299, 1)
    assert 2.5e-4 < np.abs(np.minimum(step / 300, 1) * 0.08 - reference).max() < 2.7e-4
    plan, epoch, evaluated = training_plan(config), 0, []
    while epoch < plan.max_epochs:
        epoch += plan.epochs_until_eval(epoch)
        evaluated.append(epoch)
    assert evaluated == [40, 50, 55, 60, 65, 70]  # rules v0.7


def test_network_has_the_reference_parameters():
    network = SSD(81, 300, 64)
    assert sum(weight.numel() for weight in network.parameters()) == 19_972_534
