"""The plan of a run of the fast algorithm: its blocks, shards and buckets."""

import dataclasses

from data_gen.options import RecordOptions
from data_gen.pipelines import shuffle
from data_gen.pipelines.outputs import shard_names
from data_gen.rules import vectorized_instances
from data_gen.rules.instances import InstanceConfig
from data_gen.rules.random_numbers import Random
from data_gen.text.token_store import TokenStore
from official_bert.data import record_codec
from official_bert.utils import files

# How many bytes a bucket of the shuffle takes at most, about. A worker holds one bucket, several times over.
_BUCKET_BYTES = 6e6

# Records of a block that the size of all records is estimated from.
_ESTIMATED_FROM = 1000


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """How the corpus is cut into blocks, and the records into shards and buckets."""

    blocks: list[list[int]]  # documents of each block: first, and one after the last
    outputs: list[str]  # the shards
    buckets_per_shard: int  # how many buckets each shard is made of


def plan_run(options: RecordOptions, config: InstanceConfig, store: TokenStore) -> RunPlan:
    """Plans a run over the corpus that is in the store."""
    blocks = store.blocks(options.block_tokens)
    count, size = _estimate(store, blocks, config, options.dupe_factor)
    outputs = shard_names(options, size)
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
    sample = shuffle.features(shuffle.rows_of(instances, slice(0, _ESTIMATED_FROM)))
    encoded = record_codec.encode(sample, shuffle.schema(config))
    count = dupe_factor * len(blocks) * len(instances.length)
    return count, count * sum(map(len, encoded)) / len(encoded)
