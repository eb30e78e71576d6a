"""The plan of a run of the fast algorithm: its blocks, shards and buckets."""

import dataclasses

from data_gen.options import RecordOptions
from data_gen.pipelines import shuffle
from data_gen.pipelines.outputs import make_shard_names
from data_gen.rules import vectorized_instances
from data_gen.rules.instances import InstanceConfig
from data_gen.rules.random_numbers import Random
from data_gen.text.token_store import TokenStore
from official_bert.data import record_codec
from official_bert.utils import files

_BUCKET_BYTES = 6e6  # Approximate maximum size of a bucket. A worker holds several copies of one bucket in memory.
_SAMPLE_RECORDS = 1000  # Number of records for the estimate of the total size.


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """The division of the corpus into blocks, and of the records into shards and buckets.

    Attributes:
        blocks: First document and end of each block.
        outputs: Paths of the shards.
        buckets_per_shard: Number of buckets of each shard.
    """

    blocks: list[list[int]]
    outputs: list[str]
    buckets_per_shard: int


def plan_run(options: RecordOptions, config: InstanceConfig, store: TokenStore) -> RunPlan:
    """Plans a run over a tokenized corpus."""
    blocks = store.blocks(options.block_tokens)
    count, size = _estimate(store, blocks, config, options.dupe_factor)
    outputs = make_shard_names(options, size)
    layout = shuffle.Layout(config.max_seq_length, config.max_predictions_per_seq, store.ids.dtype, 1)
    buckets = int(count * layout.row.itemsize / len(outputs) // _BUCKET_BYTES) + 1
    return RunPlan([list(block) for block in blocks], list(map(files.make_absolute, outputs)), buckets)


def _estimate(
    store: TokenStore, blocks: list[tuple[int, int]], config: InstanceConfig, dupe_factor: int
) -> tuple[float, float]:
    """Estimates the number of instances and the bytes of all records, from the instances of one block."""
    first, last = blocks[len(blocks) // 2]
    instances = vectorized_instances.make_instances(store, first, last, config, Random("estimate"))
    if not len(instances.length):
        return 0.0, 0.0
    sample = shuffle.make_features(shuffle.select_rows(instances, slice(0, _SAMPLE_RECORDS)))
    encoded = record_codec.encode(sample, shuffle.make_schema(config))
    count = dupe_factor * len(blocks) * len(instances.length)
    return count, count * sum(map(len, encoded)) / len(encoded)
