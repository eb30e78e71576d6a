"""Shows TFRecord files readably, with statistics: `python -m data_gen.inspect_records --help`."""

import dataclasses
import os
import sys
import textwrap

from official_bert import command_line

# isort: split
from official_bert import files, tokenization
from data_gen import record_batches, record_report, record_samples
from data_gen.record_samples import Sample
from data_gen.record_statistics import Statistics
from official_bert.command_line import option
from official_bert.errors import UserError

_COLUMNS = 100
_MOST_PREDICTED = 20


@dataclasses.dataclass(frozen=True)
class Options:
    """What inspect_records is told."""

    input_file: list[str] = option(dataclasses.MISSING, "Record files or glob patterns, separated by commas.")
    vocab_file: str = option(dataclasses.MISSING, "The vocabulary that the records were made with.")
    num_records: int = option(3, "How many of the first records are shown; the statistics are of all.")
    report: str | None = option(None, "An HTML page to write, with the records and plots; it needs no other file.")

    def __post_init__(self) -> None:
        if self.num_records < 0:
            raise UserError(f"--num_records is {self.num_records}; expected at least 0")


def inspect(options: Options) -> None:
    """Prints the first records and statistics of all, and writes the report.

    Raises:
        UserError: the vocabulary is not that of the records, or a record is bad; it is named.
    """
    paths = files.expand(options.input_file, "input_file")
    vocab = tokenization.load_vocab(options.vocab_file)
    tokenization.check_special_tokens(vocab, options.vocab_file)
    if options.report:
        if os.path.abspath(options.report) in map(os.path.abspath, [*paths, options.vocab_file]):
            raise UserError(f"--report names {options.report}, which is an input; writing would destroy it")
        record_report.check_matplotlib()
        files.check_writable(options.report)
    schema = record_batches.schema_of(paths, max(vocab.values()) + 1)
    statistics = Statistics(schema, vocab)
    progress = record_batches.ReadingProgress("reading", sum(map(files.size, paths)))
    samples: list[Sample] = []
    for path in paths:
        number = 0
        for batch in record_batches.batches(path, schema, progress.advance):
            for row in range(min(len(batch["input_ids"]), options.num_records - len(samples))):
                samples.append(record_samples.sample(batch, row, vocab, f"{path}, record {number + row} (from 0)"))
                print(_readable(samples[-1]), end="\n\n")
            number += len(batch["input_ids"])
            statistics.add(batch)
    if options.report:
        page = record_report.page(", ".join(options.input_file), samples, statistics, _MOST_PREDICTED)
        files.write_text(options.report, page)
    print("\n".join(f"{name:<17} {value}" for name, value in statistics.summary()))
    for histogram in statistics.histograms():
        print(f"\n{histogram}")
    if statistics.predictions:
        print("\nMost predicted tokens")
        for token, count in statistics.most_predicted(_MOST_PREDICTED):
            print(f"  {count:>13,} {100 * count / statistics.predictions:5.1f} %  {token}")
    if options.report:
        print(f"\nwritten to {options.report}")


def _readable(sample: Sample) -> str:
    lines = [sample.name, *(f"  {line}" for line in sample.facts)]
    for name, tokens in sample.segments:
        words = [f"{token}{{{original}}}" if original is not None else token for token, original in tokens]
        lines += textwrap.wrap(
            " ".join(words),
            _COLUMNS,
            initial_indent=f"  {name}: ",
            subsequent_indent=" " * 5,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def main(_: list[str]) -> None:
    try:
        inspect(command_line.read(Options))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output, `head` say, has seen enough; Python would complain of it once more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    command_line.define(Options)
    command_line.run(main)
