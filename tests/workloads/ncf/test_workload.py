"""The NCF workload: size, hyperparameters, score, and the embedded target against trivial baselines."""

import numpy as np
import pytest
import torch

from timetrial.datasets.formats import movielens
from timetrial.runner.config.validation import build_settings, validate
from timetrial.runner.launch.build_engine import build_engine
from timetrial.runner.training.distributed import World
from timetrial.runner.training.workload import Batch
from timetrial.workloads.ncf import sampling
from timetrial.workloads.ncf.workload import NCF


class DataSizes:
    num_users, num_items = 138_493, 26_744
    own_users = range(138_493)


def reference_workload(compose):
    node = validate(compose("scale=reference"))
    return NCF(build_settings(NCF, node.recipe.training, ""), DataSizes())


def test_parameter_count_equals_the_reference(compose):
    with torch.device("meta"):
        model = reference_workload(compose).build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 31_832_577


def test_mlperf_params_are_the_published_hyperparameters(compose):
    params = reference_workload(compose).mlperf_params()
    assert (params["opt_name"], params["opt_base_learning_rate"], params["opt_adam_epsilon"]) == ("adam", 0.0045, 1e-8)
    assert (params["opt_adam_beta_1"], params["opt_adam_beta_2"]) == (0.25, 0.5)


def test_score_sums_over_ranks(compose):
    assert reference_workload(compose).score([(3, 10), (1, 10), (0, 20)]) == {"hit_rate": 0.1}


def test_hit_rate_of_best_and_worst_scores(compose):
    class ConstantModel(torch.nn.Module):
        positive_score = 1.0

        def scores(self, users, items):
            scores = torch.zeros(items.shape)
            scores[:, -1] = self.positive_score
            return scores

    workload = reference_workload(compose)
    batch = Batch((torch.arange(4), torch.arange(80).view(4, 20), torch.ones(4, 19, dtype=torch.bool)), 4, 4)
    import timetrial.workloads.ncf.workload as module

    original, module.NeuMF = module.NeuMF, ConstantModel
    try:
        assert workload.score([workload.predict(ConstantModel(), [batch])]) == {"hit_rate": 1.0}
        worst = ConstantModel()
        worst.positive_score = 0.0  # a tie ranks the positive last
        assert workload.score([workload.predict(worst, [batch])]) == {"hit_rate": 0.0}
    finally:
        module.NeuMF = original


def test_embedded_target_exceeds_trivial_baselines(compose, tmp_path):
    settings = validate(compose(f"data_dir={tmp_path}"))
    target = settings.recipe.target["v05"]["hit_rate"]
    engine = build_engine(settings, World(), torch.device("cpu"))
    engine.open_data()
    untrained = engine.evaluate().quality["hit_rate"]
    split = movielens.read_split(next((tmp_path / "prepared").glob("*.npz")))
    popularity = torch.from_numpy(np.bincount(split.items, minlength=split.num_items))
    hits = sum(
        int(sampling.count_hits(popularity[items], mask))
        for _, items, mask in (batch.inputs for batch in engine.data.eval_batches())
    )
    popular = hits / split.num_users
    assert untrained < 0.1
    assert popular < 0.2
    assert target > 2 * popular


@pytest.mark.integration
def test_ratings_are_opened_after_the_clock_has_started(data_files_opened_before_run_start):
    assert data_files_opened_before_run_start(["workload=ncf"]) == []
