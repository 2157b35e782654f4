"""Logs of the reference recipes under the closed rules, by the official checker; only the quality is mocked."""

import pytest
from mlperf_logging.compliance_checker import mlp_compliance
from rich.console import Console

from timetrial.runner.core.errors import Exit
from timetrial.runner.launch.run import launch
from timetrial.runner.mlperf import compliance
from timetrial.runner.record.run_record import Verdict
from timetrial.workloads.resnet50.workload import ResNet50

TINY = [
    "recipe.training.stages=[1,1,1,1]",
    "recipe.max_epochs=3",
    "recipe.data.image_size=32",
    "+recipe.data.generate={num_classes: 3, train_per_class: 20, val_per_class: 4, width: 40}",
    "recipe.data.workers=0",
]


@pytest.mark.integration
@pytest.mark.parametrize(("recipe", "optimizer"), [("reference_256", "sgd"), ("reference", "lars")])
@pytest.mark.parametrize("quality", [0.7591, 0.7589])
def test_log_complies_with_closed_rules_and_converges_if_the_target_is_met(
    compose, tmp_path, monkeypatch, recipe, optimizer, quality
):
    monkeypatch.setattr(ResNet50, "score", lambda self, parts: {"accuracy": quality})
    paths = ["launcher=inline", f"data_dir={tmp_path}", f"runs_dir={tmp_path}"]
    overrides = ["workload=resnet50", "scale=reference", f"recipe=resnet50/{recipe}", "round=v07"]
    result = launch(compose(*overrides, *paths, *TINY), Console(quiet=True))
    reached = quality >= 0.759
    assert result.exit_code == (Exit.TARGET_REACHED if reached else Exit.TARGET_NOT_REACHED)
    assert f'"opt_name", "value": "{optimizer}"' in result.run_dir.log.read_text()
    verdict = compliance.check(result.run_dir.log)
    assert verdict == Verdict(True, "closed, 0.7.0", (), converged=reached)
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", "0.7.0", True, False)
    assert mlp_compliance.main(str(result.run_dir.log), "training_0.7.0/common.yaml", checker)[0] == reached
