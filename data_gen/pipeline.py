"""From text files to TFRecord files: the whole of create_pretraining_data, without its flags."""

import dataclasses
import hashlib
import os
import sys
from typing import Any

from data_gen import fast_pipeline, masking, outputs, reference_pipeline, text_lines, token_store
from data_gen.instances import InstanceConfig
from data_gen.options import RecordOptions
from data_gen.record_summary import RecordSummary
from data_gen.run_plan import Settings, TextPlan
from official_bert.data import manifest
from official_bert.tokenization import exact
from official_bert.utils import files


def create_pretraining_data(options: RecordOptions) -> RecordSummary:
    """Reads the text, makes the instances, writes the records and beside them a manifest.

    The fast algorithm's records depend on text, vocabulary, flags and seed alone: not on the number of workers, and not
    on whether a run was stopped and resumed. The reference algorithm holds everything in memory, as the original does;
    for the same text, flags and seed its records equal those of the original script.

    Raises:
        UserError: something about the input, the vocabulary or the output is wrong.
    """
    paths, vocab, tokenizer = check_options(options)
    with outputs.lock_outputs(options):
        states = {path: text_lines.file_state(path) for path in paths}
        vocab_hash = hashlib.sha256(vocab.encode()).hexdigest()
        source = manifest.describe_source(recorded_flags(options), vocab_hash, paths)
        completed = manifest.completed(source, outputs.manifest_files(options))
        if completed:
            print("these records are complete already")
            return RecordSummary.of(completed.statistics)
        config = instance_config(options, tokenizer.vocab)
        if options.algorithm == "reference":
            return reference_pipeline.create(options, states, tokenizer, config, source)
        text = text_plan(options, paths, tokenizer.vocab)
        description = fast_pipeline.create(fast_settings(options, source), text, states, config, vocab)
        return RecordSummary.of(description.statistics)


def check_options(options: RecordOptions) -> tuple[list[str], str, exact.FullTokenizer]:
    """Returns the text files, the vocabulary's text and the tokenizer, after all checks that need no work.

    Raises:
        UserError: something about the input, the vocabulary or the output is wrong.
    """
    paths = files.expand(options.input_file, "input_file")
    outputs.check_outputs(options, [*paths, options.vocab_file])
    vocab = files.read_text(options.vocab_file)
    tokenizer = exact.FullTokenizer.from_vocab(vocab, options.do_lower_case, options.vocab_file)
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
    ignored = ("input_file", "vocab_file", "num_workers")
    flags = {name: value for name, value in dataclasses.asdict(options).items() if name not in ignored}
    return {**flags, "output_file": [os.path.basename(path) for path in options.output_file]}


def fast_settings(options: RecordOptions, source: dict[str, Any]) -> Settings:
    """Returns the settings of the fast pipeline."""
    return Settings(
        work_folder=options.work_folder,
        stem=options.stem,
        name_outputs=lambda size: outputs.shard_names(options, size),
        seed=options.random_seed,
        passes=options.dupe_factor,
        block_tokens=options.block_tokens,
        num_workers=options.num_workers,
        compress=options.gzip,
        source=source,
    )


def text_plan(options: RecordOptions, paths: list[str], vocab: dict[str, int]) -> TextPlan:
    """Returns what the fast pipeline's workers know of these text files."""
    return TextPlan(
        inputs=list(map(files.absolute, paths)),
        input_format=options.input_format,
        language=options.language,
        json_field=options.json_field,
        drop_invalid_utf8=options.drop_invalid_utf8,
        do_lower_case=options.do_lower_case,
        ids=token_store.id_dtype(max(vocab.values()) + 1).str,
    )


def _warn_of_too_few_predictions(options: RecordOptions) -> None:
    wanted = masking.number_to_predict(options.max_seq_length, options.masked_lm_prob, options.max_seq_length)
    if options.max_predictions_per_seq < wanted:
        print(
            f"warning: --max_predictions_per_seq is {options.max_predictions_per_seq}, but --masked_lm_prob="
            f"{options.masked_lm_prob} of {options.max_seq_length} tokens are {wanted}: full records will have fewer "
            f"predictions than asked for; pass --max_predictions_per_seq={wanted}",
            file=sys.stderr,
        )
