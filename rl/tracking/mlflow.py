"""MLflow: an experiment's run in a tracking server, a database or a folder."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, TypeVar, cast

from rl.tracking.sink import Ending, EpisodeText, RunInfo, Sink, SinkOptions

T = TypeVar("T")
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
MOST_PARAMS, MOST_METRICS = 100, 1000
"""Maximum numbers of parameters and of metrics in one request to MLflow."""
LONGEST_PARAM = 6000
_FORBIDDEN = re.compile(r"[^\w\-./ :]")
"""Characters that MLflow does not allow in names."""


@dataclass(frozen=True, kw_only=True)
class MLflowOptions(SinkOptions):
    """The options of ``log=mlflow``."""

    tracking_uri: str = ""
    """MLflow: the server, database or folder. If empty, MLFLOW_TRACKING_URI or MLflow's default."""


class MLflow(Sink):
    """Logs to MLflow. ``log.project`` is the experiment."""

    Options = MLflowOptions
    package = "mlflow"
    extra = "turnwise[mlflow]"

    def open(self, run: RunInfo, id: str) -> str:
        """Start a run, or continue the run with this id."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        options = cast(MLflowOptions, self.options)
        self._client = MlflowClient(options.tracking_uri or None)
        if id:
            self._client.update_run(id, status="RUNNING")
            self._id = id
            return id
        experiment = self._client.get_experiment_by_name(options.project)
        number = experiment.experiment_id if experiment else None
        number = number or self._client.create_experiment(options.project)
        tags = {"command": run.command, "folder": str(run.folder)}
        name = options.name or run.folder.name
        self._id = str(self._client.create_run(number, tags=tags, run_name=name).info.run_id)
        params = [Param(_name(k), str(v)[:LONGEST_PARAM]) for k, v in run.config.items()]
        for some in _portions(params, MOST_PARAMS):
            self._client.log_batch(self._id, params=some)
        return self._id

    @property
    def place(self) -> str:
        """The store, and the run's id in it."""
        return f"run {self._id} in {self._client.tracking_uri}"

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the numbers of a step, and the text of episodes as files."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [
            Metric(_name(name), float(value), now, step)
            for name, value in metrics.items()
            if isinstance(value, (int, float))
        ]
        for some in _portions(values, MOST_METRICS):
            self._client.log_batch(self._id, metrics=some)
        for name, value in metrics.items():
            if isinstance(value, EpisodeText):
                path = PurePosixPath(name)
                file = path.with_name(f"step-{step:06d}-{path.name}.txt")
                self._client.log_text(self._id, value, str(file))

    def finish(self, ending: Ending) -> None:
        """Record the result and the images, and end the run."""
        if ending.result:
            self._client.log_dict(self._id, dict(ending.result), "result.json")
        for path in ending.images.values():
            self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id, STATUS[ending.status])


def _name(name: str) -> str:
    """A name in which forbidden characters are replaced."""
    return _FORBIDDEN.sub("_", name)


def _portions(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
