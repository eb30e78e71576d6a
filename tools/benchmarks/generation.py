"""Measures speed and memory of record generation: `python -m tools.benchmarks.generation`.

Each row of the table measures `official-bert make-records` as users run it, including its start and all its processes.
The text is repeated or shortened to each size. Memory is the largest resident size of any process, with and without
pages of mapped files.
"""

import dataclasses
import functools
import pathlib
import shutil
import tempfile

from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.flags import ValidatedOptions, option
from tools.benchmarks import measuring, samples


@dataclasses.dataclass(frozen=True)
class Options(ValidatedOptions):
    """The flags of the benchmark."""

    text: list[str] = option([], "Text files or glob patterns; default: Python's documentation.")
    vocab_file: str | None = option(None, "The vocabulary; required with --text.")
    sizes_mb: list[str] = option(["5", "10", "20"], "Sizes of the corpus in MB, separated by commas.", items=int, min=1)
    workers: list[str] = option(["1", "2"], "Numbers of worker processes, separated by commas.", items=int, min=1)
    dupe_factor: int = option(10, "How often the text is used.")
    rounds: int = option(3, "Number of rounds.", min=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.text) != bool(self.vocab_file):
            raise UserError("--text and --vocab_file go together; pass both or neither")
        if not (self.sizes_mb and self.workers):
            raise UserError("--sizes_mb and --workers need one or more numbers, separated by commas")


def write_corpus(text: bytes, path: str, megabytes: int) -> None:
    """Writes a corpus of `megabytes` MB: the text repeated, up to the end of a document."""
    whole, rest = divmod(megabytes * 1_000_000, len(text))
    with open(path, "wb") as file:
        for _ in range(whole):
            file.write(text)
        file.write(text[: text.rfind(b"\n\n", 0, rest) + 2])


def generate(corpus: str, vocab_file: str, options: Options, workers: int) -> measuring.Metrics:
    """Runs `official-bert make-records` on a corpus and returns its metrics."""
    folder = pathlib.Path(f"{corpus}.records")
    output = folder / "records.tfrecord"
    usage = measuring.run([
        *measuring.COMMAND, "make-records", f"--input_file={corpus}", f"--output_file={output}",
        f"--vocab_file={vocab_file}", f"--dupe_factor={options.dupe_factor}", f"--num_workers={workers}",
    ], watch_memory=True)  # fmt: skip
    instances = manifest.Manifest.read(manifest.get_manifest_path(str(output.with_suffix("")))).statistics["instances"]
    shutil.rmtree(folder)
    return {
        "instances": instances,
        "seconds": usage.wall,
        "instances/s": instances / usage.wall,
        "instances/CPU-s": instances / usage.cpu,
        "MiB": usage.memory,
        "MiB without mapped files": usage.own_memory,
    }


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if options.vocab_file:
            inputs, vocab_file = files.expand(options.text, "text"), str(pathlib.Path(options.vocab_file).absolute())
        else:
            _, text_file, vocab_file = samples.write_text(folder)
            inputs = [text_file]
        text = b"".join(files.read_bytes(path).rstrip(b"\n") + b"\n\n" for path in inputs)
        programs = {}
        for megabytes in options.sizes_mb:
            corpus = f"{folder}/{megabytes}.txt"
            write_corpus(text, corpus, int(megabytes))
            for workers in options.workers:
                name = f"{megabytes} MB, {workers} worker{'s' * (workers != '1')}"
                programs[name] = functools.partial(generate, corpus, vocab_file, options, int(workers))
        title = f"Records of length 128 from text, dupe_factor {options.dupe_factor}"
        measuring.compare(title, programs, options.rounds, "instances/s")


if __name__ == "__main__":
    measuring.run_benchmark(
        main,
        Options,
        examples=("--sizes_mb=100,1000 --dupe_factor=1", "--text='wiki/*' --vocab_file=vocab.txt"),
    )
