"""The vectors of a file of texts, written to a file: the whole of features, without its flags."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from official_bert.checkpoints import finetuned, loading
from official_bert.checkpoints.loading import Loaded
from official_bert.errors import UserError
from official_bert.inference import batch_prediction, feature_files
from official_bert.inference.features import FeatureExtractor
from official_bert.inference.options import TRAINED, FeatureOptions
from official_bert.inference.shards import ALL_ROWS, Shard
from official_bert.modeling.choices import POOLED
from official_bert.runs.locks import lock_file
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import SKIP, BadRows, NoBadRows
from official_bert.utils.counting import pluralize
from official_bert.utils.progress import Progress


def write_features(options: FeatureOptions, shard: Shard = ALL_ROWS) -> str:
    """Writes the vectors of each text of the input file; returns a line that says how many.

    Args:
        options: The flags.
        shard: The texts to process. The output file is the shard's own.

    Raises:
        UserError: there is no such file or checkpoint, or a line is not UTF-8 or too long, or a row has no text.
    """
    options = dataclasses.replace(apply_trained_settings(options), output_file=shard.path(options.output_file))
    format = feature_files.detect_format(options.output_file, options.output_format)
    read = tables.list_files(options.input_file)
    for path in read:
        if not files.exists(path):
            raise UserError(f"there is no file {path}")
    inputs = [*read, options.init, *([options.vocab_file] if options.vocab_file else [])]
    for path in feature_files.list_output_files(options.output_file, format, options.pooling):
        files.refuse_overwriting(path, "output_file", inputs)
    with lock_file(options.output_file, "output_file"):
        return _write_features(options, format, shard)


def _write_features(options: FeatureOptions, format: str, shard: Shard) -> str:
    extractor = make_extractor(options, load(options))
    trained = read_task(options.init)
    texts: Iterable[str | list[str]] = read_texts(options.input_file, trained)
    first = 0
    if shard != ALL_ROWS:
        total = sum(1 for _ in read_texts(options.input_file, trained, silent=True))
        first, end = shard.row_range(total, extractor.texts_at_a_time)
        texts = itertools.islice(texts, first, end)
    kilobytes = sum(map(files.size, tables.list_files(options.input_file))) / 1e3 / shard.count
    progress = Progress("extracting", kilobytes, "kB")
    count = truncated = done = 0
    with feature_files.open_writer(options.output_file, format, extractor, options.pooling, first) as add:
        for features in extractor.extract(texts):
            add(features)
            count += 1
            truncated += features.is_truncated
            done += len(features.text.encode()) + 1
            progress.update(done / 1e3)
    return f"{pluralize(count, 'text')} in {options.output_file}; cut to {options.max_seq_length} tokens: {truncated:,}"


def load(options: FeatureOptions) -> Loaded:
    """Returns the encoder that the options name.

    Raises:
        UserError: as of `loading.load`.
    """
    return loading.load(options.init, options.vocab_file, options.do_lower_case, strip_accents=options.strip_accents)


def make_extractor(options: FeatureOptions, loaded: Loaded) -> FeatureExtractor:
    """Returns what turns texts into vectors as the options say."""
    return FeatureExtractor(
        loaded,
        list(map(int, options.layers)),
        options.pooling,
        align=options.align,
        normalize=options.normalize,
        max_seq_length=options.max_seq_length,
        batch_size=options.batch_size,
    )


def apply_trained_settings(options: FeatureOptions) -> FeatureOptions:
    """Returns the options with what a fine-tuned model's task.json says of its vectors, if the options ask for that.

    Raises:
        UserError: the checkpoint is no such model, or its vectors are those behind the pooler.
    """
    if options.pooling != TRAINED:
        return options
    spec = read_task(options.init)
    if "pooling" not in spec:
        raise UserError(
            f"--pooling={TRAINED} is for models of finetune --task=embeddings; {options.init} is none: give mean, "
            "max or cls"
        )
    if spec["pooling"] == POOLED:
        raise UserError(f"{options.init} has vectors behind the pooler; export it, and take official-bert predict")
    layers = [str(layer) for layer in spec["layers"]]
    return dataclasses.replace(
        options, pooling=spec["pooling"], layers=layers, normalize=spec["normalize"],
        max_seq_length=spec["max_seq_length"],
    )  # fmt: skip


def read_task(init: str) -> dict[str, Any]:
    """Returns what a fine-tuned model's task.json says, of the columns of a table too; of other checkpoints nothing."""
    return finetuned.read_task(init) or {}


def read_texts(path: str, trained: Mapping[str, Any], silent: bool = False) -> Iterator[str | list[str]]:
    """Yields the texts of a file as `FeatureExtractor.extract` takes them.

    Args:
        path: a table, as `tables.is_table` knows them, whose rows are read as `predict` reads them; else a text on each
            line.
        trained: `read_task` of the checkpoint. A table that no model was trained with has the columns text and, of
            pairs, text_pair.
        silent: Whether notes about the file are not printed.

    Raises:
        UserError: a line is not UTF-8 or too long, or a row has no text; it is named.
    """
    if not tables.is_table(path):
        for _, row in tables.read_rows(path, NoBadRows(), as_text=True):
            yield row[tables.TEXT]
        return
    table = trained.get("table") or {}
    is_pair, unexpected = trained.get("pair"), None
    if is_pair is None:
        _, first = next(tables.read_rows(path, BadRows(SKIP, silent=True)), (0, {}))
        is_pair = "text_pair" in first
        unexpected = None if is_pair else "text_pair"
    inputs = ["text", "text_pair"] if is_pair else ["text"]
    for row in batch_prediction.read_rows(path, inputs, table, unexpected, silent):
        yield [row[name] for name in inputs]
