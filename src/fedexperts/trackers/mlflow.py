"""MLflow: by itself a folder of files, `mlruns`; or wherever its own settings say."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import time

from fedexperts.config import Settings
from fedexperts.trackers.tracker import Note, Tracker, hyperparameters


class MLflow(Tracker):
    """Parameters, metrics, and at the end the page and the run's tables as artefacts."""

    name = "mlflow"
    keeps = True

    def __init__(self, store: str | Path | None = None, experiment: str = "fedexperts") -> None:
        """`store`: a folder, or an address as MLflow writes it (default: $MLFLOW_TRACKING_URI, else `mlruns`)."""
        super().__init__()
        store = str(store or os.environ.get("MLFLOW_TRACKING_URI") or "mlruns")
        self.store = store if ":" in store else Path(store).absolute().as_uri()
        self.experiment = experiment

    def open(self, title: str, settings: Settings, folder: Path | None, before: Note) -> Note:
        if self.store.startswith("file:"):  # MLflow would rather have a database, and asks who uses files to say so
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        self._client = MlflowClient(self.store)
        if before.run is not None:
            try:
                self._client.update_run(before.run, "RUNNING")
            except MlflowException:  # it was removed there
                pass
            else:
                self._run = before.run
                has = self._client.get_metric_history(before.run, "flops")  # of every round, and written last
                return Note(before.run, max((metric.step for metric in has), default=0))
        try:
            experiment = self._client.create_experiment(self.experiment)
        except MlflowException:  # it is there, or another process has just made it
            found = self._client.get_experiment_by_name(self.experiment)
            if found is None:
                raise
            experiment = found.experiment_id
        named = {"mlflow.note.content": title, "mlflow.source.name": "fedexperts"}
        made = self._client.create_run(experiment, tags=named, run_name=str(folder or settings.method))
        self._run = str(made.info.run_id)
        params = [Param(name, str(value)) for name, value in hyperparameters(settings).items()]
        self._client.log_batch(self._run, params=params)
        return Note(self._run)

    def write(self, round_number: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time() * 1000)
        metrics = [Metric(name, value, now, round_number) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def keep(self, files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self._run, str(file))

    def close(self, reason: BaseException | None = None) -> None:
        ways = {type(None): "FINISHED", KeyboardInterrupt: "KILLED"}
        self._client.set_terminated(self._run, ways.get(type(reason), "FAILED"))
