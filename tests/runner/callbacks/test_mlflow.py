"""Runs in MLflow, read back by its client from its SQLite store."""

import pytest

from timetrial.runner.core.errors import Exit

pytestmark = [
    pytest.mark.integration,  # importing MLflow and creating its store take seconds
    pytest.mark.filterwarnings("default"),  # MLflow uses what SQLAlchemy deprecates
]


def find_runs(store):
    """Return the client of a store and all its runs of timetrial's experiment."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{store}")
    return client, client.search_runs([client.get_experiment_by_name("timetrial").experiment_id])


def test_stopped_and_resumed_run_is_one_mlflow_run(stop_and_resume, recorded_curves, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    run_dir = stop_and_resume("observers.mlflow=true")
    client, (run,) = find_runs(run_dir.path / "mlflow.db")
    assert (run.info.run_name, run.info.status) == ("NCF embedded, 1 x cpu, fp32, seed 1", "FINISHED")
    assert (
        run.data.params.items() >= {"recipe.global_batch_size": "2048", "precision.name": "fp32", "seed": "1"}.items()
    )

    training = run_dir.record().training
    histories = {
        name: sorted(client.get_metric_history(run.info.run_id, name), key=lambda point: point.timestamp)
        for name in run.data.metrics
    }
    results = {name: [point.value for point in points] for name, points in histories.items() if "result/" in name}
    assert results == {
        "result/seed": [1, 1],
        "result/exit_code": [Exit.TIME_LIMIT, Exit.TARGET_NOT_REACHED],
        "result/hit_rate": [training.blocks[-1].quality["hit_rate"]],
        "result/epochs": [0, 4],
    }
    curves = {name: points for name, points in histories.items() if name not in results}
    assert {
        name: [(point.step, point.value) for point in points] for name, points in curves.items()
    } == recorded_curves(training)
    ends = [round(1e3 * block.ended_at) for block in training.blocks]
    assert [point.timestamp for point in curves["quality/hit_rate"]] == ends


def test_results_of_several_runs_are_in_the_store_of_the_environment(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/all.db")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    code, reached = launch("observers.mlflow=true", "seed=1")
    assert code == Exit.TARGET_REACHED
    code, diverged = launch("observers.mlflow=true", "seed=2", "recipe.training.learning_rate=1e30")
    assert code == Exit.DIVERGED
    _, runs = find_runs(tmp_path / "all.db")
    by_seed = {run.data.params["seed"]: run for run in runs}
    assert {seed: run.info.status for seed, run in by_seed.items()} == {"1": "FINISHED", "2": "FAILED"}
    results = {seed: run.data.metrics for seed, run in by_seed.items()}
    assert results["1"]["result/time_to_train_seconds"] == reached.record().training.seconds
    assert results["1"]["result/exit_code"] == Exit.TARGET_REACHED
    assert "result/time_to_train_seconds" not in results["2"]
    assert results["2"]["result/exit_code"] == Exit.DIVERGED
    assert not any((run_dir.path / "mlflow.db").exists() for run_dir in (reached, diverged))
