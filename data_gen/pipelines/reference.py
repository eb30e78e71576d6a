"""Makes record files with the original script's algorithm: record by record, with everything in memory.

The same text, flags and seed give the same records as the original (tests/golden/pretraining_records.json).
"""

import collections
import itertools
import os
import random
import sys
from typing import Any

from data_gen.options import RecordOptions
from data_gen.pipelines import preparation, writer
from data_gen.pipelines.summary import RecordSummary, explain_empty_text
from data_gen.rules.instances import Instance, InstanceConfig, make_instances
from data_gen.text import documents
from data_gen.text.documents import Document
from data_gen.text.exclusion import DocumentFilter, ExcludedTexts
from data_gen.text.word_boundaries import MarkingTokenizer, get_continuation_mark
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.tokenization import exact
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files
from official_bert.utils.counting import pluralize
from official_bert.utils.progress import Progress


def create_records(
    options: RecordOptions,
    source: dict[str, Any],
    states: dict[str, tuple[int, int] | None],
    tokenizer: FastTokenizer | MarkingTokenizer,
    excluded: ExcludedTexts | None,
) -> RecordSummary:
    """Makes the record files and their manifest.

    The arguments are the same as for fast.create_records, except for the tokenizer.

    Raises:
        UserError: If the text is empty or cannot be read, or a file cannot be written.
    """
    lines = documents.read_lines(list(states), options.drop_invalid_utf8)
    kept = DocumentFilter(excluded)
    corpus = documents.read_corpus(kept(documents.group_lines(lines)), tokenizer.encode)
    if not corpus:
        expected = "expected one sentence per line and an empty line between documents"
        raise UserError(f"{explain_empty_text(kept.counts)}; {expected}")
    files.check_unchanged(states)
    ids = collections.Counter(itertools.chain.from_iterable(itertools.chain.from_iterable(corpus)))
    vocab = tokenizer.vocab
    unknown = ids[vocab[exact.UNK]] + ids[vocab[exact.UNK] + get_continuation_mark(vocab)]
    summary = RecordSummary(len(corpus), ids.total(), unknown, text_excluded=kept.counts.get("excluded"))
    config = preparation.make_instance_config(options, vocab)
    instances = _make_instances(corpus, config, options.dupe_factor, random.Random(options.random_seed), summary)
    writer.write(instances, options.output_file, options.max_seq_length, options.max_predictions_per_seq)
    if len(instances) < len(options.output_file):
        print(
            f"warning: {pluralize(len(instances), 'instance')} for {len(options.output_file)} files; some are empty",
            file=sys.stderr,
        )
    shards = []
    for number, path in enumerate(options.output_file):
        count = len(range(number, len(instances), len(options.output_file)))
        shards.append(manifest.Shard(os.path.basename(path), count, files.size(path), files.sha256(path)))
    manifest.write_manifests(options.output_file, options.stem, manifest.Manifest(source, shards, summary.counts))
    return summary


def _make_instances(
    corpus: list[Document], config: InstanceConfig, dupe_factor: int, rng: random.Random, summary: RecordSummary
) -> list[Instance]:
    rng.shuffle(corpus)
    progress = Progress("making instances", dupe_factor * len(corpus), "documents")
    instances: list[Instance] = []
    for number in range(dupe_factor):
        for index, some in enumerate(make_instances(corpus, config, rng)):
            for instance in some:
                summary.add(instance, config.max_seq_length)
            instances += some
            progress.update(number * len(corpus) + index + 1)
    rng.shuffle(instances)
    return instances
