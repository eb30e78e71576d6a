"""A run in a tracker of experiments, beside its folder: parameters, metrics by step, files.

What a tracker offers is `Tracker`, which pre-training and fine-tuning share. Importing this imports none.
"""

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.flags import option

MLFLOW = "mlflow"
TRACKERS = (MLFLOW,)
RUN_FILE = "tracked_run.json"  # in a run's folder: which tracked run it is, for when it goes on
_EXPERIMENT = "official-bert"  # without MLflow's own MLFLOW_EXPERIMENT_NAME
_LONGEST_VALUE = 500  # characters of a parameter that every store takes


def tracker_option(group: str) -> Any:
    """Returns the flag --tracker."""
    text = (
        "A tracker of experiments that gets parameters, metrics, report and model beside the folder; "
        "MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say where."
    )
    return option(None, text, TRACKERS, group=group, free=True)


class Tracker:
    """A tracked run; this one keeps nothing."""

    def parameters(self, values: Mapping[str, Any]) -> None:
        """Keeps settings by name; those that it has stay as they are."""

    def metrics(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Keeps the measurements of a step, as KIND/NAME; a step that it has stays as it is."""

    def files(self, paths: Sequence[str], folder: str) -> None:
        """Keeps copies of files, and of folders with all that they hold, in a folder of the tracked run."""

    def end(self, is_finished: bool) -> None:
        """Says that the run has ended, with all done or to go on later."""


class _MLflowRun(Tracker):
    """A run of MLflow. Training does not end with it: what fails in the middle is said once, and then left out.

    Args:
        folder: of the run here; its RUN_FILE names MLflow's run, which then goes on.

    Raises:
        UserError: MLflow cannot be reached, or has no such run.
        ModuleNotFoundError: MLflow is not installed.
    """

    def __init__(self, folder: str) -> None:
        # MLflow tries again for minutes, in which nothing would be learned.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # not that it makes its tables
        path = os.path.join(folder, RUN_FILE)
        before = files.read_json_object(path).get("run_id") if files.exists(path) else None
        try:
            self._client = mlflow.MlflowClient()
            self._goes_on = before is not None
            self._kept: dict[str, set[int]] = {}  # steps by kind
            self._id = self._go_on(before) if before else self._begin(os.path.basename(os.path.abspath(folder)))
        except Exception as error:  # of MLflow, its network and its data bases
            where = mlflow.get_tracking_uri()
            hint = f"; to begin another tracked run, remove {path}" if before else ""
            raise UserError(
                f"--tracker=mlflow: no run can be kept at {where}: {_line(error)}; set MLFLOW_TRACKING_URI to a "
                f"server's address or to sqlite:///FILE{hint}"
            ) from error
        files.write_text(path, json.dumps({"tracker": MLFLOW, "run_id": self._id}) + "\n")
        self._is_over = False

    def _begin(self, name: str) -> str:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self._client.create_experiment(experiment)
        return str(self._client.create_run(number, run_name=name).info.run_id)

    def _go_on(self, run: str) -> str:
        self._client.update_run(run, status="RUNNING")
        return run

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # likewise
            self._is_over = True
            print(f"note: mlflow gets nothing more of this run: {_line(error)}", flush=True)

    def _unless_over(self, keep: Callable[[], None]) -> None:
        if not self._is_over:
            with self._surviving():
                keep()

    def parameters(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        def keep() -> None:
            kept = self._client.get_run(self._id).data.params
            new = [Param(_name(key), str(value)[:_LONGEST_VALUE]) for key, value in values.items()]
            new = [each for each in new if each.key not in kept]
            for first in range(0, len(new), 100):  # the most that MLflow takes at once
                self._client.log_batch(self._id, params=new[first : first + 100])

        self._unless_over(keep)

    def metrics(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        def keep() -> None:
            if step in self._steps_of(kind, values):
                return
            now = int(1000 * time.time())
            metrics = [Metric(_name(f"{kind}/{key}"), float(value), now, step) for key, value in values.items()]
            self._client.log_batch(self._id, metrics=metrics)
            self._steps_of(kind, values).add(step)

        self._unless_over(keep)

    def _steps_of(self, kind: str, values: Mapping[str, float]) -> set[int]:
        if kind not in self._kept:
            of_kind = _name(f"{kind}/{next(iter(values))}")
            history = self._client.get_metric_history(self._id, of_kind) if self._goes_on else []
            self._kept[kind] = {each.step for each in history}
        return self._kept[kind]

    def files(self, paths: Sequence[str], folder: str) -> None:
        def keep() -> None:
            for path in paths:
                if os.path.isdir(path):
                    self._client.log_artifacts(self._id, path, folder)
                else:
                    self._client.log_artifact(self._id, path, folder)

        self._unless_over(keep)

    def end(self, is_finished: bool) -> None:
        self._unless_over(lambda: self._client.set_terminated(self._id, "FINISHED" if is_finished else "KILLED"))
        self._is_over = True


@contextlib.contextmanager
def tracked(tracker: str | None, folder: str) -> Iterator[Tracker]:
    """Opens a tracked run of a folder, or one that keeps nothing where `tracker` is None, and says how it ended.

    Raises:
        UserError: the tracker cannot be reached, or has lost the folder's run.
        ModuleNotFoundError: the tracker is not installed.
    """
    run = _MLflowRun(folder) if tracker == MLFLOW else Tracker()
    try:
        yield run
    except BaseException:  # an error, or SIGTERM in fine-tuning
        run.end(is_finished=False)
        raise
    run.end(is_finished=True)


def _name(text: str) -> str:
    """A name that MLflow takes: letters, digits, and _-./ and spaces."""
    return re.sub(r"[^\w\-./ ]", "_", text, flags=re.ASCII)


def _line(error: Exception) -> str:
    """The first line of an error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
