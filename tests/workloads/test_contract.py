"""The contract of every workload in conf/workload/."""

import copy
from pathlib import Path

import pytest
import yaml
from mlperf_logging.compliance_checker import mlp_compliance
from rich.console import Console

from timetrial.runner.config.validation import validate
from timetrial.runner.core.errors import Exit
from timetrial.runner.launch.run import launch

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = sorted(path.stem for path in (ROOT / "conf" / "workload").glob("*.yaml"))
RULES = Path(mlp_compliance.__file__).parent / "training_0.7.0"


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """The generated datasets, shared by all tests."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def engine(request, build_engine, data_dir):
    return build_engine(f"workload={request.param}", "scale=embedded", f"data_dir={data_dir}")


every_workload = pytest.mark.parametrize("engine", WORKLOADS, indirect=True)


@pytest.mark.integration
@every_workload
def test_loss_of_one_batch_halves_when_trained_on_it(engine):
    batches = next(iter(engine.data.train_batches(1)))
    engine.train_step(batches)
    first = engine.synchronize().loss
    for _ in range(15):
        for _ in range(20):
            engine.train_step(batches)
        engine.synchronize()
        engine.train_step(batches)
        if (last := engine.synchronize().loss) < 0.5 * first:
            break
    assert last < 0.5 * first


@every_workload
def test_restored_state_gives_the_same_quality(engine):
    engine.train_step(next(iter(engine.data.train_batches(1))))
    state = copy.deepcopy(engine.state_dict())
    quality = engine.evaluate().quality
    engine.train_step(next(iter(engine.data.train_batches(2))))
    engine.load_state_dict(state)
    assert engine.evaluate().quality == quality
    assert all(0 <= value <= 1 or name == "log_perplexity" for name, value in quality.items())


@every_workload
def test_mlperf_params_cover_the_closed_rules(engine, compose, request):
    benchmark = validate(compose(f"workload={request.node.callspec.params['engine']}")).workload.benchmark
    params = engine.mlperf_params()
    rules = [*RULES.glob(f"closed_{benchmark}.yaml"), *RULES.glob(f"closed_{benchmark}_{params.get('opt_name')}.yaml")]
    if not rules:
        assert benchmark in ("ncf", "cifar10", "cnn", "gpt")  # MLPerf has no rules for these
        return
    records = [record["KEY"] for path in rules for record in yaml.safe_load(path.read_text()) if "KEY" in record]
    required = {record["NAME"] for record in records} - {"eval_accuracy"}
    assert len(required) > 3
    assert required <= params.keys()


@pytest.fixture
def train_embedded(compose, tmp_path, data_dir):
    """Train a workload at its smallest scale: train_embedded(workload) -> result."""

    def train(workload):
        folders = [f"data_dir={data_dir}", f"runs_dir={tmp_path}/runs", "launcher=inline"]
        return launch(compose(f"workload={workload}", "scale=embedded", *folders), Console(quiet=True))

    return train


@pytest.mark.e2e
@pytest.mark.parametrize("workload", WORKLOADS)
def test_embedded_target_is_reached(workload, train_embedded):
    result = train_embedded(workload)
    assert result.exit_code == Exit.TARGET_REACHED
    assert result.run_dir.record().verdict.compliant
