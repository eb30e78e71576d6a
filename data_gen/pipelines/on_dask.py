"""The workers of a Dask cluster in place of processes of this machine: the same tasks, in the same working folder.

The folder must be the same on all machines. The steps of fast.py run as they do on one machine, so that the records
are the same bytes, and work that one of them has left the other goes on with.
"""

import functools
import os
import threading
import uuid
from typing import Any

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine, preparation
from data_gen.pipelines.summary import RecordSummary
from data_gen.pipelines.worker import TextError, Worker
from official_bert.errors import UserError
from official_bert.utils import dask_cluster, files

_one_task = threading.Lock()


def create_pretraining_data(options: RecordOptions, address: str) -> RecordSummary:
    """Does what one_machine.create_pretraining_data does, on a Dask cluster.

    Args:
        options: as for one machine, but that the cluster has as many workers as were started.
        address: of its scheduler, as tcp://HOST:PORT.

    Raises:
        UserError: something about the input, the vocabulary, the output, the options or the cluster is wrong.
    """
    preparation.check_for_cluster(options)
    with dask_cluster.Cluster(address) as cluster:
        return one_machine.create_pretraining_data(options, functools.partial(DaskPool, cluster))


class DaskPool:
    """The workers behind a scheduler, for the run with this working folder."""

    def __init__(self, cluster: dask_cluster.Cluster, folder: str) -> None:
        self._cluster, self._folder = cluster, files.absolute(folder)
        self._run = uuid.uuid4().hex

    def __enter__(self) -> "DaskPool":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def grow(self, count: int) -> None:
        """Does nothing: there are as many workers as the cluster has."""

    def do_all(
        self, what: str, tasks: list[dict[str, Any]], unit: str, amounts: list[float] | None = None
    ) -> list[dict[str, Any]]:
        """Does what WorkerPool.do_all does, on the cluster."""
        arguments = [(self._folder, self._run, task) for task in tasks]
        try:
            return self._cluster.do_all(what, _do, arguments, unit, amounts)
        except TextError:
            raise
        except UserError as error:
            told = str(error)
            raise UserError(told if dask_cluster.GO_ON in told else f"{told}; {dask_cluster.GO_ON}") from error


def _do(folder: str, run: str, task: dict[str, Any]) -> dict[str, Any]:
    """For a worker: does a task; one at a time in a process."""
    if not os.path.isdir(folder):
        raise UserError(
            f"{os.uname().nodename}, a machine of the cluster, does not reach {folder}; give --output_file in a folder "
            "that all machines have under the same name"
        )
    with _one_task:
        return _worker(folder, run).do(task)


@functools.lru_cache(maxsize=1)
def _worker(folder: str, run: str) -> Worker:
    # Another run has other files, even under the same names.
    del run
    return Worker(folder)
