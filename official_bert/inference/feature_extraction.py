"""The features command: computes vectors of the texts in a file, and writes them to a file."""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from official_bert.checkpoints import loading
from official_bert.checkpoints.formats import finetuned
from official_bert.errors import UserError
from official_bert.inference import batch_prediction, vector_files
from official_bert.inference.feature_extractor import FeatureExtractor, TextVectors
from official_bert.inference.options import TRAINED, FeatureOptions
from official_bert.inference.shards import ALL_ROWS, Shard
from official_bert.modeling.choices import POOLED
from official_bert.runs.locks import lock_file
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import SKIP, BadRows, NoBadRows
from official_bert.utils.counting import pluralize
from official_bert.utils.progress import Progress

_WORDS = "words"  # Column of --is_split_into_words.


def write_vectors(options: FeatureOptions, shard: Shard = ALL_ROWS) -> str:
    """Computes the vectors of each text of the input file, writes them, and returns a summary line.

    Args:
        options: The flags.
        shard: The part of the texts to process. Each shard has its own output file.

    Raises:
        UserError: If the input file or the checkpoint is missing, or a row has no text or cannot be read.
    """
    options, output_file = complete_options(options), shard.path(options.output_file)
    read = tables.list_files(options.input_file)
    for path in read:
        if not files.exists(path):
            raise UserError(f"The file {path} does not exist. Patterns that match several files need --dask.")
    inputs = [*read, options.init, *([options.vocab_file] if options.vocab_file else [])]
    for path in vector_files.list_output_files(output_file, options.output_format, options.pooling):
        files.refuse_overwriting(path, "output_file", inputs)
    files.note_replacement(output_file)
    with lock_file(output_file, "output_file"):
        return _write_vectors(options, shard, output_file)


def _write_vectors(options: FeatureOptions, shard: Shard, output_file: str) -> str:
    extractor = load_extractor(options)
    trained = read_task_spec(options.init)
    texts: Iterable[str | list[str]] = read_texts(
        options.input_file, trained, is_split_into_words=options.is_split_into_words
    )
    first = 0
    if shard != ALL_ROWS:
        total = sum(1 for _ in read_texts(options.input_file, trained, True, options.is_split_into_words))
        first, end = shard.select_rows(options.output_file, total, extractor.texts_at_a_time)
        texts = itertools.islice(texts, first, end)
    kilobytes = sum(map(files.size, tables.list_files(options.input_file))) / 1e3 / shard.count
    progress = Progress("extracting", kilobytes, "kB")
    count = truncated = 0

    def extract_and_report() -> Iterator[TextVectors]:
        nonlocal count, truncated
        for vectors in extractor.extract(texts):
            yield vectors
            count += 1
            truncated += vectors.is_truncated
            progress.advance((len(vectors.text.encode()) + 1) / 1e3)

    vector_files.write(output_file, options.output_format, extractor, extract_and_report(), first)
    return (
        f"Wrote the vectors of {pluralize(count, 'text')} to {output_file}; truncated to "
        f"{extractor.max_seq_length} tokens: {truncated:,}"
    )


def load_extractor(options: FeatureOptions) -> FeatureExtractor:
    """Loads the encoder of --init, and creates a FeatureExtractor with the settings in the options."""
    return FeatureExtractor(
        loading.load(options.init, options.vocab_file, options.do_lower_case, strip_accents=options.strip_accents),
        list(map(int, options.layers)),
        options.pooling,
        align=options.align,
        normalize=options.normalize,
        max_seq_length=options.max_seq_length,
        batch_size=options.batch_size,
        is_split_into_words=options.is_split_into_words,
    )


def complete_options(options: FeatureOptions) -> FeatureOptions:
    """Replaces --output_format=auto by the format, and --pooling=trained by the settings of the fine-tuned model.

    Raises:
        UserError: If the extension of the output file is unknown, the checkpoint is not a model of --task=embeddings,
            its vectors are the pooler's output, or it was trained with other settings than the options.
    """
    format = vector_files.detect_format(options.output_file, options.output_format)
    options = dataclasses.replace(options, output_format=format)
    if options.pooling != TRAINED:
        return options
    task_spec = read_task_spec(options.init)
    if "pooling" not in task_spec:
        raise UserError(
            f"--pooling={TRAINED} requires a model of finetune --task=embeddings; {options.init} is not "
            "one. Pass mean, max or cls."
        )
    if task_spec["pooling"] == POOLED:
        raise UserError(
            f"--pooling={TRAINED} does not support {options.init}, whose vectors are the pooled output. Use export "
            "and predict."
        )
    layers = [str(layer) for layer in task_spec["layers"]]
    settings = {"layers": layers, "max_seq_length": task_spec["max_seq_length"], "normalize": task_spec["normalize"]}
    for name, trained in settings.items():
        if name in options.given_flags and getattr(options, name) != trained:
            raise UserError(
                f"--pooling={TRAINED} sets --{name}, and {options.init} was trained with another value ({trained}); "
                f"remove --{name}, or pass another --pooling"
            )
    return dataclasses.replace(options, pooling=task_spec["pooling"], **settings)


def read_task_spec(init: str) -> dict[str, Any]:
    """Returns the contents of task.json of a fine-tuned model, or an empty dict for other checkpoints."""
    return finetuned.read_task_spec(init) or {}


def read_texts(
    path: str, trained: Mapping[str, Any], silent: bool = False, is_split_into_words: bool = False
) -> Iterator[str | list[str]]:
    """Yields the texts of a file as `FeatureExtractor.extract` takes them.

    Each is a string, a list of one text or two texts, or a list of words.

    Args:
        path: A table (see `tables.is_table`), or a file with one text per line.
        trained: Contents of the model's task.json, which names the columns of a table. If it names none, they are text
            and, for pairs, text_pair.
        silent: Whether to suppress notes about the file.
        is_split_into_words: Whether to read lists of words from the column "words".

    Raises:
        UserError: If a line is not UTF-8 or too long, or a row has no text.
    """
    if is_split_into_words:
        yield from _read_words(path)
        return
    if not tables.is_table(path):
        for _, row in tables.read_rows(path, NoBadRows(), is_plain_text=True):
            yield row[tables.TEXT]
        return
    table = trained.get("table") or {}
    is_pair, unexpected = trained.get("pair"), None
    if is_pair is None:
        _, first = next(tables.read_rows(path, BadRows(SKIP, silent=True)), (0, {}))
        is_pair = "text_pair" in first
        unexpected = None if is_pair else "text_pair"
    inputs = ["text", "text_pair"] if is_pair else ["text"]
    for row in batch_prediction.read_rows(path, inputs, table, unexpected=unexpected, silent=silent):
        yield [row[name] for name in inputs]


def _read_words(path: str) -> Iterator[list[str]]:
    bad_rows = NoBadRows()
    for line, row in tables.read_rows(path, bad_rows):
        words: Any = row.get(_WORDS)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            bad_rows.add(path, line, f"{_WORDS} is {json.dumps(words)[:60]}; expected a list of words")
        yield words
