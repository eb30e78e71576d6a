"""Prints the first records of TFRecord files, and statistics of all records."""

import textwrap
from collections.abc import Mapping
from typing import Any

from data_gen.inspection import batches, report
from data_gen.inspection.samples import Sample, read_sample
from data_gen.inspection.statistics import Statistics
from data_gen.options import InspectionOptions
from official_bert.data import manifest
from official_bert.data.record_reader import track_reading
from official_bert.data.sentence_objectives import get_objective
from official_bert.errors import UserError
from official_bert.tokenization import exact
from official_bert.utils import files

_COLUMNS = 100
_MOST_PREDICTED = 20


def inspect(options: InspectionOptions) -> None:
    """Runs inspect-records: prints the first records and statistics of all records, and writes the HTML report.

    Raises:
        UserError: If a record is damaged, or was made with a different vocabulary.
    """
    paths = files.expand(options.input_file, "input_file")
    vocab = exact.load_vocab(options.vocab_file)
    exact.check_special_tokens(vocab, options.vocab_file)
    vocab_hash = manifest.hash_vocabulary(files.read_text(options.vocab_file))
    if options.report:
        files.refuse_overwriting(options.report, "report", [*paths, options.vocab_file])
        files.check_writable(options.report)
    schema = batches.infer_schema(paths, max(vocab.values()) + 1)
    statistics = Statistics(schema, vocab)
    progress = track_reading("reading", paths)
    samples: list[Sample] = []
    for path in paths:
        number = 0
        source = _find_source(path)
        if source and source["vocabulary"] != vocab_hash:
            raise UserError(
                f"--vocab_file={options.vocab_file} is not the vocabulary that {path} was made with (the hash in its "
                "manifest differs); pass that vocabulary"
            )
        objective = get_objective(source["flags"] if source else {})
        for batch in batches.read_batches(path, schema, progress):
            for row in range(min(len(batch["input_ids"]), options.num_records - len(samples))):
                name = f"{path}, record {number + row} (from 0)"
                samples.append(read_sample(batch, row, vocab, name, objective))
                print(_format_sample(samples[-1]), end="\n\n")
            number += len(batch["input_ids"])
            statistics.add(batch)
    if options.report:
        page = report.make_page(", ".join(options.input_file), samples, statistics, _MOST_PREDICTED)
        files.write_text(options.report, page)
    print("\n".join(f"{name:<17} {value}" for name, value in statistics.summarize()))
    for histogram in statistics.draw_histograms():
        print(f"\n{histogram}")
    if statistics.predictions:
        print("\nMost predicted tokens")
        for token, count in statistics.list_most_predicted(_MOST_PREDICTED):
            print(f"  {count:>13,} {100 * count / statistics.predictions:5.1f} %  {token}")
    if options.report:
        print(f"\nSaved {options.report}")


def _find_source(path: str) -> Mapping[str, Any] | None:
    """Returns what the manifest of a file says that its records were made from. None without a matching manifest."""
    try:
        described = manifest.find_shards([path])
    except UserError:  # The file does not match the manifest. It is shown without it.
        return None
    return described[path][0].source if path in described else None


def _format_sample(sample: Sample) -> str:
    lines = [sample.name, *(f"  {line}" for line in sample.properties)]
    for name, tokens in sample.segments:
        words = " ".join(f"{token}{{{original}}}" if original is not None else token for token, original in tokens)
        wrapper = textwrap.TextWrapper(_COLUMNS, f"  {name}: ", " " * 5, break_long_words=False, break_on_hyphens=False)
        lines += wrapper.wrap(words)
    return "\n".join(lines)
