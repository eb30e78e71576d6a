"""The fast algorithm on Apache Beam: the bytes of fast_pipeline.py, made by many machines.

1. Each input file is tokenized into a part of the corpus.
2. The parts are joined into the corpus, which is then cut into blocks, and the shards are planned: by one worker.
3. Each block of documents is made into instances, once for each pass. As random segments come from anywhere in the
   corpus, each worker's machine fetches all of it.
4. Beam brings the instances of each shard's range of keys together. A worker sorts them, a bucket at a time, from its
   disk, and writes the shard.
5. The manifest is written.

Parts and corpus stand in a working folder beside the records, which all workers must be able to reach. Beam may do
anything twice, even at the same time. So a result either has a name of its own, which is handed on, or it appears whole
and is equal to the other one.
"""

import atexit
import contextlib
import dataclasses
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState

from official_bert import files, manifest
from data_gen import fast_pipeline, pipeline, text_formats, token_store
from data_gen.shuffle import Layout
from data_gen.token_store import TokenStore
from data_gen.worker import Maker, Run
from official_bert.errors import UserError
from official_bert.fast_tokenization import FastTokenizer
from official_bert.tokenization import UNK, load_vocab

# Of a part or corpus; the last one says that all are there.
_FILES = (token_store.IDS, token_store.SENTENCES, token_store.DOCUMENTS, token_store.COMPLETE)

# A bucket's rows of a block: number of the bucket, place of the block among all of all passes, the rows' bytes.
_Slice = tuple[int, int, bytes]


@dataclasses.dataclass(frozen=True)
class _Job:
    """What every worker is told.

    Attributes:
        options: with paths that hold on every machine; the vocabulary is in the working folder.
        inputs: text files.
        folder: the working folder.
    """

    options: pipeline.Options
    inputs: list[str]
    folder: str

    def new(self, name: str) -> str:
        """Returns a path in the working folder that nobody else has."""
        return os.path.join(self.folder, f"{name}-{uuid.uuid4().hex[:12]}")

    @property
    def error(self) -> str:
        """Where a worker says what went wrong."""
        return os.path.join(self.folder, "error.txt")

    @property
    def formats(self) -> str:
        """Where a worker says which formats the input files have."""
        return os.path.join(self.folder, "formats.txt")

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Writes down an error that a person can mend: what the runner shows of it is a traceback."""
        try:
            yield
        except (UserError, OSError) as error:
            message = str(error) if isinstance(error, UserError) else f"a worker could not read or write: {error}"
            with contextlib.suppress(UserError):
                files.write_text(self.error, message)
            raise UserError(message) from error


@dataclasses.dataclass(frozen=True)
class _Part:
    """A tokenized input file.

    Attributes:
        number: of the file among all.
        folder: of the part.
        format: the text's.
        sha256: of the file.
    """

    number: int
    folder: str
    format: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What all blocks and shards share.

    Attributes:
        run: how the corpus is cut, and into what.
        corpus: its folder.
        source: for the manifest.
        text: counts of the text.
    """

    run: Run
    corpus: str
    source: dict[str, Any]
    text: dict[str, int]


def create_pretraining_data(options: pipeline.Options, beam_arguments: list[str]) -> pipeline.Summary:
    """Does what pipeline.create_pretraining_data does, on Apache Beam; waits until it is done.

    Args:
        options: as for one machine, but that the runner decides how many workers there are; paths may be remote.
        beam_arguments: Beam's pipeline options, such as "--runner=DataflowRunner".

    Raises:
        UserError: something about the input, the vocabulary, the output or the options is wrong.
    """
    if options.algorithm != "fast":
        raise UserError(f"--algorithm={options.algorithm} runs on one machine alone: data_gen.create_pretraining_data")
    default = next(field.default for field in dataclasses.fields(options) if field.name == "num_workers")
    if options.num_workers != default:
        raise UserError(
            "--num_workers is for one machine; say to Beam how many workers to use, in its options after --"
        )
    paths, _ = pipeline.checked(options)
    described = manifest.manifest_path(options.stem)
    if files.exists(described):
        # Read here, this once: whether this is the same run depends on the whole text.
        source = manifest.describe_source(pipeline.flags_that_matter(options), options.vocab_file, paths)
        done = manifest.completed(source, described)
        if done:
            print("these records are complete already")
            return pipeline.Summary.of(done.statistics)
    folder = f"{files.absolute(options.stem)}.beam-{uuid.uuid4().hex[:8]}"
    everywhere = dataclasses.replace(
        options,
        output_file=list(map(files.absolute, options.output_file)),
        vocab_file=os.path.join(folder, "vocab.txt"),
    )
    job = _Job(everywhere, list(map(files.absolute, paths)), folder)
    print(f"working folder, removed at the end: {folder}")
    try:
        files.copy(options.vocab_file, everywhere.vocab_file)
        _run(job, beam_arguments)
        if options.input_format == "auto":
            print(text_formats.told(files.read_text(job.formats).splitlines()))
    except Exception as error:
        if files.exists(job.error):
            raise UserError(files.read_text(job.error)) from error
        raise
    finally:
        files.remove_folder(folder)
    return pipeline.Summary.of(manifest.Manifest.read(described).statistics)


def _run(job: _Job, arguments: list[str]) -> None:
    options = PipelineOptions(arguments)
    runner = options.view_as(StandardOptions).runner
    if runner in (None, "DirectRunner"):
        unknown = options.get_all_options(retain_unknown_options=True).keys() - options.get_all_options().keys()
        if unknown:  # other runners may know them
            raise UserError(f"Beam's DirectRunner has no option --{' and no --'.join(sorted(unknown))}")
        # Beam's own choice for this name would first try to download a program.
        runner = FnApiRunner()
        logging.getLogger("apache_beam.runners.common").addFilter(_is_a_defect)
    try:
        work = beam.Pipeline(runner=runner, options=options)
    except (ValueError, ImportError) as error:
        raise UserError(f"Beam refuses its options: {' '.join(str(error).split())}") from error
    _build(work, job)
    result = work.run()
    try:
        state = result.wait_until_finish()
    except KeyboardInterrupt:
        result.cancel()  # it would go on, without its working folder
        raise
    if state not in (None, PipelineState.DONE):
        raise UserError(f"the job on Beam ended in the state {state}; see the runner's own log")


def _is_a_defect(record: logging.LogRecord) -> bool:
    """Whether an error should be logged with its traceback; others are shown as one line at the end."""
    return not (record.exc_info and isinstance(record.exc_info[1], UserError))


def _build(root: Any, job: _Job) -> None:
    """Adds the steps to a pipeline."""
    parts = (
        root
        | "inputs" >> beam.Create(list(enumerate(job.inputs)))
        | "inputs apart" >> beam.Reshuffle()
        | "tokenize" >> beam.ParDo(_Tokenize(job))
    )
    plan = root | "once" >> beam.Create([None]) | "join" >> beam.Map(_join, job, beam.pvalue.AsList(parts))
    planned = beam.pvalue.AsSingleton(plan)
    made = (
        plan
        | "blocks" >> beam.FlatMap(_blocks)
        | "blocks apart" >> beam.Reshuffle()
        | "make instances" >> beam.ParDo(_MakeInstances(job), planned).with_outputs("statistics", main="slices")
    )
    # Every shard is written, even one that no instance falls into.
    empty = plan | "shards" >> beam.FlatMap(_empty_slices)
    shards = (
        (made.slices, empty)
        | "slices" >> beam.Flatten()
        | "of a shard" >> beam.GroupByKey()
        | "write records" >> beam.Map(_write_shard, job, planned)
    )
    counts = made.statistics | "count" >> beam.CombineGlobally(manifest.total)
    _ = (
        root
        | "last" >> beam.Create([None])
        | "describe" >> beam.Map(
            _describe, job, planned, beam.pvalue.AsList(shards), beam.pvalue.AsSingleton(counts)
        )
    )  # fmt: skip


class _Tokenize(beam.DoFn):
    """A number and an input file to a part."""

    def __init__(self, job: _Job) -> None:
        self._job = job

    def setup(self) -> None:
        options = self._job.options
        self._tokenizer = FastTokenizer(options.vocab_file, options.do_lower_case)

    def process(self, element: tuple[int, str]) -> Iterator[_Part]:
        number, path = element
        options = self._job.options
        with self._job.telling():
            format = options.input_format
            if format == "auto":
                format = text_formats.found_format(path, options.language)
            folder = self._job.new(f"part-{number:05}")
            vocab = self._tokenizer.exact.vocab
            with _made(folder) as local:
                documents = pipeline.read_documents(options, path, format)
                token_store.write_part(local, documents, self._tokenizer.encode, _ids(vocab), vocab[UNK])
            yield _Part(number, folder, format, manifest.sha256(path))


def _ids(vocab: dict[str, int]) -> np.dtype:
    return token_store.id_dtype(max(vocab.values()) + 1)


@contextlib.contextmanager
def _made(folder: str) -> Iterator[str]:
    """Yields a local folder to be made; its files then are in `folder`, wherever that is."""
    if not files.is_remote(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory() as scratch:
        local = os.path.join(scratch, "made")
        yield local
        _copy(local, folder)


def _copy(source: str, target: str) -> None:
    for name in _FILES:
        files.copy(os.path.join(source, name), os.path.join(target, name))


def _join(_: None, job: _Job, parts: Iterable[_Part]) -> _Plan:
    """Joins the parts into the corpus and plans the rest."""
    parts = sorted(parts, key=lambda part: part.number)
    options = job.options
    vocab = load_vocab(options.vocab_file)
    with job.telling(), contextlib.ExitStack() as stack:
        files.write_text(job.formats, "\n".join(part.format for part in parts))
        folders = [part.folder for part in parts]
        if files.is_remote(job.folder):
            scratch = stack.enter_context(tempfile.TemporaryDirectory())
            folders = [os.path.join(scratch, part.folder.rpartition("/")[2]) for part in parts]
            for part, folder in zip(parts, folders, strict=True):
                _copy(part.folder, folder)
        corpus = job.new("corpus")
        source = manifest.source_of(
            pipeline.flags_that_matter(options), options.vocab_file, job.inputs, [part.sha256 for part in parts]
        )
        with _made(corpus) as local:
            text = token_store.join_parts(local, folders)
            if not text["tokens"]:
                raise UserError("the input holds no text")
            settings = pipeline.settings_of(options, job.inputs, source)
            run = fast_pipeline.plan(settings, pipeline.law_of(options, vocab), local, _ids(vocab))
        return _Plan(run, corpus, source, text)


def _blocks(plan: _Plan) -> Iterator[tuple[int, int]]:
    """Yields the pass and the block of each task."""
    for number in range(plan.run.passes):
        for block in range(len(plan.run.blocks)):
            yield number, block


def _empty_slices(plan: _Plan) -> Iterator[tuple[int, _Slice]]:
    for shard in range(len(plan.run.outputs)):
        yield shard, (shard * plan.run.buckets_per_shard, 0, b"")


class _MakeInstances(beam.DoFn):
    """A pass and a block to the block's instances, as slices by shard, and their statistics."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._corpus = ""

    def process(self, element: tuple[int, int], plan: _Plan) -> Iterator[Any]:
        with self._job.telling():
            if self._corpus != plan.corpus:
                self._corpus, self._maker = plan.corpus, Maker(plan.run)
                self._store = _opened(plan.corpus, self._maker.layout.ids)
            number, block = element
            rows, statistics = self._maker.block(self._store, number, block)
        yield beam.pvalue.TaggedOutput("statistics", statistics)
        starts = self._maker.layout.bucket_starts(rows["key"])
        place = number * len(plan.run.blocks) + block
        for bucket in np.flatnonzero(np.diff(starts)).tolist():
            content = rows[starts[bucket] : starts[bucket + 1]].tobytes()
            yield bucket // plan.run.buckets_per_shard, (bucket, place, content)


def _opened(corpus: str, dtype: np.dtype) -> TokenStore:
    """Opens the corpus; a remote one in a copy on this machine's disk, which its processes share."""
    if not files.is_remote(corpus):
        return TokenStore(corpus, dtype)
    name = f"official_bert-{hashlib.sha256(corpus.encode()).hexdigest()[:16]}"
    local = os.path.join(tempfile.gettempdir(), name)
    with _locked(f"{local}.lock"):
        if not os.path.exists(os.path.join(local, token_store.COMPLETE)):
            _copy(corpus, local)
            atexit.register(_remove, local)
        return TokenStore(local, dtype)


def _remove(folder: str) -> None:
    # Processes that have its files open keep them; others, if there are any, fetch the corpus anew.
    with _locked(f"{folder}.lock"):
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Keeps out other processes of this machine, and other threads."""
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_shard(element: tuple[int, Iterable[_Slice]], job: _Job, plan: _Plan) -> dict[str, Any]:
    """Sorts a shard's instances and writes them; returns what the manifest says of the shard."""
    number, slices = element
    maker = Maker(plan.run)
    with job.telling(), tempfile.TemporaryDirectory() as scratch:
        for bucket, place, content in slices:
            with open(os.path.join(scratch, f"rows-{bucket}"), "ab") as rows:
                rows.write(content)
            with open(os.path.join(scratch, f"places-{bucket}"), "ab") as places:
                places.write(np.full(len(content) // maker.layout.row.itemsize, place, "<i8").data)
        described = maker.shard(number, (_sorted(scratch, bucket, maker.layout) for bucket in maker.buckets(number)))
    return {"number": number, **described}


def _sorted(scratch: str, bucket: int, layout: Layout) -> np.ndarray:
    """Returns a bucket's rows in the order of their keys; of equal ones, of the blocks."""
    path = os.path.join(scratch, f"rows-{bucket}")
    if not os.path.exists(path):
        return np.empty(0, layout.row)
    rows = np.fromfile(path, layout.row)
    places = np.fromfile(os.path.join(scratch, f"places-{bucket}"), "<i8")
    return rows[np.lexsort((places, rows["key"]))]


def _describe(_: None, job: _Job, plan: _Plan, shards: Iterable[dict[str, Any]], counts: dict[str, int]) -> None:
    """Writes the manifest."""
    shards = sorted(shards, key=lambda shard: shard["number"])
    described = [manifest.Shard(**{name: shard[name] for name in shard if name != "number"}) for shard in shards]
    statistics = {f"text_{name}": value for name, value in plan.text.items()} | counts
    with job.telling():
        made = manifest.Manifest(plan.source, described, statistics)
        files.write_text(manifest.manifest_path(job.options.stem), made.to_json())
