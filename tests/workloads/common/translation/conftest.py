"""Data of both translation workloads on a small generated language."""

import pytest
import torch

from timetrial.datasets.synthetic import language
from timetrial.runner.training.seeds import derive_streams
from timetrial.runner.training.workload import BatchSharding

GRAMMAR = language.TranslationSpec(1500, 40, num_nouns=40, num_verbs=20, num_adjectives=20, num_adverbs=10)


@pytest.fixture
def build(tmp_path):
    def built(data_class, batch_size, *, sharding=None, seed=1, opened=True, **settings):
        values = {
            "source": [f"{tmp_path}/toy/train.source"],
            "target": [f"{tmp_path}/toy/train.target"],
            "test_source": f"{tmp_path}/toy/test.source",
            "test_target": f"{tmp_path}/toy/test.target",
            "cache_dir": f"{tmp_path}/prepared",
            "max_length": 40,
            "vocabulary_size": 300,
            "generate": GRAMMAR,
            "workers": 1,
            "eval_batch_size": 16,
        }
        data = data_class(
            data_class.Settings(**values | settings),
            global_batch_size=batch_size,
            sharding=sharding or BatchSharding(),
            device=torch.device("cpu"),
            seeds=derive_streams(seed),
        )
        if opened:
            data.open()
        return data

    return built
