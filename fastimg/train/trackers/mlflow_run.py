"""MLflow: a run of the experiment that MLFLOW_EXPERIMENT_NAME names, else fastimg, at MLFLOW_TRACKING_URI."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from .protocol import TrackedRun

_LONGEST = 500  # characters of a parameter's value, which every store takes
_MOST = 100  # parameters that a call takes


class MlflowRun:
    """A resumed run goes on in the same run of MLflow. What came after its last checkpoint is there twice."""

    def __init__(self, run: TrackedRun) -> None:
        self._client = MlflowClient()
        if run.key is not None:
            self._id = run.key
            self._client.update_run(self._id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fastimg")
        experiment = self._client.get_experiment_by_name(name)
        home = experiment.experiment_id if experiment else self._client.create_experiment(name)
        self._id = self._client.create_run(home, run_name=run.directory.name).info.run_id
        params = [Param(name, str(value)[:_LONGEST]) for name, value in run.config.items()]
        for at in range(0, len(params), _MOST):
            self._client.log_batch(self._id, params=params[at : at + _MOST])
        self._client.log_batch(self._id, tags=[RunTag(name, path) for name, path in run.checkpoints.items()])

    @property
    def key(self) -> str:
        """See `Tracker`."""
        return self._id

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        now = int(time.time() * 1000)
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def picture(self, name: str, file: Path) -> None:
        """See `Tracker`."""
        self._client.log_artifact(self._id, str(file))

    def close(self) -> None:
        """See `Tracker`."""
        self._client.set_terminated(self._id)
