"""The steps of the Beam pipeline: what happens to an input file, a block and a shard."""

import contextlib
import dataclasses
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np

from data_gen.pipelines import preparation
from data_gen.pipelines.beam_job import Job, copy_corpus, open_corpus, written_folder
from data_gen.pipelines.run_plan import RunPlan, plan_run
from data_gen.pipelines.shuffle import Layout
from data_gen.pipelines.summary import no_text
from data_gen.pipelines.worker import ShardMaker
from data_gen.text import exclusion, formats, token_store, word_boundaries
from data_gen.text.token_store import TokenStore
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.tokenization.exact import FullTokenizer, load_vocab
from official_bert.utils import files

# A bucket's rows of a block: number of the bucket, number of the block among those of all passes, the rows' bytes.
Slice = tuple[int, int, bytes]


class Part(NamedTuple):
    """A tokenized input file."""

    number: int  # of the file among all
    folder: str  # of the part
    format: str  # the text's
    sha256: str  # of the file


@dataclasses.dataclass(frozen=True)
class CorpusPlan:
    """What the tasks of all blocks and shards share."""

    run: RunPlan
    corpus: str  # its folder
    source: dict[str, Any]  # for the manifest
    text: dict[str, int]  # counts


class Tokenize(beam.DoFn):
    """A number and an input file to a part."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def setup(self) -> None:
        options = self._job.options
        exact = FullTokenizer(options.vocab_file, *options.casing)
        self._tokenizer = preparation.encoder(exact, word_boundaries.load(options.word_boundaries))
        self._excluded = exclusion.load(options.exclude_texts)

    def process(self, element: tuple[int, str]) -> Iterator[Part]:
        number, path = element
        options = self._job.options
        with self._job.reporting_errors():
            format = formats.format_of(path, options)
            folder = self._job.new(f"part-{number:05}")
            with written_folder(folder) as local:
                preparation.write_part(
                    local, formats.documents_of(path, format, options), self._tokenizer, self._excluded
                )
            yield Part(number, folder, format, manifest.sha256(path))


def join_parts(_: None, job: Job, parts: Iterable[Part]) -> CorpusPlan:
    """Joins the parts into the corpus and plans the rest."""
    parts = sorted(parts)
    options = job.options
    vocab = load_vocab(options.vocab_file)
    with job.reporting_errors(), contextlib.ExitStack() as stack:
        files.write_text(job.formats, "\n".join(part.format for part in parts))
        folders = [part.folder for part in parts]
        if files.is_remote(job.folder):
            scratch = stack.enter_context(tempfile.TemporaryDirectory())
            folders = [os.path.join(scratch, part.folder.rpartition("/")[2]) for part in parts]
            for part, folder in zip(parts, folders, strict=True):
                copy_corpus(part.folder, folder)
        corpus = job.new("corpus")
        vocab_hash, hashes = files.sha256(options.vocab_file), [part.sha256 for part in parts]
        source = manifest.source_of(job.flags, vocab_hash, job.inputs, hashes)
        with written_folder(corpus) as local:
            text = token_store.join_parts(local, folders)
            if not text["tokens"]:
                raise UserError(no_text(text))
            store = TokenStore(local, token_store.id_dtype(vocab, options.word_boundaries is not None))
            run = plan_run(options, preparation.instance_config(options, vocab), store)
        return CorpusPlan(run, corpus, source, text)


def block_tasks(plan: CorpusPlan, job: Job) -> Iterator[tuple[int, int]]:
    """Yields the pass and the block of each task."""
    yield from itertools.product(range(job.options.dupe_factor), range(len(plan.run.blocks)))


def _maker(job: Job, plan: CorpusPlan) -> ShardMaker:
    return ShardMaker(job.options, plan.run, load_vocab(job.options.vocab_file))


def empty_slices(plan: CorpusPlan) -> Iterator[tuple[int, Slice]]:
    for shard in range(len(plan.run.outputs)):
        yield shard, (shard * plan.run.buckets_per_shard, 0, b"")


class MakeInstances(beam.DoFn):
    """A pass and a block to the block's instances, as slices by shard, and their statistics."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._corpus = ""

    def process(self, element: tuple[int, int], plan: CorpusPlan) -> Iterator[Any]:
        with self._job.reporting_errors():
            if self._corpus != plan.corpus:
                self._corpus, self._maker = plan.corpus, _maker(self._job, plan)
                self._store = open_corpus(plan.corpus, self._maker.layout.ids)
            number, block = element
            rows, statistics = self._maker.block(self._store, number, block)
        yield beam.pvalue.TaggedOutput("statistics", statistics)
        starts = self._maker.layout.bucket_starts(rows["key"])
        block_number = number * len(plan.run.blocks) + block
        for bucket in np.flatnonzero(np.diff(starts)).tolist():
            content = rows[starts[bucket] : starts[bucket + 1]].tobytes()
            yield bucket // plan.run.buckets_per_shard, (bucket, block_number, content)


def write_shard(element: tuple[int, Iterable[Slice]], job: Job, plan: CorpusPlan) -> dict[str, Any]:
    """Sorts a shard's instances and writes them; returns the shard's entry for the manifest."""
    number, slices = element
    maker = _maker(job, plan)
    with job.reporting_errors(), tempfile.TemporaryDirectory() as scratch:
        for bucket, block_number, content in slices:
            with open(os.path.join(scratch, f"rows-{bucket}"), "ab") as rows:
                rows.write(content)
            with open(os.path.join(scratch, f"blocks-{bucket}"), "ab") as blocks:
                blocks.write(np.full(len(content) // maker.layout.row.itemsize, block_number, "<i8").data)
        entry = maker.shard(number, (_sorted(scratch, bucket, maker.layout) for bucket in maker.buckets(number)))
    return {"number": number, **entry}


def _sorted(scratch: str, bucket: int, layout: Layout) -> np.ndarray:
    """Returns a bucket's rows in the order of their keys; of equal ones, of the blocks."""
    path = os.path.join(scratch, f"rows-{bucket}")
    if not os.path.exists(path):
        return np.empty(0, layout.row)
    rows = np.fromfile(path, layout.row)
    blocks = np.fromfile(os.path.join(scratch, f"blocks-{bucket}"), "<i8")
    return rows[np.lexsort((blocks, rows["key"]))]


def write_manifest(
    _: None, job: Job, plan: CorpusPlan, shards: Iterable[dict[str, Any]], counts: dict[str, int]
) -> None:
    shards = sorted(shards, key=lambda shard: shard["number"])
    entries = [manifest.Shard(*(shard[field.name] for field in dataclasses.fields(manifest.Shard))) for shard in shards]
    statistics = {f"text_{name}": value for name, value in plan.text.items()} | counts
    with job.reporting_errors():
        description = manifest.Manifest(plan.source, entries, statistics)
        manifest.write(plan.run.outputs, job.options.stem, description)
