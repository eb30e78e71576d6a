"""The vectors of a file of texts, written to a file: the whole of features, without its flags."""

from collections.abc import Iterator

from official_bert.checkpoints import loading
from official_bert.checkpoints.loading import Loaded
from official_bert.errors import UserError
from official_bert.inference import feature_files
from official_bert.inference.features import FeatureExtractor
from official_bert.inference.options import FeatureOptions
from official_bert.utils import files, tables
from official_bert.utils.locks import lock_file
from official_bert.utils.progress import Progress


def write_features(options: FeatureOptions) -> str:
    """Writes the vectors of each line of the input file; returns a line that says how many.

    Raises:
        UserError: there is no such file or checkpoint, or a line is not UTF-8 or too long.
    """
    format = feature_files.format_of(options.output_file, options.output_format)
    if not files.exists(options.input_file):
        raise UserError(f"there is no file {options.input_file}")
    inputs = [options.input_file, options.init, *([options.vocab_file] if options.vocab_file else [])]
    for path in feature_files.paths_of(options.output_file, format, options.pooling):
        files.refuse_overwriting(path, "output_file", inputs)
    with lock_file(options.output_file, "output_file"):
        return _write_features(options, format)


def _write_features(options: FeatureOptions, format: str) -> str:
    extractor = make_extractor(options, loading.load(options.init, options.vocab_file, options.do_lower_case))
    progress = Progress("extracting", files.size(options.input_file) / 1e3, "kB")
    count = truncated = done = 0
    with feature_files.writer(options.output_file, format, extractor, options.pooling) as add:
        for features in extractor.extract(read_lines(options.input_file)):
            add(features)
            count += 1
            truncated += features.is_truncated
            done += len(features.text.encode()) + 1
            progress.update(done / 1e3)
    return f"{count:,} texts in {options.output_file}; {truncated:,} were cut to {options.max_seq_length} tokens"


def make_extractor(options: FeatureOptions, loaded: Loaded) -> FeatureExtractor:
    """Returns what turns texts into vectors as the options say."""
    return FeatureExtractor(
        loaded,
        _numbers(options.layers),
        options.pooling,
        align=options.align,
        max_seq_length=options.max_seq_length,
        batch_size=options.batch_size,
    )


def _numbers(layers: list[str]) -> list[int]:
    try:
        return [int(layer) for layer in layers]
    except ValueError as error:
        raise UserError(f"--layers={','.join(layers)}: expected numbers, such as -1,-2") from error


def read_lines(path: str) -> Iterator[str]:
    """Yields the texts of a file, without line ends; a line that is not UTF-8 is a UserError with its number."""
    with files.open_bytes(path) as reader:
        for number, line in enumerate(reader, start=1):
            try:
                text = line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}, line {number}: not UTF-8; convert the file") from error
            if len(text) > tables.MAX_CHARACTERS:
                raise UserError(f"{path}, line {number}: {tables.too_long('the text', len(text))}")
            yield text
