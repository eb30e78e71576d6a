"""The fast algorithm on Apache Beam, on many machines: the same bytes as by fast.py.

1. Each input file is tokenized into a part of the corpus.
2. The parts are joined into the corpus, which is then cut into blocks, and the shards are planned: by one worker.
3. Each block of documents is instances into instances, once for each pass. As random segments come from anywhere in the
   corpus, each worker's machine fetches all of it.
4. Beam brings the instances of each shard's range of keys together. A worker sorts them, a bucket at a time, from its
   disk, and writes the shard.
5. The manifest is written.

Parts and corpus are in a working folder beside the records, which all workers must be able to reach. Beam may run any
step twice, even at the same time. So a result either has a unique name, which is passed on, or it appears whole and
equals the result of the other run.
"""

import dataclasses
import os
import uuid
from typing import Any

import apache_beam as beam

from data_gen.options import RecordOptions
from data_gen.pipelines import beam_steps, outputs, preparation
from data_gen.pipelines.beam_job import Job
from data_gen.pipelines.preparation import Prepared
from data_gen.pipelines.summary import RecordSummary
from data_gen.text import formats
from official_bert.data import manifest
from official_bert.utils import beam_runner, files


def create_pretraining_data(options: RecordOptions, beam_arguments: list[str]) -> RecordSummary:
    """Does what one_machine.create_pretraining_data does, on Apache Beam; waits until it is done.

    Args:
        options: as for one machine, but that the runner decides how many workers there are; paths may be remote.
        beam_arguments: Beam's pipeline options, such as "--runner=DataflowRunner".

    Raises:
        UserError: something about the input, the vocabulary, the output or the options is wrong.
    """
    preparation.check_for_cluster(options)
    prepared = preparation.check_options(options)
    with outputs.lock_outputs(options):
        return _create_locked(options, beam_arguments, prepared)


def _create_locked(options: RecordOptions, beam_arguments: list[str], prepared: Prepared) -> RecordSummary:
    paths, boundaries, excluded = prepared.paths, prepared.boundaries, prepared.excluded
    manifests = outputs.manifest_files(options)
    if any(map(files.exists, manifests)):
        # Whether this is the same run depends on the whole text, so it is read here, in this case only.
        source = manifest.describe_source(prepared.flags, files.sha256(options.vocab_file), paths)
        done = manifest.completed(source, manifests)
        if done:
            print("these records are complete already")
            return RecordSummary.of(done.statistics)
    folder = f"{files.absolute(options.stem)}.beam-{uuid.uuid4().hex[:8]}"
    outputs_everywhere, vocab_file = list(map(files.absolute, options.output_file)), os.path.join(folder, "vocab.txt")
    everywhere = dataclasses.replace(options, output_file=outputs_everywhere, vocab_file=vocab_file)
    words_file = os.path.join(folder, "words.txt")
    if boundaries and boundaries.words:
        everywhere = dataclasses.replace(everywhere, word_boundaries=words_file)
    excluded_file = os.path.join(folder, "excluded.txt")
    if excluded:
        everywhere = dataclasses.replace(everywhere, exclude_texts=[excluded_file])
    job = Job(everywhere, list(map(files.absolute, paths)), folder, prepared.flags)
    print(f"working folder, removed at the end: {folder}")
    try:
        files.copy(options.vocab_file, vocab_file)
        if boundaries and boundaries.words:
            files.write_text(words_file, boundaries.words)
        if excluded:
            files.write_text(excluded_file, "\n".join(excluded.texts))
        beam_runner.run_pipeline(lambda root: _build(root, job), beam_arguments, job.error)
        if options.input_format == "auto":
            print(formats.describe_formats(files.read_text(job.formats).splitlines()))
    finally:
        files.remove_folder(folder)
    return RecordSummary.of(manifest.Manifest.read(manifests[0]).statistics)


def _build(root: Any, job: Job) -> None:
    """Adds the steps to a pipeline."""
    parts = (
        root
        | "inputs" >> beam.Create(list(enumerate(job.inputs)))
        | "inputs apart" >> beam.Reshuffle()
        | "tokenize" >> beam.ParDo(beam_steps.Tokenize(job))
    )
    plan = (
        root | "once" >> beam.Create([None]) | "join" >> beam.Map(beam_steps.join_parts, job, beam.pvalue.AsList(parts))
    )
    planned = beam.pvalue.AsSingleton(plan)
    instances = (
        plan
        | "blocks" >> beam.FlatMap(beam_steps.block_tasks, job)
        | "blocks apart" >> beam.Reshuffle()
        | "make instances"
        >> beam.ParDo(beam_steps.MakeInstances(job), planned).with_outputs("statistics", main="slices")
    )
    # Every shard is written, even one that no instance falls into.
    empty = plan | "shards" >> beam.FlatMap(beam_steps.empty_slices)
    shards = (
        (instances.slices, empty)
        | "slices" >> beam.Flatten()
        | "of a shard" >> beam.GroupByKey()
        | "write records" >> beam.Map(beam_steps.write_shard, job, planned)
    )
    counts = instances.statistics | "count" >> beam.CombineGlobally(manifest.total)
    _ = (
        root
        | "last" >> beam.Create([None])
        | "describe" >> beam.Map(
            beam_steps.write_manifest, job, planned, beam.pvalue.AsList(shards), beam.pvalue.AsSingleton(counts)
        )
    )  # fmt: skip
