"""Makes TFRecord files from text files on one machine: the implementation of make-records."""

from collections.abc import Callable

from data_gen.options import RecordOptions
from data_gen.pipelines import fast, outputs, preparation, reference
from data_gen.pipelines.worker_pool import WorkerPool
from official_bert.data import manifest
from official_bert.utils import files


def create_pretraining_data(options: RecordOptions, pool: Callable[[str], WorkerPool] = WorkerPool) -> dict[str, int]:
    """Reads the text, makes the instances, and writes the records and their manifest. Returns their statistics.

    With the fast algorithm, the records depend only on text, vocabulary, flags and seed, not on the number of workers
    or on interruptions. The reference algorithm holds everything in memory, like the original script. For the same
    text, flags and seed it writes the same records as the original.

    Args:
        options: The flags.
        pool: Function that creates the fast algorithm's pool of workers for a working folder. Defaults to processes on
            this machine.

    Raises:
        UserError: If the input, the vocabulary or the output cannot be used.
    """
    inputs = preparation.prepare_inputs(options)
    with outputs.lock_outputs(options):
        states = {path: None if files.is_remote(path) else files.size_and_time(path) for path in inputs.paths}
        source = manifest.describe_source(inputs.flags, inputs.vocab, inputs.paths)
        completed = outputs.read_completed(options, source)
        if completed:
            print("these records are already complete, by their sizes; verify-records also checks their contents")
            return completed.statistics
        if options.algorithm == "reference":
            return reference.create_records(options, inputs, source, states).statistics
        return fast.create_records(options, inputs, source, states, pool).statistics
