"""What every workload named in conf/workload/ must do."""

import copy
from pathlib import Path

import pytest
import torch
import yaml
from mlperf_logging.compliance_checker import mlp_compliance
from rich.console import Console

from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import Exit
from timetrial.runner.launch import worker
from timetrial.runner.launch.run import launch
from timetrial.runner.training.distributed import World

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = sorted(path.stem for path in (ROOT / "conf" / "workload").glob("*.yaml"))
RULES = Path(mlp_compliance.__file__).parent / "training_0.7.0"


@pytest.fixture
def engine(request, compose, tmp_path):
    settings = validate(compose(f"workload={request.param}", "scale=embedded", f"data_dir={tmp_path}"))
    return worker.build_engine(settings, World(), torch.device("cpu"))


def every_workload(function):
    return pytest.mark.parametrize("engine", WORKLOADS, indirect=True)(function)


@every_workload
def test_one_batch_can_be_learned_by_heart(engine):
    batches = next(iter(engine.data.train_batches(1)))
    engine._step(batches)
    first = engine.synchronize().loss
    for _ in range(15):
        for _ in range(20):
            engine._step(batches)
        engine.synchronize()
        engine._step(batches)
        if (last := engine.synchronize().loss) < 0.5 * first:
            break
    assert last < 0.5 * first


@every_workload
def test_state_goes_round(engine):
    engine._step(next(iter(engine.data.train_batches(1))))
    state = copy.deepcopy(engine.state_dict())
    quality = engine.evaluate().quality
    engine._step(next(iter(engine.data.train_batches(2))))
    engine.load_state_dict(state)
    assert engine.evaluate().quality == quality
    assert all(0 <= value <= 1 for value in quality.values())


@every_workload
def test_facts_cover_the_closed_rules(engine, compose, request):
    benchmark = validate(compose(f"workload={request.node.callspec.params['engine']}")).workload.benchmark
    facts = engine.mlperf_params()
    rules = [*RULES.glob(f"closed_{benchmark}.yaml"), *RULES.glob(f"closed_{benchmark}_{facts.get('opt_name')}.yaml")]
    if not rules:
        assert benchmark in ("ncf", "cifar10", "cnn")  # the ruleset never knew them
        return
    records = [record["KEY"] for path in rules for record in yaml.safe_load(path.read_text()) if "KEY" in record]
    demanded = {record["NAME"] for record in records} - {"eval_accuracy"}
    assert len(demanded) > 3
    assert demanded <= facts.keys()


@pytest.fixture
def embedded(compose, tmp_path):
    """Trains a workload at its smallest scale."""

    def trained(workload):
        places = [f"data_dir={tmp_path}", f"runs_dir={tmp_path}/runs", "launcher=inline"]
        return launch(compose(f"workload={workload}", "scale=embedded", *places), Console(quiet=True))

    return trained


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_embedded_target_is_reached(workload, embedded):
    code, folder = embedded(workload)
    assert code == Exit.TARGET_REACHED
    assert folder.record().verdict.compliant


@pytest.mark.slow  # and for a machine that does nothing else
@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_embedded_target_is_reached_in_two_minutes(workload, embedded):
    code, folder = embedded(workload)
    assert code == Exit.TARGET_REACHED
    assert folder.record().training.seconds < 120
