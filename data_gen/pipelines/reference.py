"""The original's algorithm from text files to TFRecord files: record by record, all in memory.

For the same text, flags and seed the records equal those of the original script: tests/golden/pretraining_records.json.
"""

import os
import random
import sys
from typing import Any

from data_gen.options import RecordOptions
from data_gen.pipelines import writer
from data_gen.pipelines.summary import NO_INSTANCE, RecordSummary
from data_gen.rules.instances import Instance, InstanceConfig, make_instances
from data_gen.text import documents
from data_gen.text.lines import FileState, check_unchanged
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.tokenization import exact
from official_bert.utils import files
from official_bert.utils.progress import Progress


def create(
    options: RecordOptions,
    states: dict[str, FileState],
    tokenizer: exact.FullTokenizer,
    config: InstanceConfig,
    source: dict[str, Any],
) -> RecordSummary:
    """Makes the records and their manifest.

    Args:
        options: the flags.
        states: the text files, and the states of theirs that the source describes.
        tokenizer: the exact one.
        config: of the instances.
        source: everything that decides the records' bytes, for the manifest.

    Raises:
        UserError: the text is empty or cannot be read, or a file cannot be written.
    """

    def encode(sentence: str) -> list[int]:
        return tokenizer.convert_tokens_to_ids(tokenizer.tokenize(sentence))

    lines = documents.read_lines(list(states), options.drop_invalid_utf8)
    corpus = documents.read_corpus(lines, encode, tokenizer.vocab[exact.UNK])
    check_unchanged(states)
    summary = RecordSummary(len(corpus.documents), corpus.tokens, corpus.unknown)
    instances = _make_instances(corpus, config, options.dupe_factor, random.Random(options.random_seed), summary)
    if not instances:
        raise UserError(NO_INSTANCE)
    writer.write(instances, options.output_file, options.max_seq_length, options.max_predictions_per_seq)
    if len(instances) < len(options.output_file):
        print(
            f"warning: {len(instances)} instances for {len(options.output_file)} files; some are empty", file=sys.stderr
        )
    shards = []
    for number, path in enumerate(options.output_file):
        count = len(range(number, len(instances), len(options.output_file)))
        shards.append(manifest.Shard(os.path.basename(path), count, files.size(path), manifest.sha256(path)))
    manifest.write(options.output_file, options.stem, manifest.Manifest(source, shards, summary.statistics()))
    return summary


def _make_instances(
    corpus: documents.Corpus, config: InstanceConfig, dupe_factor: int, rng: random.Random, summary: RecordSummary
) -> list[Instance]:
    rng.shuffle(corpus.documents)
    progress = Progress("making instances", dupe_factor * len(corpus.documents), "documents")
    instances: list[Instance] = []
    for number in range(dupe_factor):
        for index, some in enumerate(make_instances(corpus.documents, config, rng)):
            for instance in some:
                summary.add(instance, config.max_seq_length)
            instances += some
            progress.update(number * len(corpus.documents) + index + 1)
    rng.shuffle(instances)
    return instances
