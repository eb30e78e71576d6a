"""Plans a run of the fast algorithm: blocks of documents, and the shards and buckets of the records."""

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
    """How a run divides the corpus into blocks, and records into shards (files) and buckets (parts that fit in memory).

    Attributes:
        blocks: The documents of each block, as [first, end) indices.
        outputs: Absolute paths of the shards.
        buckets_per_shard: Number of buckets of each shard.
    """

    blocks: list[list[int]]
    outputs: list[str]
    buckets_per_shard: int


def plan_run(options: RecordOptions, config: InstanceConfig, store: TokenStore) -> RunPlan:
    """Decides how make-records divides a tokenized corpus into blocks, and the records into files and buckets."""
    blocks = store.blocks(options.block_tokens)
    count, size = _estimate_size(store, blocks, config, options.dupe_factor)
    outputs = make_shard_names(options, size)
    layout = shuffle.Layout(config.max_seq_length, config.max_predictions_per_seq, store.ids.dtype, 1)
    buckets = int(count * layout.row.itemsize / len(outputs) // _BUCKET_BYTES) + 1
    return RunPlan([list(block) for block in blocks], list(map(files.make_absolute, outputs)), buckets)


def _estimate_size(
    store: TokenStore, blocks: list[tuple[int, int]], config: InstanceConfig, dupe_factor: int
) -> tuple[float, float]:
    """Estimates the number of instances and the total bytes of the records, from the instances of the middle block.

    Args:
        store: The corpus.
        blocks: The [first, end) document indices of each block.
        config: Settings for making instances.
        dupe_factor: Number of times that instances are made from each block.
    """
    first, last = blocks[len(blocks) // 2]
    instances = vectorized_instances.make_instances(store, first, last, config, Random("estimate"))
    if not len(instances.length):
        return 0.0, 0.0
    sample = shuffle.make_features(shuffle.select_rows(instances, slice(0, _SAMPLE_RECORDS)))
    encoded = record_codec.encode(sample, shuffle.make_schema(config))
    count = dupe_factor * len(blocks) * len(instances.length)
    return count, count * sum(map(len, encoded)) / len(encoded)
