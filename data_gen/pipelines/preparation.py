"""What comes before any work, on one machine and on Beam: checks, the settings of the instances, the recorded flags."""

import dataclasses
import os
import sys
from typing import Any

from data_gen.options import RecordOptions
from data_gen.pipelines import outputs
from data_gen.rules import masking
from data_gen.rules.instances import InstanceConfig
from official_bert.tokenization import exact
from official_bert.utils import files


def check_options(options: RecordOptions) -> tuple[list[str], str, exact.FullTokenizer]:
    """Returns the text files, the vocabulary's text and the tokenizer, after all checks that need no work.

    Raises:
        UserError: something about the input, the vocabulary or the output is wrong.
    """
    paths = files.expand(options.input_file, "input_file")
    outputs.check_outputs(options, [*paths, options.vocab_file])
    vocab = files.read_text(options.vocab_file)
    tokenizer = exact.FullTokenizer.from_vocab(vocab, source=options.vocab_file, **options.casing._asdict())
    _warn_of_too_few_predictions(options)
    for path in options.output_file:
        files.check_writable(path)
    return paths, vocab, tokenizer


def instance_config(options: RecordOptions, vocab: dict[str, int]) -> InstanceConfig:
    """Returns the settings of the instances that the flags and the vocabulary give."""
    return InstanceConfig(
        max_seq_length=options.max_seq_length,
        max_predictions_per_seq=options.max_predictions_per_seq if options.masking == "static" else 0,
        masked_lm_prob=options.masked_lm_prob,
        short_seq_prob=options.short_seq_prob,
        do_whole_word_mask=options.do_whole_word_mask,
        masking_rates=options.masking_rates,
        sentence_objective=options.sentence_objective,
        cls=vocab[exact.CLS],
        sep=vocab[exact.SEP],
        vocabulary=masking.MaskingVocabulary.of(vocab),
    )


def recorded_flags(options: RecordOptions) -> dict[str, Any]:
    """Returns the flags that the manifest records: those that decide the records' bytes, and the names of the files."""
    ignored = ("input_file", "vocab_file", "num_workers", "strip_accents")
    flags = {name: value for name, value in dataclasses.asdict(options).items() if name not in ignored}
    return {**flags, **options.casing.settings, "output_file": [os.path.basename(path) for path in options.output_file]}


def _warn_of_too_few_predictions(options: RecordOptions) -> None:
    wanted = masking.number_to_predict(options.max_seq_length, options.masked_lm_prob, options.max_seq_length)
    if options.max_predictions_per_seq < wanted:
        print(
            f"warning: --max_predictions_per_seq is {options.max_predictions_per_seq}, but --masked_lm_prob="
            f"{options.masked_lm_prob} of {options.max_seq_length} tokens are {wanted}: full records will have fewer "
            f"predictions than asked for; pass --max_predictions_per_seq={wanted}",
            file=sys.stderr,
        )
