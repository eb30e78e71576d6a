"""The steps of shards.py as a pipeline of Apache Beam.

Beam's RunInference is not used, because it makes batches of rows as they come, of any length.
"""

from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam.utils.shared import Shared

from official_bert.inference import shards
from official_bert.inference.shards import Job, Plan, Rows
from official_bert.utils import beam_runner


def make_shards(job: Job, beam_arguments: list[str]) -> None:
    """Makes the missing shards; Beam's pipeline options are such as "--runner=DataflowRunner"."""
    beam_runner.run_pipeline(lambda root: _build(root, job), beam_arguments, job.error_file)


def _build(root: Any, job: Job) -> None:
    """Adds the steps to a pipeline."""
    inputs = root | "inputs" >> beam.Create(list(enumerate(job.inputs))) | "inputs apart" >> beam.Reshuffle()
    counted = inputs | "count" >> beam.Map(shards.count_rows, job)
    plan = root | "once" >> beam.Create([None]) | "plan" >> beam.Map(_plan, job, beam.pvalue.AsList(counted))
    planned = beam.pvalue.AsSingleton(plan)
    rows = inputs | "read" >> beam.FlatMap(shards.read_rows, job, planned)
    # A shard that no row falls into is written too.
    empty = plan | "shards" >> beam.FlatMap(lambda plan: [(number, (0, [])) for number in plan.missing])
    _ = (
        (rows, empty)
        | "rows" >> beam.Flatten()
        | "of a shard" >> beam.GroupByKey()
        | "compute" >> beam.ParDo(_Compute(job), planned)
    )


def _plan(_: None, job: Job, counted: Iterable[tuple[int, dict[str, Any]]]) -> Plan:
    return shards.plan_shards(job, counted)


class _Compute(beam.DoFn):
    """A shard and its rows to the file of the shard."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._shared = Shared()

    def process(self, element: tuple[int, Iterable[Rows]], plan: Plan) -> None:
        shards.compute_shard(self._job, plan, *element, lambda: self._shared.acquire(self._job.computation.load))
