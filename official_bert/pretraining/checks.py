"""Checks the flags, the records and the output folder of a run before its first step."""

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence

from official_bert.checkpoints import run_checkpoints
from official_bert.checkpoints.checkpoint import TOKENIZER_FILE, VOCAB_FILE, LoadedModel
from official_bert.checkpoints.model_files import check_model_files, format_model_files, read_casing
from official_bert.checkpoints.vocabulary import check_vocabulary, split_vocab
from official_bert.data import manifest
from official_bert.data.sentence_objectives import NONE, get_objective
from official_bert.errors import CollectedErrors, UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining import initial_checkpoint, run_metadata
from official_bert.pretraining.options import Phase, PretrainingOptions
from official_bert.pretraining.record_files import RecordFiles, get_masking_rates, read_recorded_casing
from official_bert.pretraining.run_records import RunRecords
from official_bert.runs.run_file import Changes
from official_bert.runs.training_log import TRAIN, read_log
from official_bert.runs.training_run import has_lost_checkpoints
from official_bert.tokenization.casing import UNCASED, Casing, describe_contradiction, infer_casing, make_casing
from official_bert.utils import files
from official_bert.utils.counting import pluralize


def read_config(options: PretrainingOptions) -> BertConfig:
    """Returns the model configuration with the changes from flags."""
    config = BertConfig.from_json_file(options.bert_config_file)
    if options.left_to_right:
        config = dataclasses.replace(config, causal_attention=True)
    if options.vocab_size_from_vocab:
        vocab = files.read_text(str(options.vocab_file))
        return dataclasses.replace(config, vocab_size=len(split_vocab(vocab)))
    return config


def warn_of_useless_options(options: PretrainingOptions) -> None:
    """Prints a warning if held-out records are never evaluated, or if a schedule ends before its warm-up does."""
    if options.eval_input_file and not (options.eval_steps or options.do_eval):
        print("warning: --eval_input_file is never evaluated; pass --eval_steps, --do_eval or both", flush=True)
    for phase in options.schedule_phases:
        steps = phase.last_step - phase.first_step
        if phase.num_warmup_steps >= steps:
            print(
                f"warning: the learning rate never reaches {phase.flag('learning_rate')}={phase.learning_rate:g}: the "
                f"training has {pluralize(steps, 'step')}, the warm-up {phase.num_warmup_steps:,} "
                f"({phase.flag('num_warmup_steps')})",
                flush=True,
            )


def find_checkpoint(options: PretrainingOptions) -> str | None:
    """Returns the path of the run's newest complete checkpoint, to resume or evaluate, or None if the run is new.

    Raises:
        UserError: If the checkpoints of an earlier start are missing or unreadable, and --begin_anew is not set.
    """
    folder = options.output_dir
    try:
        newest = run_checkpoints.find_newest_complete(folder)
    except UserError as error:
        if options.do_train and options.begin_anew:
            return None
        hint = "; --begin_anew starts at step 0 in this folder" if options.do_train else ""
        raise UserError(f"{error}{hint}") from error
    if newest or not options.do_train or options.begin_anew:
        return newest
    save_steps = run_metadata.read_run_metadata(folder).get("flags", {}).get("save_checkpoints_steps", math.inf)
    if not has_lost_checkpoints(folder, folder, save_steps):
        return None
    last = max((line["step"] for line in read_log(folder, TRAIN)), default=0)
    raise UserError(
        f"{folder} contains a run that saved checkpoints{f' and logged {last:,} steps' if last else ''}, but they are "
        "missing (ckpt-*.index). Restore them to resume, pass another --output_dir, or pass --begin_anew to start at "
        "step 0 in this folder, which empties its log."
    )


def check_and_resolve_options(
    options: PretrainingOptions,
    config: BertConfig,
    records: RunRecords,
    phases: Sequence[Phase],
    resumed_from: str | None,
    initial: LoadedModel | None,
) -> tuple[PretrainingOptions, dict[str, str], Changes]:
    """Checks the options against the records, the model and an earlier start of the run. Reports all mistakes together.

    Mistakes in single flags are listed before differences from the earlier start.

    Args:
        options: The options.
        config: The model's configuration.
        records: The run's records.
        phases: The phases that have steps left to train.
        resumed_from: Path of the checkpoint to resume, or None.
        initial: The model of --init_checkpoint, or None if it is not used.

    Returns:
        The options, with the casing of the records filled in. The texts of the files next to the checkpoints
        (configuration, vocabulary and so on), by file name. The changed options that --allow_changes permits.

    Raises:
        UserError: If anything is wrong.
    """
    errors = CollectedErrors()
    opened = {phase.number: errors.attempt(records.training, phase) for phase in phases}
    training_records = {number: each for number, each in opened.items() if each}
    found = [errors.attempt(getattr, records, name) for name in ("held_out", "general")]
    evaluated = [each for each in found if each]
    errors.attempt(_check_objectives, options, training_records.values(), evaluated)
    for phase in options.phases:
        flag = phase.flag("max_seq_length")
        errors.attempt(config.check_length, phase.max_seq_length, options.bert_config_file, flag)
    errors.attempt(_check_packing, options, config)
    manifests = [each for some in (*training_records.values(), *evaluated) for each in some.manifests]
    errors.attempt(_check_same_vocabulary, manifests)
    casing = _resolve_casing(options, manifests)
    if options.do_train and initial is not None:
        check = initial_checkpoint.check_initial_checkpoint
        casing = errors.attempt(check, initial, options, config, manifests, casing) or casing
    vocab = errors.attempt(files.read_text, options.vocab_file) if options.vocab_file else None
    casing = errors.attempt(_check_vocabulary, vocab, options, config, casing, bool(manifests)) or casing or UNCASED
    strip_accents = casing.settings.get("strip_accents")
    options = dataclasses.replace(options, do_lower_case=casing.do_lower_case, strip_accents=strip_accents)
    model_files = format_model_files(LoadedModel(config, {}, vocab, casing))
    changes: Changes | None = None
    if options.do_train and not (options.begin_anew and not resumed_from):
        changes = errors.attempt(run_metadata.check_resume_compatibility, options, config, training_records)
        for phase in options.phases[: len(options.phases) - len(phases)]:
            errors.attempt(run_metadata.check_records_of_finished_phase, options, phase)
    errors.attempt(_check_model_files, options, model_files, manifests)
    errors.raise_if_any()
    return options, model_files, changes or {}


def _resolve_casing(options: PretrainingOptions, manifests: Sequence[manifest.Manifest]) -> Casing | None:
    """Returns the casing that the manifests, the flags or the run's folder state, in this order, or else None."""
    for each in manifests:
        if recorded := read_recorded_casing(each):
            return recorded
    if options.do_lower_case is not None or options.strip_accents is not None:
        return make_casing(options.do_lower_case is not False, options.strip_accents)
    path = os.path.join(options.output_dir, TOKENIZER_FILE)
    return read_casing(path) if files.exists(path) else None


def _check_model_files(
    options: PretrainingOptions, contents: dict[str, str], manifests: Sequence[manifest.Manifest]
) -> None:
    """Raises a UserError if the folder contains files of another model.

    If the records' manifest contradicts a stored casing, prints a note that the stored casing will be replaced.

    Args:
        options: The options of the run.
        contents: The texts of the model's small files, by file name.
        manifests: The manifests of the records.
    """
    path = os.path.join(options.output_dir, TOKENIZER_FILE)
    if options.do_train and manifests and TOKENIZER_FILE in contents and files.exists(path):
        if files.read_text(path) != contents[TOKENIZER_FILE]:
            print(f"note: {path} is replaced, because it contradicts the records' manifest", flush=True)
        contents = {name: content for name, content in contents.items() if name != TOKENIZER_FILE}
    check_model_files(options.output_dir, contents)


def _check_vocabulary(
    vocab: str | None, options: PretrainingOptions, config: BertConfig, casing: Casing | None, has_manifest: bool
) -> Casing | None:
    """Returns the casing of the run's text. Infers it from the vocabulary if `casing` is None.

    Raises:
        UserError: If the vocabulary contradicts the casing, or has more tokens than the model.
    """
    if not options.vocab_file:
        if options.do_train and not files.exists(os.path.join(options.output_dir, VOCAB_FILE)):
            print("note: the model will have no vocabulary; pass --vocab_file, so that it can read text", flush=True)
        return casing
    if vocab is None:  # It cannot be read.
        return casing
    for note in check_vocabulary(vocab, config, options.vocab_file):
        print(f"warning: {note}; --vocab_size_from_vocab sets vocab_size to the size of the vocabulary", flush=True)
    tokens = split_vocab(vocab)
    if casing is None:
        return infer_casing(tokens, None)
    remedy = "create the records again with" if has_manifest else "pass"
    if problem := describe_contradiction(tokens, casing.do_lower_case, options.vocab_file, remedy):
        raise UserError(problem)
    return casing


def _check_same_vocabulary(manifests: Iterable[manifest.Manifest]) -> None:
    """Raises a UserError if records were made with different vocabularies. Needed for runs without --vocab_file."""
    if len({each.source["vocabulary"] for each in manifests}) > 1:
        raise UserError(
            "make-records wrote the records with different values of --vocab_file (the hashes in their manifests "
            "differ); use records with one vocabulary for all phases and for evaluation"
        )


def _check_objectives(
    options: PretrainingOptions, training: Iterable[RecordFiles], evaluated: Iterable[RecordFiles]
) -> None:
    """Raises a UserError if the records differ in objective or masking rates, or contradict the run's objective.

    All records must have the same objective. All records for evaluation must have the same masking rates,
    which may differ from the rates of the training records.
    """
    groups = [[each for records in training for each in records.flags], *(records.flags for records in evaluated)]
    objectives = sorted({get_objective(each) for flags in groups for each in flags})
    rates = [sorted(set(map(get_masking_rates, flags))) for flags in groups]
    for name, values in (("sentence_objective", objectives), *(("masking_rates", each) for each in rates)):
        if len(values) > 1:
            raise UserError(
                f"make-records wrote the records with different values of --{name}: {', '.join(values)}; use records "
                "with one value for all phases and for evaluation"
            )
    if options.next_sentence_prediction and objectives == [NONE]:
        raise UserError(
            f"make-records wrote the records with --sentence_objective={NONE}, without sentence labels; pass "
            "--nonext_sentence_prediction, or use records with another objective"
        )


def _check_packing(options: PretrainingOptions, config: BertConfig) -> None:
    """Raises a UserError if --pack_sequences is set for a model that does not support it."""
    if options.pack_sequences and not config.predicts_masked_tokens:
        raise UserError(
            "--pack_sequences supports masked LMs only, but this model predicts next tokens; remove the flag"
        )


def check_replicas(options: PretrainingOptions, replicas: int) -> None:
    """Raises a UserError if batch sizes are not multiples of the number of replicas, or a flag does not suit them."""
    on_tpu = options.strategy == "tpu"
    if options.num_tpu_cores is not None and on_tpu and options.num_tpu_cores != replicas:
        raise UserError(f"--num_tpu_cores is {options.num_tpu_cores}, but the TPU has {replicas}")
    if options.jit_compile and (replicas > 1 or on_tpu):
        raise UserError("--jit_compile supports one CPU or GPU only; remove the flag")
    if options.eval_batch_size % replicas:
        raise UserError(f"--eval_batch_size is {options.eval_batch_size}; expected a multiple of {replicas} replicas")
    parts = replicas * options.gradient_accumulation_steps
    for phase in options.phases:
        if phase.train_batch_size % parts:
            raise UserError(
                f"{phase.flag('train_batch_size')} is {phase.train_batch_size}; expected a multiple of {parts} "
                f"({replicas} replicas x --gradient_accumulation_steps={options.gradient_accumulation_steps})"
            )
