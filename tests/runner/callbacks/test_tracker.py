"""Trackers that fail: the run goes on, and one sentence says so."""

import io
import socket
import sqlite3
import sys

import pytest
from rich.console import Console

from timetrial.runner.callbacks import tracker, wandb
from timetrial.runner.callbacks.mlflow import MLflow
from timetrial.runner.core.errors import ConfigurationError, Exit

pytestmark = [
    pytest.mark.integration,  # importing the trackers takes seconds
    pytest.mark.filterwarnings("default"),  # MLflow uses what SQLAlchemy deprecates
]


def warnings(output, name):
    """Return the warnings of a tracker; its other line names a place and is no sentence."""
    return [line for line in output.splitlines() if line.startswith(name) and line.endswith(".")]


@pytest.fixture
def server():
    """Return a socket that is bound to a port of this machine, where nobody listens yet, and its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_missing_package_is_named_before_the_run(launch, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(
        ConfigurationError, match=rf"observers\.{package}=true needs .*: pip install 'timetrial\[{package}\]'"
    ):
        launch(f"observers.{package}=true")
    assert not (tmp_path / "runs").exists()


def test_mlflow_server_that_is_down_costs_one_sentence(launch_aloud, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server[1].replace("//", "//user:hunter2@"))
    code, run_dir, output = launch_aloud("observers.mlflow=true")
    assert code == Exit.TARGET_REACHED
    assert "hunter2" not in output
    (sentence,) = warnings(output, "MLflow")
    assert server[1] in sentence
    assert sentence.endswith("check that MLFLOW_TRACKING_URI names a server that answers.")
    assert not (run_dir.path / "mlflow.db").exists()


def test_server_that_never_answers_is_not_waited_for(launch_aloud, server, monkeypatch):
    server[0].listen()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server[1])
    monkeypatch.setattr(tracker, "_PATIENCE_SECONDS", 0.1)
    code, _, output = launch_aloud("observers.mlflow=true")
    assert code == Exit.TARGET_REACHED
    (sentence,) = warnings(output, "MLflow")
    assert sentence.startswith("MLflow has not recorded all of this run within 0.1 s: ")


def test_store_that_fails_during_a_run_costs_one_sentence(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/store.db")
    _, run_dir = launch()
    output = io.StringIO()
    with MLflow(run_dir, "title", Console(file=output, width=1000)) as observer:
        with sqlite3.connect(tmp_path / "store.db") as store:
            store.execute("DROP TABLE metrics")
        observer.add({"train/loss": 1.0}, epoch=1, time=0.0)
    (sentence,) = warnings(output.getvalue(), "MLflow")
    assert sentence.startswith("MLflow does not record this run any further (MlflowException: ")


def test_wandb_server_that_is_down_is_replaced_by_files(launch_aloud, server, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", server[1])
    monkeypatch.setenv("WANDB_API_KEY", 40 * "a")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb, "_SERVER_SECONDS", 2.0)
    code, run_dir, output = launch_aloud("observers.wandb=true")
    assert code == Exit.TARGET_REACHED
    (sentence,) = warnings(output, "Weights & Biases")
    assert sentence.endswith(f"`wandb sync --include-online {run_dir.path}/wandb/*run-*` uploads it later.")
    (file,) = run_dir.path.glob("wandb/offline-run-*/*.wandb")
    assert b"result/time_to_train_seconds" in file.read_bytes()
