"""predict and features on many machines: the same results as on one machine, in numbered files.

The steps are in shards.py; beam_shards.py and dask_shards.py run them.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from official_bert.checkpoints.loading import Loaded
from official_bert.inference import batch_prediction, dask_shards, exports, feature_extraction, feature_files, shards
from official_bert.inference.features import FeatureExtractor
from official_bert.inference.options import BatchPredictionOptions, FeatureOptions
from official_bert.utils import beam_runner, dask_cluster, files


def predict(options: BatchPredictionOptions, num_shards: int, beam_arguments: list[str]) -> str:
    """Answers as `batch_prediction.predict`, on Apache Beam or Dask; returns a line about it.

    Args:
        options: as on one machine, but that the input may be a pattern of several files, and paths may be remote.
        num_shards: into how many files the answers go.
        beam_arguments: Beam's pipeline options, or --runner=dask and --dask_address.

    Raises:
        UserError: as on one machine.
    """
    batch_prediction.check_batch_size(options)
    folder = files.absolute(exports.newest_version(options.export_dir))
    files.refuse_overwriting(options.output_file, "output_file", exports.files_of(folder))
    inputs, table = batch_prediction.check_export(folder)
    computation = _Prediction(
        folder, batch_prediction.model_digest(folder), inputs, table, options.batch_size,
        batch_prediction.BATCHES_AT_ONCE * options.batch_size,
    )  # fmt: skip
    return shards.run(computation, options.input_file, options.output_file, num_shards, _runner(beam_arguments))


def _runner(beam_arguments: list[str]) -> Callable[[shards.Job], None]:
    """Returns what makes shards."""
    if address := dask_cluster.address_in(beam_arguments):
        return functools.partial(dask_shards.make_shards, address=address)
    beam_runner.import_beam()
    from official_bert.inference import beam_shards

    return functools.partial(beam_shards.make_shards, beam_arguments=beam_arguments)


@dataclasses.dataclass(frozen=True)
class _Prediction:
    """Rows to answers, by the export in a folder."""

    folder: str
    sha256: str
    inputs: list[str]
    table: dict[str, Any]
    batch_size: int
    rows_at_once: int

    @property
    def identity(self) -> dict[str, Any]:
        return {"model": self.folder, "model_sha256": self.sha256, "batch_size": self.batch_size}

    def read(self, path: str) -> Iterator[dict[str, Any]]:
        return batch_prediction.read_rows(path, self.inputs, self.table)

    def load(self) -> Any:
        return batch_prediction.load_model(self.folder)

    def files_of(self, path: str) -> list[str]:
        return [path]

    def write(self, model: Any, first: int, rows: Iterator[dict[str, Any]], path: str) -> None:
        with files.written_whole(path) as beside, open(beside, "wb") as writer:
            while some := list(itertools.islice(rows, self.rows_at_once)):
                try:
                    answers = batch_prediction.answers_to(model, some, self.batch_size)
                except batch_prediction.RefusedRow as refused:
                    raise batch_prediction.RefusedRow(first + refused.number, refused.reason) from refused
                writer.write(batch_prediction.as_lines(answers).encode())
                first += len(some)


def write_features(options: FeatureOptions, num_shards: int, beam_arguments: list[str]) -> str:
    """Writes vectors as `feature_extraction.write_features`, on Apache Beam or Dask; returns a line about it.

    Arguments and errors are as for `predict`.
    """
    options = feature_extraction.as_trained(options)
    feature_files.format_of(options.output_file, options.output_format)
    vocab_file = files.absolute(options.vocab_file) if options.vocab_file else None
    options = dataclasses.replace(options, init=files.absolute(options.init), vocab_file=vocab_file)
    files.refuse_overwriting(options.output_file, "output_file", [options.init, *([vocab_file] if vocab_file else [])])
    loaded = feature_extraction.load(options)
    extractor = feature_extraction.make_extractor(options, loaded)  # so that wrong options are refused here
    trained = feature_extraction.trained_with(options.init)
    computation = _Extraction(options, trained, _digest(loaded), extractor.texts_at_a_time)
    return shards.run(computation, options.input_file, options.output_file, num_shards, _runner(beam_arguments))


def _digest(loaded: Loaded) -> str:
    """A SHA-256 of all that vectors depend on."""
    settings = loaded.tokenizer.basic_tokenizer.casing.settings
    described = [dataclasses.asdict(loaded.config), loaded.tokenizer.vocab, settings]
    digest = hashlib.sha256(json.dumps(described).encode())
    for variable in loaded.encoder.weights:
        digest.update(np.ascontiguousarray(variable.numpy()).data)
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class _Extraction:
    """Texts to vectors."""

    options: FeatureOptions
    trained: dict[str, Any]
    sha256: str
    rows_at_once: int

    @property
    def identity(self) -> dict[str, Any]:
        names = ("init", "layers", "pooling", "align", "normalize", "max_seq_length", "batch_size")
        return {"model_sha256": self.sha256, **{name: getattr(self.options, name) for name in names}}

    def read(self, path: str) -> Iterator[str | list[str]]:
        return feature_extraction.read_texts(path, self.trained)

    def load(self) -> FeatureExtractor:
        options = self.options
        loaded = feature_extraction.load(options)
        return feature_extraction.make_extractor(options, loaded)

    def files_of(self, path: str) -> list[str]:
        format = feature_files.format_of(self.options.output_file, self.options.output_format)
        return feature_files.paths_of(path, format, self.options.pooling)

    def write(self, model: FeatureExtractor, first: int, rows: Iterator[str | list[str]], path: str) -> None:
        format = feature_files.format_of(self.options.output_file, self.options.output_format)
        with feature_files.writer(path, format, model, self.options.pooling, first) as add:
            for features in model.extract(rows):
                add(features)
