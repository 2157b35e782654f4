"""Logs of the translation workloads' reference recipes under the closed rules; only BLEU is mocked."""

import pytest
from mlperf_logging.compliance_checker import mlp_compliance
from rich.console import Console

from timetrial.runner.core.errors import Exit
from timetrial.runner.launch.run import launch
from timetrial.runner.mlperf import compliance
from timetrial.runner.record.run_record import Verdict
from timetrial.workloads.common.translation.workload import TranslationWorkload

SMALL = [
    "recipe.max_epochs=2",
    "recipe.data.vocabulary=null",
    "recipe.data.vocabulary_size=80",
    "recipe.training.beam_size=1",
]
SMALL += ["recipe.data.workers=1", "recipe.training.hidden_size=16"]
TINY = {
    "gnmt": ["recipe.global_batch_size=16", "recipe.training.max_decode_length=4"],
    "transformer": [
        "recipe.global_batch_size=400",
        "recipe.training.ffn_dim=16",
        "recipe.training.num_layers=1",
        "recipe.training.num_heads=2",
        "+recipe.training.extra_decode_length=0",
    ],
}


@pytest.mark.integration
@pytest.mark.parametrize("workload", TINY)
@pytest.mark.parametrize("reached", [True, False])
def test_log_complies_and_converges_if_the_target_is_reached(compose, tmp_path, monkeypatch, workload, reached):
    monkeypatch.setattr(TranslationWorkload, "score", lambda self, parts: {"bleu": 0.2501 if reached else 0.2399})
    grammar = (
        "{num_train: 200, num_test: 6, num_nouns: 20, num_verbs: 10, num_adjectives: 10, num_adverbs: 10, seed: 1}"
    )
    text = [f"recipe.data.source=[{tmp_path}/train.source]", f"recipe.data.target=[{tmp_path}/train.target]"]
    text += [f"recipe.data.test_source={tmp_path}/test.source", f"recipe.data.test_target={tmp_path}/test.target"]
    folders = [
        "launcher=inline",
        f"data_dir={tmp_path}",
        f"runs_dir={tmp_path}",
        f"++recipe.data.generate={grammar}",
        *text,
    ]
    choices = [f"workload={workload}", "scale=reference", "round=v07"]
    result = launch(compose(*choices, *folders, *SMALL, *TINY[workload]), Console(quiet=True))
    assert result.exit_code == (Exit.TARGET_REACHED if reached else Exit.TARGET_NOT_REACHED)
    verdict = compliance.check(result.run_dir.log)
    assert verdict == Verdict(True, "closed, 0.7.0", (), converged=reached)
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", "0.7.0", True, False)
    assert mlp_compliance.main(str(result.run_dir.log), "training_0.7.0/common.yaml", checker)[0] == reached
