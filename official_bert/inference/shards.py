"""Texts to numbered files of results on many machines: what predict and features do on Beam or Dask.

1. Each input file is read by one worker, which counts and digests its rows. So every row is read, and a wrong one
   named, before the first result.
2. It is planned which rows come into which shard, and looked which shards an earlier run has left.
3. The files are read again, and the rows of each missing shard brought together.
4. Each missing shard is computed by one worker and appears whole.

The shards in the order of their numbers hold the results of all rows in order. Rows are computed in the same groups,
whose texts are sorted by length, as on one machine, so that every batch is the same.

Any step may run twice, even at the same time: a shard is written beside and renamed.
"""

import dataclasses
import hashlib
import itertools
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from official_bert.errors import UserError
from official_bert.inference.batch_prediction import RefusedRow
from official_bert.utils import beam_runner, files, row_files
from official_bert.utils.counting import counted
from official_bert.utils.locks import lock_file

# The number of the first row among those of all files, and it and those that follow it.
Rows = tuple[int, list[Any]]


class Computation(Protocol):
    """What the workers do to rows.

    Attributes:
        identity: what the results depend on beside the rows, as JSON.
        rows_at_once: how many rows are a group that is computed together.
    """

    @property
    def identity(self) -> dict[str, Any]: ...

    @property
    def rows_at_once(self) -> int: ...

    def read(self, path: str) -> Iterator[Any]:
        """Yields the rows of an input file, as JSON can hold them."""

    def load(self) -> Any:
        """Returns the model, which the threads of a process share."""

    def files_of(self, path: str) -> list[str]:
        """Returns the files of a shard of that name, the one that appears last first."""

    def write(self, model: Any, first: int, rows: Iterator[Any], path: str) -> None:
        """Writes the shard of rows, the first of which has that number among all; it appears whole.

        Raises:
            RefusedRow: no result can be computed of a row, which is named by its number among all.
        """


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which rows come where.

    Attributes:
        starts: the number of the first row of each input file, and that of all rows at the end.
        bounds: the number of the first row of each shard, likewise.
        missing: the shards to be made.
    """

    starts: list[int]
    bounds: list[int]
    missing: list[int]


@dataclasses.dataclass(frozen=True)
class Job:
    """What every worker knows.

    Attributes:
        computation: what is done to the rows.
        inputs: their files.
        output_file: the shards' name without their numbers.
        num_shards: how many there are.
        error_file: where a worker writes its error.
    """

    computation: Computation
    inputs: list[str]
    output_file: str
    num_shards: int
    error_file: str

    @property
    def shards(self) -> list[str]:
        stem, ending = os.path.splitext(self.output_file)
        if self.num_shards == 1:
            return [self.output_file]
        return [f"{stem}-{number:05}-of-{self.num_shards:05}{ending}" for number in range(self.num_shards)]

    @property
    def run_file(self) -> str:
        """Says of what the shards are made. It stays, so that the same command can find them complete."""
        return f"{self.output_file}.run.json"


def run(
    computation: Computation, input_file: str, output_file: str, num_shards: int, make_shards: Callable[[Job], None]
) -> str:
    """Makes the shards that are missing; returns a line about all of them.

    Args:
        computation: what is done to the rows.
        input_file: a file, or a pattern of several; may be remote, as the output.
        output_file: the name of the shards without their numbers, and the whole name of a single one.
        num_shards: how many shards there are.
        make_shards: makes those that are missing, on many machines.

    Raises:
        UserError: a row is wrong, the output cannot be written or is an input, or what is there is of another run.
    """
    if num_shards < 1:
        raise UserError(f"--num_shards={num_shards}; expected 1 or more")
    inputs = list(map(files.absolute, row_files.expand([input_file], "input_file")))
    output_file = files.absolute(output_file)
    job = Job(computation, inputs, output_file, num_shards, f"{output_file}.error-{uuid.uuid4().hex[:8]}.txt")
    for path in [*(each for shard in job.shards for each in computation.files_of(shard)), job.run_file]:
        files.refuse_overwriting(path, "output_file", inputs)
    with lock_file(output_file, "output_file"):
        there = _finished(job)
        if there and not files.exists(job.run_file):
            raise UserError(
                f"{job.shards[there[0]]} is there, and no {job.run_file} that says of what it was made; remove it, or "
                "give another --output_file"
            )
        try:
            make_shards(job)
        finally:
            files.remove(job.error_file)
    rows = sum(of_file["rows"] for of_file in files.read_json_object(job.run_file)["inputs"])
    kept = f"; {len(there)} of {counted(num_shards, 'file')} from an earlier run" if there else ""
    return f"written {job.shards[0]}{' ...' if num_shards > 1 else ''}: of {counted(rows, 'text')}{kept}"


def _finished(job: Job) -> list[int]:
    """The numbers of the shards that are there."""
    of_shard = [job.computation.files_of(shard) for shard in job.shards]
    return [number for number, paths in enumerate(of_shard) if all(map(files.exists, paths))]


def count_rows(element: tuple[int, str], job: Job) -> tuple[int, dict[str, Any]]:
    """Returns the file's number, and what the run's file says of it."""
    number, path = element
    with beam_runner.reporting_errors(job.error_file):
        count, digest = 0, hashlib.sha256()
        for row in job.computation.read(path):
            digest.update(json.dumps(row).encode() + b"\n")
            count += 1
        return number, {"file": path, "rows": count, "sha256": digest.hexdigest()}


def plan_shards(job: Job, counted: Iterable[tuple[int, dict[str, Any]]]) -> Plan:
    """Plans the shards; writes the file of the run, or checks that the one that is there is of the same run."""
    inputs = [of_file for _, of_file in sorted(counted, key=lambda each: each[0])]
    rows_at_once = job.computation.rows_at_once
    run = {
        **job.computation.identity, "inputs": inputs, "rows_at_once": rows_at_once, "num_shards": job.num_shards
    }  # fmt: skip
    with beam_runner.reporting_errors(job.error_file):
        if files.exists(job.run_file):
            before = files.read_json_object(job.run_file)
            changed = sorted(name for name in run.keys() | before.keys() if run.get(name) != before.get(name))
            if changed:
                raise UserError(
                    f"{job.run_file} is of a run with other {', '.join(changed)}; remove it and its shards to begin "
                    "anew, or give another --output_file"
                )
        else:
            files.write_text(job.run_file, json.dumps(run, indent=1) + "\n")
        starts = [0, *itertools.accumulate(of_file["rows"] for of_file in inputs)]
        groups = -(-starts[-1] // rows_at_once)
        bounds = [
            min(starts[-1], number * groups // job.num_shards * rows_at_once) for number in range(job.num_shards + 1)
        ]
        finished = _finished(job)
        return Plan(starts, bounds, [number for number in range(job.num_shards) if number not in finished])


def read_rows(element: tuple[int, str], job: Job, plan: Plan) -> Iterator[tuple[int, Rows]]:
    """Yields rows of the file that missing shards want, in pieces that lie within a group, by shard."""
    number, path = element
    first, end = plan.starts[number : number + 2]
    wanted = [shard for shard in plan.missing if plan.bounds[shard] < end and plan.bounds[shard + 1] > first]
    if not wanted:
        return
    rows_at_once = job.computation.rows_at_once
    with beam_runner.reporting_errors(job.error_file):
        numbered = enumerate(job.computation.read(path), first)
        for _, group in itertools.groupby(numbered, lambda each: each[0] // rows_at_once):
            rows = list(group)
            begin = rows[0][0]
            for shard in wanted:
                if plan.bounds[shard] <= begin < plan.bounds[shard + 1]:
                    yield shard, (begin, [row for _, row in rows])


def compute_shard(job: Job, plan: Plan, number: int, pieces: Iterable[Rows], load: Callable[[], Any]) -> None:
    """Writes the shard of that number from its rows, in pieces of any order; `load` returns the model."""
    with beam_runner.reporting_errors(job.error_file):
        rows = itertools.chain.from_iterable(rows for _, rows in sorted(pieces, key=lambda piece: piece[0]))
        try:
            job.computation.write(load(), plan.bounds[number], rows, job.shards[number])
        except RefusedRow as refused:
            file = next(each for each, end in enumerate(plan.starts[1:]) if refused.number < end)
            raise UserError(
                f"{job.inputs[file]}: the model cannot answer row {refused.number - plan.starts[file] + 1} "
                f"(the header does not count): {refused.reason}; mend or remove it and give the command again"
            ) from refused
