"""NCF as a task: its size, its score, and that its embedded target means something."""

import numpy as np
import torch

from timetrial.datasets.formats import movielens
from timetrial.runner.config import schema
from timetrial.runner.launch import worker
from timetrial.runner.training.distributed import World
from timetrial.runner.training.workload import Batch
from timetrial.workloads.ncf import sampling
from timetrial.workloads.ncf.workload import NCF


class Sizes:
    num_users, num_items = 138_493, 26_744


def reference(compose):
    node = schema.check(compose("scale=reference"))
    return NCF(schema.settings_of(NCF, node.recipe.training, ""), Sizes())


def test_parameters_are_as_many_as_the_reference_has(compose):
    with torch.device("meta"):
        model = reference(compose).build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 31_832_577


def test_facts_are_the_published_hyperparameters(compose):
    facts = reference(compose).mlperf_params()
    assert (facts["opt_name"], facts["opt_base_learning_rate"], facts["opt_adam_epsilon"]) == ("adam", 0.0045, 1e-8)
    assert (facts["opt_adam_beta_1"], facts["opt_adam_beta_2"]) == (0.25, 0.5)


def test_scores_add_up_over_ranks(compose):
    assert reference(compose).score([(3, 10), (1, 10), (0, 20)]) == {"hit_rate": 0.1}


def test_perfect_and_worst_answers(compose):
    class Knows(torch.nn.Module):
        sign = 1.0

        def scores(self, users, items):
            scores = torch.zeros(items.shape)
            scores[:, -1] = self.sign
            return scores

    workload = reference(compose)
    batch = Batch((torch.arange(4), torch.arange(80).view(4, 20), torch.ones(4, 19, dtype=torch.bool)), 4, 4)
    import timetrial.workloads.ncf.workload as module

    original, module.NeuMF = module.NeuMF, Knows
    try:
        assert workload.score([workload.predict(Knows(), [batch])]) == {"hit_rate": 1.0}
        worst = Knows()
        worst.sign = 0.0  # every tie ranks the positive last
        assert workload.score([workload.predict(worst, [batch])]) == {"hit_rate": 0.0}
    finally:
        module.NeuMF = original


def test_the_embedded_target_is_beyond_the_untrained_and_the_popular(compose, tmp_path):
    settings = schema.check(compose(f"data_dir={tmp_path}"))
    target = settings.recipe.target["v05"]["hit_rate"]
    engine = worker.build_engine(settings, World(), torch.device("cpu"))
    untrained = engine.evaluate().quality["hit_rate"]
    split = movielens.read_split(next((tmp_path / "prepared").iterdir()))
    popularity = torch.from_numpy(np.bincount(split.items, minlength=split.num_items))
    hits = sum(
        int(sampling.hits(popularity[items], counted))
        for _, items, counted in (batch.inputs for batch in engine.data.eval_batches())
    )
    popular = hits / split.num_users
    assert untrained < 0.1
    assert popular < 0.2
    assert target > 2 * popular
