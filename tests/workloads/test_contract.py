"""What every workload named in conf/workload/ must do."""

import copy
from pathlib import Path

import pytest
import torch
import yaml
from mlperf_logging.compliance_checker import mlp_compliance
from rich.console import Console

from timetrial.runner import config, worker
from timetrial.runner.distributed import World
from timetrial.runner.errors import Exit
from timetrial.runner.launch import launch

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = sorted(path.stem for path in (ROOT / "conf" / "workload").glob("*.yaml"))
RULES = Path(mlp_compliance.__file__).parent / "training_0.7.0"


@pytest.fixture
def engine(request, compose, tmp_path):
    settings = config.check(compose(f"workload={request.param}", "scale=embedded", f"data_dir={tmp_path}"))
    return worker.build_engine(settings, World(), torch.device("cpu"))


def every_workload(function):
    return pytest.mark.parametrize("engine", WORKLOADS, indirect=True)(function)


@every_workload
def test_one_batch_can_be_learned_by_heart(engine):
    batches = next(iter(engine.data.train(1)))
    engine._step(batches)
    first = engine.finish().loss
    for _ in range(60):
        engine._step(batches)
    engine.finish()
    engine._step(batches)
    assert engine.finish().loss < 0.5 * first


@every_workload
def test_state_goes_round(engine):
    engine._step(next(iter(engine.data.train(1))))
    state = copy.deepcopy(engine.state())
    quality = engine.evaluate()
    engine._step(next(iter(engine.data.train(2))))
    engine.restore(state)
    assert engine.evaluate() == quality
    assert all(0 <= value <= 1 for value in quality.values())


@every_workload
def test_facts_cover_the_closed_rules(engine, request):
    benchmark = engine.workload.__class__.__name__.lower()
    rules = RULES / f"closed_{benchmark}.yaml"
    if not rules.exists():  # NCF: the ruleset never knew it
        assert benchmark == "ncf"
        return
    records = yaml.safe_load(rules.read_text())
    demanded = {record["KEY"]["NAME"] for record in records if "KEY" in record} - {"eval_accuracy"}
    assert demanded <= engine.facts().keys()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_embedded_target_is_reached(workload, compose, tmp_path):
    places = [f"data_dir={tmp_path}", f"runs={tmp_path}/runs", "launcher=inline"]
    code, folder = launch(compose(f"workload={workload}", "scale=embedded", *places), Console(quiet=True))
    assert code == Exit.TARGET_REACHED
    assert folder.status()["verdict"]["compliant"]
    assert folder.status()["result"]["seconds"] < 120
