"""What a run checks of its flags and files before anything else."""

import dataclasses
from collections.abc import Iterable

from official_bert.checkpoints.vocabulary import check_vocabulary, lines_of
from official_bert.data.sentence_objectives import NONE
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.options import Options
from official_bert.pretraining.record_files import RecordFiles
from official_bert.tokenization.casing import Casing, casing_for, describe_contradiction
from official_bert.utils import files


def read_config(options: Options) -> BertConfig:
    """Returns the model's configuration, with the vocabulary's size where that is asked for."""
    config = BertConfig.from_json_file(options.bert_config_file)
    config = options.apply_to(config)
    if options.vocab_size_from_vocab:
        vocab = files.read_text(str(options.vocab_file))
        return dataclasses.replace(config, vocab_size=len(lines_of(vocab)))
    return config


def check_vocabulary_size(options: Options, config: BertConfig) -> None:
    """Raises a UserError if the vocabulary has more tokens than the model; warns if it has fewer."""
    if options.vocab_file:
        for note in check_vocabulary(files.read_text(options.vocab_file), config, options.vocab_file):
            print(f"warning: {note}; --vocab_size_from_vocab makes the table as large as the vocabulary", flush=True)


def check_vocabulary_casing(options: Options, casing: Casing | None, has_manifest: bool) -> Casing | None:
    """Returns the casing of the run's texts, which the vocabulary decides if `casing` is None.

    Raises:
        UserError: If the vocabulary contradicts the casing.
    """
    if not options.vocab_file:
        return casing
    tokens = lines_of(files.read_text(options.vocab_file))
    if casing is None:
        return casing_for(tokens, None)
    remedy = "make the records again with" if has_manifest else "pass"
    if problem := describe_contradiction(tokens, casing.do_lower_case, options.vocab_file, remedy):
        raise UserError(problem)
    return casing


def check_lengths(options: Options, config: BertConfig) -> None:
    """Raises a UserError if a phase has longer records than the model reads."""
    for phase in options.phases:
        if phase.max_seq_length > config.max_position_embeddings:
            raise UserError(
                f"{phase.flag('max_seq_length')} is {phase.max_seq_length}, but {options.bert_config_file} has "
                f"max_position_embeddings {config.max_position_embeddings}"
            )


def check_objectives(options: Options, training: Iterable[RecordFiles], evaluated: Iterable[RecordFiles]) -> None:
    """Raises a UserError if the records of phases and evaluation are of several objectives, or not of the run's."""
    training = list(training)
    objectives = sorted({each.sentence_objective for each in (*training, *evaluated)})
    if len(objectives) > 1:
        raise UserError(
            f"make-records wrote the run's records with several values of --sentence_objective: "
            f"{', '.join(objectives)}; give records of one kind for all phases and for evaluation"
        )
    rates = sorted({each.masking_rates for each in training})
    if len(rates) > 1:
        raise UserError(
            f"make-records wrote the phases' records with several values of --masking_rates: {', '.join(rates)}; "
            "give records of one kind"
        )
    if options.next_sentence_prediction and objectives == [NONE]:
        raise UserError(
            f"make-records wrote the records with --sentence_objective={NONE}: they have no second segment to predict; "
            "give --nonext_sentence_prediction, or records of another objective"
        )


def check_packing(options: Options, config: BertConfig) -> None:
    """Raises a UserError if records are to be packed for a model that cannot tell them apart."""
    if options.pack_sequences and not config.predicts_masked_tokens:
        raise UserError("--pack_sequences works for masked LMs only, and this model predicts next tokens; leave it out")


def check_replicas(options: Options, replicas: int) -> None:
    """Raises a UserError if batches cannot be shared evenly among the replicas, or they are not those expected."""
    on_tpu = options.strategy == "tpu"
    if options.num_tpu_cores is not None and on_tpu and options.num_tpu_cores != replicas:
        raise UserError(f"--num_tpu_cores is {options.num_tpu_cores}, but the TPU has {replicas}")
    if options.jit_compile and (replicas > 1 or on_tpu):
        raise UserError("--jit_compile is for one CPU or GPU; leave it out")
    if options.eval_batch_size % replicas:
        raise UserError(f"--eval_batch_size is {options.eval_batch_size}; expected a multiple of {replicas} replicas")
    parts = replicas * options.gradient_accumulation_steps
    for phase in options.phases:
        if phase.train_batch_size % parts:
            raise UserError(
                f"{phase.flag('train_batch_size')} is {phase.train_batch_size}; expected a multiple of the {replicas} "
                f"replicas times --gradient_accumulation_steps={options.gradient_accumulation_steps}, {parts}"
            )
