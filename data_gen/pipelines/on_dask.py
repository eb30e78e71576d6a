"""Makes records on a Dask cluster: the same tasks and working folder as on one machine, run by the cluster's workers.

All machines must reach the working folder under the same path. The steps of fast.py are unchanged, so the records are
the same bytes as on one machine, and either can continue a run that the other started.
"""

import dataclasses
import functools
import os
import threading
import uuid
from typing import Any

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine
from data_gen.pipelines.worker import TextError, Worker
from data_gen.pipelines.worker_pool import WorkerPool
from official_bert.errors import UserError
from official_bert.utils import dask_cluster, files

_one_task = threading.Lock()


def create_pretraining_data(options: RecordOptions, address: str) -> dict[str, int]:
    """Makes record files like one_machine.create_pretraining_data, with the workers of a Dask cluster.

    Args:
        options: The flags. --num_workers must have its default, because the cluster determines the number of workers.
        address: The scheduler's address, such as tcp://HOST:8786.

    Raises:
        UserError: If the input, the vocabulary, the output, the options or the cluster cannot be used.
    """
    if options.algorithm != "fast":
        raise UserError(f"--algorithm={options.algorithm} runs on one machine only. Remove --dask.")
    default = next(field.default for field in dataclasses.fields(options) if field.name == "num_workers")
    if options.num_workers != default:
        raise UserError("--num_workers has no effect with --dask. Start as many Dask workers as you want.")
    with dask_cluster.Cluster(address) as cluster:
        return one_machine.create_pretraining_data(options, functools.partial(DaskPool, cluster))


class DaskPool(WorkerPool):
    """A pool without processes of its own, which runs the tasks of a working folder on a Dask cluster."""

    def __init__(self, cluster: dask_cluster.Cluster, folder: str) -> None:
        super().__init__(files.make_absolute(folder))
        self._cluster, self._run = cluster, uuid.uuid4().hex

    def grow(self, count: int) -> None:
        """Does nothing, because the user decides how many workers the cluster has."""

    def run_tasks(
        self, what: str, tasks: list[dict[str, Any]], unit: str, amounts: list[float] | None = None
    ) -> list[dict[str, Any]]:
        """Runs tasks on the cluster's workers and returns their results in order (see WorkerPool.run_tasks)."""
        arguments = [(self._folder, self._run, task) for task in tasks]
        try:
            return self._cluster.run_tasks(what, _run_task, arguments, unit, amounts)
        except TextError:
            raise
        except UserError as error:
            message = str(error)
            if dask_cluster.RESUME_HINT not in message:
                message = f"{message.removesuffix('.')}. {dask_cluster.RESUME_HINT}"
            raise UserError(message) from error


def _run_task(folder: str, run: str, task: dict[str, Any]) -> dict[str, Any]:
    """Runs a task in a worker process of the cluster. A lock ensures that each process runs one task at a time.

    Args:
        folder: The working folder.
        run: Unique id of the run.
        task: The task (see worker.py).
    """
    if not os.path.isdir(folder):
        raise UserError(
            f"The worker on {os.uname().nodename} cannot reach {folder}. Set --output_file to a path in a folder that "
            "all machines have under the same name."
        )
    with _one_task:
        return _get_worker(folder, run).run_task(task)


@functools.lru_cache(maxsize=1)
def _get_worker(folder: str, run: str) -> Worker:
    # The run's id is a key of the cache, because another run has other files, even if they have the same names.
    del run
    return Worker(folder)
