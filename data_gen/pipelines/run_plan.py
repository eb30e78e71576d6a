"""The plan of a run of the fast algorithm: its blocks, shards and buckets."""

import dataclasses
from typing import Any

import numpy as np

from data_gen.options import RecordOptions
from data_gen.pipelines import shuffle
from data_gen.pipelines.outputs import shard_names
from data_gen.rules import vectorized_instances
from data_gen.rules.instances import InstanceConfig
from data_gen.rules.random_numbers import Random
from data_gen.text import token_store
from data_gen.text.token_store import TokenStore
from official_bert.data import record_codec
from official_bert.utils import files

# How many bytes a bucket of the shuffle takes at most, about. A worker holds one bucket, several times over.
_BUCKET_BYTES = 6e6

# Records of a block that the size of all records is estimated from.
_ESTIMATED_FROM = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextPlan:
    """What the workers know of the text to be tokenized.

    Attributes:
        inputs: text files.
        input_format: of the text, or "auto".
        language: by whose rules paragraphs are split into sentences.
        json_field: where the text is in JSON lines.
        drop_invalid_utf8: whether bytes that are not UTF-8 are dropped.
        do_lower_case: whether the vocabulary is uncased.
        ids: type of the ids, such as "<u2".
    """

    inputs: list[str]
    input_format: str
    language: str
    json_field: str
    drop_invalid_utf8: bool
    do_lower_case: bool
    ids: str

    @classmethod
    def of(cls, options: RecordOptions, paths: list[str], vocab: dict[str, int]) -> "TextPlan":
        """Returns what the flags, these text files and the vocabulary give."""
        return cls(
            inputs=list(map(files.absolute, paths)),
            input_format=options.input_format,
            language=options.language,
            json_field=options.json_field,
            drop_invalid_utf8=options.drop_invalid_utf8,
            do_lower_case=options.do_lower_case,
            ids=token_store.id_dtype(max(vocab.values()) + 1).str,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What all tasks of a run share: how the corpus is cut into blocks, and the records into shards and buckets.

    Attributes:
        seed: of everything random.
        config: the settings of the instances, without the vocabulary.
        vocab_file: the vocabulary.
        ids: type of the ids, such as "<u2".
        blocks: documents of each block: first, and one after the last.
        dupe_factor: how often the corpus is used.
        outputs: the shards.
        buckets_per_shard: how many buckets each shard is made of.
        gzip: whether the shards are compressed.
    """

    seed: int
    config: dict[str, Any]
    vocab_file: str
    ids: str
    blocks: list[list[int]]
    dupe_factor: int
    outputs: list[str]
    buckets_per_shard: int
    gzip: bool


def plan_run(options: RecordOptions, config: InstanceConfig, vocab_file: str, corpus: str, dtype: np.dtype) -> RunPlan:
    """Plans a run.

    Args:
        options: the flags.
        config: of the instances.
        vocab_file: the vocabulary, where the workers reach it.
        corpus: the folder of the joined corpus.
        dtype: of its ids.
    """
    store = TokenStore(corpus, dtype)
    blocks = store.blocks(options.block_tokens)
    count, size = _estimate(store, blocks, config, options.dupe_factor)
    outputs = shard_names(options, size)
    layout = shuffle.Layout(config.max_seq_length, config.max_predictions_per_seq, dtype, 1)
    buckets = int(count * layout.row.itemsize / len(outputs) // _BUCKET_BYTES) + 1
    names = [field.name for field in dataclasses.fields(config) if field.name != "vocabulary"]
    return RunPlan(
        seed=options.random_seed,
        config={name: getattr(config, name) for name in names},
        vocab_file=files.absolute(vocab_file),
        ids=dtype.str,
        blocks=[list(block) for block in blocks],
        dupe_factor=options.dupe_factor,
        outputs=list(map(files.absolute, outputs)),
        buckets_per_shard=buckets,
        gzip=options.gzip,
    )


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
