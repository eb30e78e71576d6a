"""The plan of a run of the fast algorithm: its blocks, shards and buckets."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from data_gen import shuffle, vectorized
from data_gen.instances import InstanceConfig
from data_gen.random_numbers import Random
from data_gen.token_store import TokenStore
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of the fast pipeline, besides those of text and instances.

    Attributes:
        work_folder: the folder of unfinished work.
        stem: the path without an ending that the manifest is named after.
        name_outputs: the record files, from about how many bytes the records will take.
        seed: of everything random.
        passes: how often the text is used.
        block_tokens: tokens of text that a worker handles at once.
        num_workers: how many processes.
        compress: whether the record files are compressed with gzip.
        source: everything that decides the records' bytes, for the manifest.
    """

    work_folder: str
    stem: str
    name_outputs: Callable[[float], list[str]]
    seed: int
    passes: int
    block_tokens: int
    num_workers: int
    compress: bool
    source: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What all tasks of a run share: how the corpus is cut into blocks, and the records into shards and buckets.

    Attributes:
        seed: of everything random.
        config: the settings of the instances, without the vocabulary.
        vocab_file: the vocabulary.
        ids: type of the ids, such as "<u2".
        blocks: documents of each block: first, and one after the last.
        passes: how often the corpus is used.
        outputs: the shards.
        buckets_per_shard: how many buckets each shard is made of.
        compress: whether the shards are compressed with gzip.
    """

    seed: int
    config: dict[str, Any]
    vocab_file: str
    ids: str
    blocks: list[list[int]]
    passes: int
    outputs: list[str]
    buckets_per_shard: int
    compress: bool


def plan_run(settings: Settings, config: InstanceConfig, vocab_file: str, corpus: str, dtype: np.dtype) -> RunPlan:
    """Plans a run.

    Args:
        settings: of the pipeline.
        config: of the instances.
        vocab_file: the vocabulary, where the workers reach it.
        corpus: the folder of the joined corpus.
        dtype: of its ids.
    """
    store = TokenStore(corpus, dtype)
    blocks = store.blocks(settings.block_tokens)
    count, size = _estimate(store, blocks, config, settings.passes)
    outputs = settings.name_outputs(size)
    layout = shuffle.Layout(config.max_seq_length, config.max_predictions_per_seq, dtype, 1)
    buckets = int(count * layout.row.itemsize / len(outputs) // _BUCKET_BYTES) + 1
    names = [field.name for field in dataclasses.fields(config) if field.name != "vocabulary"]
    return RunPlan(
        seed=settings.seed,
        config={name: getattr(config, name) for name in names},
        vocab_file=files.absolute(vocab_file),
        ids=dtype.str,
        blocks=[list(block) for block in blocks],
        passes=settings.passes,
        outputs=list(map(files.absolute, outputs)),
        buckets_per_shard=buckets,
        compress=settings.compress,
    )


def _estimate(
    store: TokenStore, blocks: list[tuple[int, int]], config: InstanceConfig, passes: int
) -> tuple[float, float]:
    """Estimates the number of instances and the bytes of all records, from the instances of one block."""
    first, last = blocks[len(blocks) // 2]
    instances = vectorized.make_instances(store, first, last, config, Random("estimate"))
    if not len(instances.length):
        return 0.0, 0.0
    sample = shuffle.features(shuffle.rows_of(instances, slice(0, _ESTIMATED_FROM)))
    encoded = record_codec.encode(sample, shuffle.schema(config))
    count = passes * len(blocks) * len(instances.length)
    return count, count * sum(map(len, encoded)) / len(encoded)
