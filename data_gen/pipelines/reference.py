"""Makes record files with the original script's algorithm: record by record, with everything in memory.

The same text, flags and seed give the same records as the original (tests/golden/original/records).
"""

import collections
import dataclasses
import itertools
import json
import os
import random
import sys
from typing import Any

import numpy as np

from data_gen.options import TEXT_FORMATS, RecordOptions
from data_gen.pipelines import fast, outputs, preparation, shuffle, writer
from data_gen.pipelines.preparation import RunInputs
from data_gen.pipelines.summary import explain_empty_text
from data_gen.rules.instances import Instance, InstanceConfig, make_instances
from data_gen.rules.vectorized_instances import Instances
from data_gen.text import documents, formats
from data_gen.text.documents import Document
from data_gen.text.exclusion import DocumentFilter
from data_gen.text.word_boundaries import get_continuation_mark
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.tokenization import exact
from official_bert.utils import files
from official_bert.utils.counting import pluralize
from official_bert.utils.progress import Progress


def create_records(
    options: RecordOptions, inputs: RunInputs, source: dict[str, Any], states: dict[str, tuple[int, int] | None]
) -> manifest.Manifest:
    """Makes the record files and their manifest. The arguments are the same as for fast.create_records.

    Raises:
        UserError: If the text is empty, is not plain text or cannot be read, a file cannot be written, or the working
            folder belongs to a different run.
    """
    with files.explain_write_errors(options.work_folder):
        folder = fast.open_run_folder(options.work_folder, source, inputs.vocab)
    detected = [formats.resolve_format(path, options) for path in inputs.paths]
    for path, format in zip(inputs.paths, detected, strict=True):
        if format not in ("sentences", "paragraphs"):
            hint = ", or --input_format=sentences to read it as plain text" if format in TEXT_FORMATS else ""
            raise UserError(
                f"{path} is a {format} file, which --algorithm=reference does not support; pass --algorithm=fast{hint}"
            )
    if options.input_format == "auto":
        print(formats.describe_formats(detected, options))
    tokenizer = preparation.make_encoder(inputs.tokenizer, inputs.boundaries)
    read: collections.Counter[str] = collections.Counter()
    lines = documents.read_lines(inputs.paths, options.drop_invalid_utf8, read)
    kept = DocumentFilter(inputs.excluded)
    corpus = documents.read_corpus(kept(documents.group_lines(lines)), tokenizer.encode)
    if not corpus:
        expected = "expected one sentence per line and an empty line between documents"
        raise UserError(f"{explain_empty_text(kept.counts)}; {expected}")
    files.check_unchanged(states)
    ids = collections.Counter(itertools.chain.from_iterable(itertools.chain.from_iterable(corpus)))
    vocab = tokenizer.vocab
    unknown = ids[vocab[exact.UNK]] + ids[vocab[exact.UNK] + get_continuation_mark(vocab)]
    counts = {"documents": len(corpus), "tokens": ids.total(), "unknown": unknown, **kept.counts, **+read}
    config = preparation.make_instance_config(options, vocab)
    instances = _make_instances(corpus, config, options.dupe_factor, random.Random(options.random_seed))
    stacked = _stack_instances(instances, config)
    # It marks the record files as this run's, until the manifest lists them.
    files.write_text(os.path.join(folder, outputs.OPTIONS), json.dumps(dataclasses.asdict(options)))
    try:
        writer.write(stacked, options.output_file)
    except Exception:  # such as a full disk: no record file was replaced
        files.remove_folder(options.work_folder)
        raise
    if len(instances) < len(options.output_file):
        print(
            f"warning: {pluralize(len(instances), 'instance')} for {len(options.output_file)} files; some are empty",
            file=sys.stderr,
        )
    shards = []
    for number, path in enumerate(options.output_file):
        count = len(range(number, len(instances), len(options.output_file)))
        shards.append(manifest.Shard(os.path.basename(path), count, files.size(path), files.sha256(path)))
    statistics = {f"text_{name}": value for name, value in counts.items()} | shuffle.count_statistics(stacked)
    description = manifest.Manifest(source, shards, statistics)
    manifest.write_manifests(options.output_file, options.stem, description)
    files.remove_folder(options.work_folder)
    return description


def _make_instances(
    corpus: list[Document], config: InstanceConfig, dupe_factor: int, rng: random.Random
) -> list[Instance]:
    rng.shuffle(corpus)
    progress = Progress("making instances", dupe_factor * len(corpus), "documents")
    instances: list[Instance] = []
    for _ in range(dupe_factor):
        for some in make_instances(corpus, config, rng):
            instances += some
            progress.advance(1)
    rng.shuffle(instances)
    return instances


def _stack_instances(instances: list[Instance], config: InstanceConfig) -> Instances:
    """Converts instances to arrays, the form in which the fast algorithm makes them."""
    ids = np.zeros((len(instances), config.max_seq_length), "<u4")
    positions, labels = np.zeros((2, len(instances), config.max_predictions_per_seq), "<u4")
    for row, each in enumerate(instances):
        ids[row, : len(each.input_ids)] = each.input_ids
        positions[row, : len(each.masked_lm_positions)] = each.masked_lm_positions
        labels[row, : len(each.masked_lm_ids)] = each.masked_lm_ids
    return Instances(
        ids,
        positions,
        labels,
        predictions=np.array([len(each.masked_lm_ids) for each in instances]),
        length=np.array([len(each.input_ids) for each in instances]),
        first_length=np.array([each.segment_ids.count(0) for each in instances]),
        special=np.array([each.special for each in instances]),
        is_random_next=np.array([each.is_random_next for each in instances]),
    )
