"""Checks the flags of make-records, reads small inputs, and derives settings that both algorithms use."""

import dataclasses
import os
import sys
from typing import Any, NamedTuple

from data_gen.options import RecordOptions
from data_gen.pipelines import outputs
from data_gen.rules import masking
from data_gen.rules.instances import InstanceConfig
from data_gen.text import exclusion, word_boundaries
from data_gen.text.exclusion import ExcludedTexts
from data_gen.text.word_boundaries import MarkingTokenizer, WordBoundaries
from official_bert.data import manifest
from official_bert.data.masking_rates import MaskingRates
from official_bert.errors import UserError
from official_bert.tokenization import exact
from official_bert.tokenization.casing import describe_contradiction
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files, row_files


class RunInputs(NamedTuple):
    """The inputs of a make-records run, checked.

    Attributes:
        paths: The text files.
        vocab: The text of the vocab.txt.
        tokenizer: The tokenizer.
        boundaries: Finds the words whose tokens are masked together. None if WordPiece's words are used.
        excluded: Texts whose documents are left out, or None.
        flags: The flags to store in the manifest: file names, and all flags that determine the records' bytes.
    """

    paths: list[str]
    vocab: str
    tokenizer: FastTokenizer
    boundaries: WordBoundaries | None
    excluded: ExcludedTexts | None
    flags: dict[str, Any]


def prepare_inputs(options: RecordOptions) -> RunInputs:
    """Checks the flags and returns the inputs of the run.

    Raises:
        UserError: If the input, the vocabulary, the word boundaries, the excluded texts or the output cannot be used.
    """
    paths = row_files.expand(options.input_file, "input_file")
    boundaries = word_boundaries.load(options.word_boundaries)
    lists = [str(options.word_boundaries)] if boundaries and boundaries.words else []
    exclude_files, excluded = exclusion.load_described(options.exclude_texts)
    outputs.check_outputs(options, [*paths, options.vocab_file, *lists, *exclude_files])
    vocab = files.read_text(options.vocab_file)
    tokenizer = FastTokenizer.from_vocab(vocab, source=options.vocab_file, **options.casing._asdict())
    if problem := describe_contradiction(tokenizer.vocab, options.do_lower_case, options.vocab_file, "pass"):
        raise UserError(problem)
    _warn_about_predictions(options)
    for path in options.output_file:
        files.check_writable(path)
    flags = _make_recorded_flags(options, boundaries, exclude_files)
    return RunInputs(paths, vocab, tokenizer, boundaries, excluded, flags)


def make_encoder(tokenizer: FastTokenizer, boundaries: WordBoundaries | None) -> FastTokenizer | MarkingTokenizer:
    """Returns the tokenizer, wrapped in a MarkingTokenizer if there are word boundaries."""
    return MarkingTokenizer(tokenizer, boundaries) if boundaries else tokenizer


def make_instance_config(options: RecordOptions, vocab: dict[str, int]) -> InstanceConfig:
    """Derives the settings for making instances from the flags and the ids of the vocabulary's tokens."""
    return InstanceConfig(
        max_seq_length=options.max_seq_length,
        max_predictions_per_seq=options.max_predictions_per_seq if options.masking == "static" else 0,
        masked_lm_prob=options.masked_lm_prob,
        short_seq_prob=options.short_seq_prob,
        do_whole_word_mask=options.do_whole_word_mask,
        masking_rates=MaskingRates.parse(options.masking_rates),
        sentence_objective=options.sentence_objective,
        cls=vocab[exact.CLS],
        sep=vocab[exact.SEP],
        vocabulary=masking.MaskingVocabulary.from_vocab(vocab),
    )


def _make_recorded_flags(
    options: RecordOptions, boundaries: WordBoundaries | None, exclude_files: list[str]
) -> dict[str, Any]:
    ignored = "input_file vocab_file num_workers strip_accents added_tokens_file word_boundaries exclude_texts".split()
    flags = {name: value for name, value in dataclasses.asdict(options).items() if name not in ignored}
    flags |= options.casing.settings | ({"word_boundaries": boundaries.identity} if boundaries else {})
    if exclude_files:
        flags["exclude_texts"] = manifest.describe_files(exclude_files)
    return {**flags, "output_file": [os.path.basename(path) for path in options.output_file]}


def _warn_about_predictions(options: RecordOptions) -> None:
    wanted = masking.number_to_predict(options.max_seq_length, options.masked_lm_prob, options.max_seq_length)
    if options.max_predictions_per_seq < wanted:
        print(
            f"warning: --max_predictions_per_seq is {options.max_predictions_per_seq}, but --masked_lm_prob="
            f"{options.masked_lm_prob} of {options.max_seq_length} tokens is {wanted}: full records will have fewer "
            f"predictions than requested; pass --max_predictions_per_seq={wanted}",
            file=sys.stderr,
        )
    if options.max_predictions_per_seq > options.max_seq_length:
        print(
            f"warning: --max_predictions_per_seq is {options.max_predictions_per_seq}, but a record has only "
            f"--max_seq_length={options.max_seq_length} tokens; pass --max_predictions_per_seq={wanted}",
            file=sys.stderr,
        )
