"""Writes the vectors of texts: `python -m extract_features --init=model --input_file=a.txt --output_file=a.npy`."""

import dataclasses
from collections.abc import Iterator

from official_bert import command_line

# isort: split
import official_bert
from official_bert import feature_files, files
from official_bert.command_line import option
from official_bert.errors import UserError
from official_bert.features import ALIGNMENTS, NONE, PIECES, POOLINGS, FeatureExtractor
from official_bert.progress import Progress


@dataclasses.dataclass(frozen=True)
class Options:
    """What extract_features is told; the defaults are the original's."""

    init: str = option(dataclasses.MISSING, "The checkpoint of an encoder: a folder or file in any format.")
    input_file: str = option(dataclasses.MISSING, 'A text on each line; of a pair with " ||| " between.')
    output_file: str = option(dataclasses.MISSING, "Where the vectors go: a name in .npy, .parquet or .jsonl.")
    output_format: str = option(
        feature_files.AUTO, 'The file\'s format; "original" is the JSON lines of the original.', feature_files.FORMATS
    )
    layers: list[str] = option(["-1", "-2", "-3", "-4"], "The layers: 1 is the first, -1 the last.")
    pooling: str = option(NONE, "One vector for a text, of [CLS], or the mean or maximum over all tokens.", POOLINGS)
    align: str = option(PIECES, "Without pooling: a vector for each piece, or the mean for each word.", ALIGNMENTS)
    max_seq_length: int = option(128, "How many tokens of a text are kept, with [CLS] and [SEP].")
    batch_size: int = option(32, "How many texts are computed at a time.")
    vocab_file: str | None = option(None, "A vocab.txt, where the checkpoint has none.")
    do_lower_case: bool | None = option(None, "Whether the vocabulary is uncased, where the checkpoint does not say.")


def main(_: list[str]) -> None:
    options = command_line.read(Options)
    format = feature_files.format_of(options.output_file, options.output_format)
    if not files.exists(options.input_file):
        raise UserError(f"there is no file {options.input_file}")
    loaded = official_bert.load(options.init, options.vocab_file, options.do_lower_case)
    extractor = FeatureExtractor(
        loaded,
        _numbers(options.layers),
        options.pooling,
        options.align,
        options.max_seq_length,
        options.batch_size,
    )
    progress = Progress("extracting", files.size(options.input_file) / 1e3, "kB")
    count = truncated = done = 0
    with feature_files.writer(options.output_file, format, extractor, options.pooling) as add:
        for features in extractor.extract(_lines(options.input_file)):
            add(features)
            count, truncated, done = (
                count + 1,
                truncated + features.is_truncated,
                done + len(features.text.encode()) + 1,
            )
            progress.update(done / 1e3)
    print(f"{count:,} texts in {options.output_file}; {truncated:,} were cut to {options.max_seq_length} tokens")


def _numbers(layers: list[str]) -> list[int]:
    try:
        return [int(layer) for layer in layers]
    except ValueError as error:
        raise UserError(f"--layers={','.join(layers)}: expected numbers, such as -1,-2") from error


def _lines(path: str) -> Iterator[str]:
    with files.open_bytes(path) as reader:
        for number, line in enumerate(reader, start=1):
            try:
                yield line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}, line {number}: not UTF-8; convert the file") from error


if __name__ == "__main__":
    command_line.define(Options)
    command_line.run(main)
