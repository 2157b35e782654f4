"""The observer that records a run in MLflow (`pip install 'timetrial[mlflow]'`)."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from rich.console import Console

from ..config.diff import flatten
from ..core.errors import ConfigurationError, Exit
from ..record.run_dir import RunDir
from .tracker import Point, Tracker

_STATUS = {
    Exit.TARGET_REACHED: "FINISHED",
    Exit.TARGET_NOT_REACHED: "FINISHED",
    Exit.TIME_LIMIT: "KILLED",
    Exit.STOPPED: "KILLED",
}
# Unless the environment says otherwise: no usage data, no news on the terminal, and few retries.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}


class MLflow(Tracker):
    """Record the curves, configuration and result of a run where `MLFLOW_TRACKING_URI` says, or in its directory."""

    name = "MLflow"
    remedy = "check that MLFLOW_TRACKING_URI names a server that answers"

    def __init__(self, run_dir: RunDir, title: str, console: Console) -> None:
        for variable, value in _ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        try:
            import mlflow
        except ImportError as error:
            raise ConfigurationError("observers.mlflow=true needs MLflow: pip install 'timetrial[mlflow]'.") from error
        super().__init__(run_dir, title, console)
        self._mlflow = mlflow
        self._uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run_dir.path / 'mlflow.db'}"

    def open(self) -> str:
        """Create the MLflow run with this run's id as a tag, or continue it, and return the tracking URI."""
        self._client = client = self._mlflow.MlflowClient(self._uri)
        experiment = self._experiment_id()
        runs = client.search_runs([experiment], f"tags.timetrial_id = '{self.id}'", max_results=1)
        if runs:
            self._run_id = runs[0].info.run_id
            client.update_run(self._run_id, status="RUNNING")
        else:
            run = client.create_run(experiment, tags={"timetrial_id": self.id}, run_name=self.title)
            self._run_id = run.info.run_id
            params = [self._mlflow.entities.Param(key, str(value)) for key, value in flatten(self.record.config)]
            client.log_batch(self._run_id, params=params)
        return self._uri

    def log(self, points: Sequence[Point]) -> None:
        """Send points of the curves, with the epoch as the step."""
        metrics = [
            self._mlflow.entities.Metric(name, value, round(1e3 * time), epoch)
            for values, epoch, time in points
            for name, value in values.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def finish(self, result: Mapping[str, float], exit_code: Exit) -> None:
        """Send the result as metrics, and end the MLflow run."""
        for name, value in result.items():
            self._client.log_metric(self._run_id, name, value)
        self._client.set_terminated(self._run_id, _STATUS.get(exit_code, "FAILED"))

    def _experiment_id(self) -> str:
        client, name = self._client, os.environ.get("MLFLOW_EXPERIMENT_NAME", "timetrial")
        if client.get_experiment_by_name(name) is None:
            with suppress(self._mlflow.MlflowException):  # another run has created it since
                client.create_experiment(name)
        return client.get_experiment_by_name(name).experiment_id
