"""The steps of shards.py as tasks of a Dask cluster.

Between the second reading of the rows and their computation they stand in files of a working folder beside the output,
which all machines must reach, as they must the output.
"""

import itertools
import json
import os
import threading
import uuid
from typing import Any

from official_bert.inference import shards
from official_bert.inference.shards import Job, Plan, Rows
from official_bert.utils import dask_cluster, files

_models: dict[str, Any] = {}  # in a worker: that of the last run, which its threads share
_loading = threading.Lock()


def make_shards(job: Job, address: str) -> None:
    """Makes the missing shards by the workers behind the scheduler at that address, as tcp://HOST:PORT.

    Raises:
        UserError: a row is wrong, or something about the output or the cluster.
    """
    run = uuid.uuid4().hex[:12]
    folder = f"{job.output_file}.dask-{run}"
    with dask_cluster.Cluster(address) as cluster:
        inputs = list(enumerate(job.inputs))
        counted = cluster.do_all("counting", shards.count_rows, [(each, job) for each in inputs], "files")
        plan = shards.plan_shards(job, counted)
        try:
            tasks = [(each, job, plan, folder) for each in inputs]
            wrote = cluster.do_all("reading", _spool_rows, tasks, "files")
            pieces: dict[int, list[str]] = {number: [] for number in plan.missing}
            for number, path in itertools.chain.from_iterable(wrote):
                pieces[number].append(path)
            computed = [(job, plan, number, paths, run) for number, paths in pieces.items()]
            cluster.do_all("computing", _compute, computed, "files")
        finally:
            files.remove_folder(folder)


def _spool_rows(element: tuple[int, str], job: Job, plan: Plan, folder: str) -> list[tuple[int, str]]:
    """Writes the rows of an input file that missing shards want; returns the shards, and the file of each."""
    written = []
    for shard, pieces in itertools.groupby(shards.read_rows(element, job, plan), lambda each: each[0]):
        path = os.path.join(folder, f"{shard:05}-{element[0]:05}.jsonl")
        with files.written_whole(path) as beside, open(beside, "wb") as writer:
            for _, piece in pieces:
                writer.write(json.dumps(piece).encode() + b"\n")
        written.append((shard, path))
    return written


def _compute(job: Job, plan: Plan, number: int, paths: list[str], run: str) -> None:
    """Writes a shard from its rows in these files."""
    if all(map(files.exists, job.computation.files_of(job.shards[number]))):
        return  # by another worker, which was given the same task
    pieces: list[Rows] = []
    for path in paths:
        with files.open_bytes(path) as reader:
            pieces += [(first, rows) for first, rows in map(json.loads, reader.read().splitlines())]
    shards.compute_shard(job, plan, number, pieces, lambda: _model(run, job))


def _model(run: str, job: Job) -> Any:
    with _loading:
        if run not in _models:
            _models.clear()
            _models[run] = job.computation.load()
        return _models[run]
