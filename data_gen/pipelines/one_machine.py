"""From text files to TFRecord files on one machine: the whole of make-records, without its flags."""

import hashlib
from collections.abc import Callable

from data_gen.options import RecordOptions
from data_gen.pipelines import fast, outputs, preparation, reference
from data_gen.pipelines.summary import RecordSummary
from data_gen.pipelines.worker_pool import Pool, WorkerPool
from data_gen.text import file_states
from official_bert.data import manifest


def create_pretraining_data(options: RecordOptions, pool: Callable[[str], Pool] = WorkerPool) -> RecordSummary:
    """Reads the text, makes the instances, writes the records and beside them a manifest.

    The fast algorithm's records depend on text, vocabulary, flags and seed alone: not on the number of workers, and not
    on whether a run was stopped and resumed. The reference algorithm holds everything in memory, as the original does;
    for the same text, flags and seed its records equal those of the original script.

    Args:
        options: the flags.
        pool: makes what does the tasks of the fast algorithm: processes of this machine, or another's.

    Raises:
        UserError: something about the input, the vocabulary or the output is wrong.
    """
    paths, vocab, tokenizer, boundaries, excluded, flags = preparation.check_options(options)
    with outputs.lock_outputs(options):
        states = {path: file_states.file_state(path) for path in paths}
        vocab_hash = hashlib.sha256(vocab.encode()).hexdigest()
        source = manifest.describe_source(flags, vocab_hash, paths)
        completed = outputs.read_completed(options, source)
        if completed:
            print("these records are complete already")
            return RecordSummary.of(completed.statistics)
        if options.algorithm == "reference":
            return reference.create(options, source, states, preparation.encoder(tokenizer, boundaries), excluded)
        return RecordSummary.of(fast.create(options, source, states, vocab, boundaries, excluded, pool).statistics)
