"""The predict and features commands on a Dask cluster.

The results are the same as on one machine, in one file per shard.

1. One task per input file counts its rows and computes their digest. It reads every row, so that a bad row is reported
   before the first result.
2. One task per missing shard reads the shard's rows and writes its output file, which appears when it is complete.

Any task may run twice, even at the same time: output files are written under a temporary name and renamed.
"""

import dataclasses
import hashlib
import itertools
import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np

from official_bert.checkpoints.loading import ModelAndTokenizer
from official_bert.errors import UserError
from official_bert.inference import exports, feature_extraction, vector_files
from official_bert.inference.batch_prediction import Locate, Prediction
from official_bert.inference.feature_extractor import FeatureExtractor
from official_bert.inference.options import BatchPredictionOptions, FeatureOptions
from official_bert.inference.shards import Shard, check_same_run
from official_bert.runs.locks import lock_file
from official_bert.utils import dask_cluster, files, row_files
from official_bert.utils.counting import pluralize

# The flags of features that the results depend on.
_RESULT_OPTIONS = "init layers pooling align normalize max_seq_length batch_size is_split_into_words".split()
_models: dict[str, Any] = {}  # In a worker: the model of the last run, shared by the threads.
_loading = threading.Lock()


def predict(options: BatchPredictionOptions, num_shards: int, address: str) -> str:
    """Answers the rows of the input files on a Dask cluster, and returns a summary line.

    Does the same as `batch_prediction.predict`.

    Args:
        options: The flags. --input_file may also be a pattern that matches several files.
        num_shards: Number of output files.
        address: Address of the Dask scheduler.

    Raises:
        UserError: If the input, the output, the export or the cluster cannot be used.
    """
    folder = files.make_absolute(exports.find_newest_version(options.export_dir))
    files.refuse_overwriting(options.output_file, "output_file", exports.list_model_files(folder))
    return _run_on_cluster(Prediction.open(folder, options.batch_size), options, num_shards, address)


def write_vectors(options: FeatureOptions, num_shards: int, address: str) -> str:
    """Computes the vectors of texts on a Dask cluster, and returns a summary line.

    Does the same as `feature_extraction.write_vectors`.

    Args:
        options: The flags. --input_file may also be a pattern that matches several files.
        num_shards: Number of output files.
        address: Address of the Dask scheduler.

    Raises:
        UserError: If the input, the output, the checkpoint or the cluster cannot be used.
    """
    options = feature_extraction.complete_options(options)
    vocab_file = files.make_absolute(options.vocab_file) if options.vocab_file else None
    options = dataclasses.replace(options, init=files.make_absolute(options.init), vocab_file=vocab_file)
    files.refuse_overwriting(options.output_file, "output_file", [options.init, *([vocab_file] if vocab_file else [])])
    extractor = feature_extraction.load_extractor(options)  # Reports wrong options before the first task.
    options = dataclasses.replace(options, max_seq_length=extractor.max_seq_length)
    trained = feature_extraction.read_task_spec(options.init)
    computation = _Extraction(options, trained, _compute_digest(extractor.loaded), extractor.texts_at_a_time)
    return _run_on_cluster(computation, options, num_shards, address)


@dataclasses.dataclass(frozen=True)
class _Extraction:
    """The computation of the features command that Dask workers run. It has the same methods as Prediction."""

    options: FeatureOptions
    trained: dict[str, Any]
    sha256: str
    rows_per_group: int

    @property
    def identity(self) -> dict[str, Any]:
        return {"model_sha256": self.sha256, **{name: getattr(self.options, name) for name in _RESULT_OPTIONS}}

    def read(self, path: str) -> Iterator[str | list[str]]:
        return feature_extraction.read_texts(path, self.trained, True, self.options.is_split_into_words)

    def load(self) -> FeatureExtractor:
        return feature_extraction.load_extractor(self.options)

    def output_files(self, path: str) -> list[str]:
        return vector_files.list_output_files(path, self.options.output_format, self.options.pooling)

    def write(
        self, model: FeatureExtractor, first: int, rows: Iterator[str | list[str]], path: str, locate: Locate
    ) -> None:
        del locate
        vector_files.write(path, self.options.output_format, model, model.extract(rows), first)


Computation = Prediction | _Extraction


def _compute_digest(loaded: ModelAndTokenizer) -> str:
    """Returns a SHA-256 of the configuration, vocabulary, casing and weights of an encoder, on which vectors depend."""
    settings = loaded.tokenizer.casing.settings
    described = [dataclasses.asdict(loaded.config), loaded.tokenizer.vocab, settings]
    digest = hashlib.sha256(json.dumps(described).encode())
    for variable in loaded.model.weights:
        digest.update(np.ascontiguousarray(variable.numpy()).data)
    return digest.hexdigest()


def _run_on_cluster(
    computation: Computation, options: BatchPredictionOptions | FeatureOptions, num_shards: int, address: str
) -> str:
    """Computes the shards that do not exist yet on a Dask cluster, and returns a summary line.

    Args:
        computation: The computation of the command, with its settings.
        options: The flags. --input_file is a file, or a pattern that matches several files. The names of the shards are
            derived from --output_file.
        num_shards: Number of shards.
        address: Address of the Dask scheduler.

    Raises:
        UserError: If a row, the output or the cluster cannot be used, or if existing shards belong to another run.
    """
    inputs = list(map(files.make_absolute, row_files.expand([options.input_file], "input_file")))
    output_file = files.make_absolute(options.output_file)
    run_file = f"{output_file}.run.json"
    shards = [Shard(index, num_shards) for index in range(num_shards)]
    paths = [shard.path(output_file) for shard in shards]
    for path in [*itertools.chain.from_iterable(map(computation.output_files, paths)), run_file]:
        files.refuse_overwriting(path, "output_file", inputs)
    with lock_file(output_file, "output_file"):
        is_complete = [_is_complete(computation, path) for path in paths]
        if any(is_complete) and not files.exists(run_file):
            raise UserError(
                f"{paths[is_complete.index(True)]} exists, but {run_file}, which describes its run, does not. Remove "
                "the shard or pass another --output_file."
            )
        try:
            with dask_cluster.Cluster(address) as cluster:
                counting = [(computation, path) for path in inputs]
                sources = cluster.run_tasks("counting", _count_rows, counting, "files")
                check_same_run(run_file, {
                    **computation.identity, "inputs": sources, "rows_per_group": computation.rows_per_group,
                    "num_shards": num_shards,
                })  # fmt: skip
                run = uuid.uuid4().hex
                missing = [
                    (computation, sources, shard, path, run)
                    for shard, path, complete in zip(shards, paths, is_complete, strict=True)
                    if not complete
                ]
                cluster.run_tasks("computing", _compute_shard, missing, "files")
        except OSError as error:
            raise UserError(f"A worker could not read or write a file: {error}") from error
    num_rows = sum(source["rows"] for source in sources)
    kept = f"; {sum(is_complete)} of {pluralize(num_shards, 'file')} from an earlier run" if any(is_complete) else ""
    return f"Wrote {pluralize(num_rows, 'text')} to {paths[0]}{' ...' if num_shards > 1 else ''}{kept}"


def _is_complete(computation: Computation, path: str) -> bool:
    return all(map(files.exists, computation.output_files(path)))


def _count_rows(computation: Computation, path: str) -> dict[str, Any]:
    """Reads an input file, and returns its entry in the run file: its path, number of rows and SHA-256."""
    num_rows, digest = 0, hashlib.sha256()
    for row in computation.read(path):
        digest.update(json.dumps(row).encode() + b"\n")
        num_rows += 1
    return {"file": path, "rows": num_rows, "sha256": digest.hexdigest()}


def _compute_shard(computation: Computation, sources: list[dict[str, Any]], shard: Shard, path: str, run: str) -> None:
    """Computes and writes a shard. Does nothing if another worker has already written it.

    Args:
        computation: The computation of the command, with its settings.
        sources: The entries of the input files in the run file.
        shard: The part of the rows to compute.
        path: The shard's output file.
        run: Identifier of the run. It is the worker's cache key for the model.
    """
    if _is_complete(computation, path):
        return
    ends = list(itertools.accumulate(source["rows"] for source in sources))
    first, end = shard.row_range(ends[-1], computation.rows_per_group)

    def locate(index: int) -> tuple[str, int]:
        source, last = next(each for each in zip(sources, ends, strict=True) if first + index < each[1])
        return source["file"], first + index - last + source["rows"] + 1

    rows = _read_range(computation, sources, first, end)
    computation.write(_load_model(run, computation), first, rows, path, locate)


def _read_range(computation: Computation, sources: list[dict[str, Any]], first: int, end: int) -> Iterator[Any]:
    """Yields the rows from index `first` up to, but not including, `end`, counted over all input files."""
    start = 0
    for source in sources:
        stop = start + source["rows"]
        if start < end and first < stop:
            yield from itertools.islice(computation.read(source["file"]), max(first - start, 0), end - start)
        start = stop


def _load_model(run: str, computation: Computation) -> Any:
    with _loading:
        if run not in _models:
            _models.clear()
            _models[run] = computation.load()
        return _models[run]
