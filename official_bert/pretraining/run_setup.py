"""What a run is made of, read and checked before its first step: a mistake shows in seconds, not after hours."""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from official_bert.checkpoints import run_checkpoints
from official_bert.checkpoints.checkpoint import TOKENIZER_FILE, LoadedModel
from official_bert.checkpoints.model_files import casing_in, check_contents, contents_of
from official_bert.data import manifest
from official_bert.errors import CollectedErrors, UserError
from official_bert.modeling.config import BertConfig
from official_bert.optimization import distribution
from official_bert.optimization.choices import DTYPES, TPU
from official_bert.optimization.schedules import PhasedSchedule, WarmupPolynomialDecay
from official_bert.pretraining import checks, corpus_initialization, cost, initial_checkpoint, run_metadata
from official_bert.pretraining.options import Options, Phase
from official_bert.pretraining.record_files import RecordFiles, recorded_casing
from official_bert.pretraining.run_records import RunRecords
from official_bert.pretraining.train_step import Pretrainer
from official_bert.runs.training_log import TRAIN, read_log
from official_bert.runs.training_run import has_lost_checkpoints
from official_bert.tokenization.casing import UNCASED, Casing, casing_of
from official_bert.utils import files


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSetup:
    """What a run is made of."""

    options: Options
    strategy: tf.distribute.Strategy
    config: BertConfig
    model_files: dict[str, str]  # contents of the small files beside the checkpoints, by name
    records: RunRecords
    metadata: dict[str, Any]  # what run.json keeps of the run
    changes: dict[str, tuple[Any, Any]]  # see run_metadata.check_resume_compatibility
    pretrainer: Pretrainer
    data_position: list[Any]  # variables, saved with the weights
    checkpoints: run_checkpoints.RunCheckpoints
    resumed_from: str | None  # the checkpoint that the run goes on from; None where it begins
    initial: LoadedModel | None  # --init_checkpoint; None where the run goes on

    @property
    def folder(self) -> str:
        """The run's folder."""
        return self.options.output_dir

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the run's files: one of several workers does."""
        return bool(self.strategy.extended.should_checkpoint)

    def write_metadata(self) -> None:
        """Writes run.json."""
        run_metadata.write_run_metadata(self.folder, self.metadata)


def set_up(options: Options, strategy: tf.distribute.Strategy) -> RunSetup:
    """Returns all that a run needs; the model has random weights still (see `restore_or_initialize`).

    Raises:
        UserError: something does not fit together, or does not fit the run that the folder holds.
    """
    # 1. The model's sizes, the records, and where the run goes on.
    checks.check_replicas(options, strategy.num_replicas_in_sync)
    config = checks.read_config(options)
    records = RunRecords(options, config, strategy.num_replicas_in_sync)
    resumed_from = _find_checkpoint(options)
    phases = _phases_to_do(options, resumed_from)
    # 2. All mistakes are named at once, before anything takes long.
    initial = None
    if options.init_checkpoint and not resumed_from:
        initial = initial_checkpoint.open_initial_checkpoint(options, config)
    options, model_files, changes = _check(options, config, strategy, records, phases, resumed_from, initial)
    # 3. What run.json will say, and how much memory a device needs.
    training_records = {phase.number: records.training(phase) for phase in phases}
    evaluated = [each for each in (records.held_out, records.general) if each]
    metadata = run_metadata.collect_run_metadata(options, config, strategy, training_records, evaluated)
    if options.do_train:
        _print_memory_estimates(options, config, strategy.num_replicas_in_sync, records, phases)
    # 4. The model, its optimizer and its steps.
    pretrainer = _build_pretrainer(options, config, strategy)
    metadata["parameters"] = pretrainer.model.count_params()
    # 5. What is saved: the weights, all that the optimizer keeps, and the position in the data.
    data_position = run_checkpoints.data_position()
    checkpoints = run_checkpoints.RunCheckpoints(
        options.output_dir, {**pretrainer.variables, "place": data_position}, options.keep_checkpoint_max
    )
    return RunSetup(
        options=options,
        strategy=strategy,
        config=config,
        model_files=model_files,
        records=records,
        metadata=metadata,
        changes=changes,
        pretrainer=pretrainer,
        data_position=data_position,
        checkpoints=checkpoints,
        resumed_from=resumed_from,
        initial=initial,
    )


def _phases_to_do(options: Options, resumed_from: str | None) -> list[Phase]:
    """The phases of which steps are left."""
    steps_done = run_checkpoints.step_of(resumed_from) if resumed_from else 0
    return [phase for phase in options.phases if options.do_train and phase.last_step > steps_done]


def _check(
    options: Options,
    config: BertConfig,
    strategy: tf.distribute.Strategy,
    records: RunRecords,
    phases: Sequence[Phase],
    resumed_from: str | None,
    initial: LoadedModel | None,
) -> tuple[Options, dict[str, str], dict[str, tuple[Any, Any]]]:
    """Checks the options against each other, the records, and the run that the folder holds.

    Mistakes in single flags come before those that say that something differs.

    Returns:
        The options, their casing being that of the records; contents of the model's small files by name; and what
        --allow_changes lets differ from the run that the folder holds.
    """
    errors = CollectedErrors()
    training_records: dict[int, RecordFiles] = {}
    evaluated: list[RecordFiles] = []
    for phase in phases:
        with errors.collecting():
            training_records[phase.number] = records.training(phase)
    with errors.collecting():
        evaluated += [records.held_out] if records.held_out else []
    with errors.collecting():
        evaluated += [records.general] if records.general else []
    with errors.collecting():
        checks.check_objectives(options, training_records.values(), evaluated)
    for check in (checks.check_lengths, checks.check_packing, checks.check_vocabulary_size):
        with errors.collecting():
            check(options, config)
    manifests = [each for some in (*training_records.values(), *evaluated) for each in some.manifests]
    casing = _resolve_casing(options, manifests)
    if options.do_train and initial is not None:
        with errors.collecting():
            casing = initial_checkpoint.check_initial_checkpoint(initial, options, config, manifests, casing)
    with errors.collecting():
        casing = checks.check_vocabulary_casing(options, casing, bool(manifests))
    casing = casing or UNCASED
    options = dataclasses.replace(options, **{"strip_accents": None, **casing.settings})
    model_files = contents_of(config, options.vocab_file, casing)
    changes: dict[str, tuple[Any, Any]] = {}
    with errors.collecting():
        if options.do_train and not (options.begin_anew and not resumed_from):
            changes = run_metadata.check_resume_compatibility(options, training_records)
    with errors.collecting():
        _check_model_files(options, model_files, manifests)
    errors.raise_if_any()
    return options, model_files, changes


def _build_pretrainer(options: Options, config: BertConfig, strategy: tf.distribute.Strategy) -> Pretrainer:
    return Pretrainer(
        config=config,
        strategy=strategy,
        schedule=_schedule(options),
        seed=options.random_seed,
        dtype=DTYPES[options.dtype],
        jit_compile=options.jit_compile,
        compile_parts=options.compile_parts and distribution.compiles_parts(strategy),
        optimizer=options.optimizer,
        adam_bias_correction=options.adam_bias_correction,
        next_sentence=options.next_sentence_prediction,
        frozen=options.freeze,
        micro_batches=options.gradient_accumulation_steps,
        rematerialize=options.rematerialize,
        skip_nonfinite=options.on_nonfinite == "skip",
        packed=options.pack_sequences,
        times_input=not options.deterministic,
    )


def _find_checkpoint(options: Options) -> str | None:
    """The checkpoint that the run goes on from, or is evaluated at; None where it begins.

    Raises:
        UserError: steps were done, but none of their checkpoints can be read, and --begin_anew is not given.
    """
    folder = options.output_dir
    try:
        newest = run_checkpoints.newest_whole(folder)
    except UserError as error:
        if options.do_train and options.begin_anew:
            return None
        hint = "; --begin_anew begins at step 0 in this folder" if options.do_train else ""
        raise UserError(f"{error}{hint}") from error
    if newest or not options.do_train or options.begin_anew:
        return newest
    save_steps = run_metadata.read_run_metadata(folder).get("flags", {}).get("save_checkpoints_steps", math.inf)
    if not has_lost_checkpoints(folder, folder, save_steps):
        return None
    last = max((line["step"] for line in read_log(folder, TRAIN)), default=0)
    raise UserError(
        f"{folder} holds a run that has saved checkpoints{f' and logged {last:,} steps' if last else ''}, but none of "
        "them is there (ckpt-*.index): copy them back to go on; or give another --output_dir; or begin at step 0 in "
        "this folder with --begin_anew, which empties its log"
    )


def _resolve_casing(options: Options, manifests: Sequence[manifest.Manifest]) -> Casing | None:
    """The vocabulary's casing: as the manifests say, else the flags, else the run's folder; else None."""
    for each in manifests:
        if recorded := recorded_casing(each):
            return recorded
    if options.do_lower_case is not None or options.strip_accents is not None:
        return casing_of(options.do_lower_case is not False, options.strip_accents)
    path = os.path.join(options.output_dir, TOKENIZER_FILE)
    return casing_in(path) if files.exists(path) else None


def _check_model_files(options: Options, contents: dict[str, str], manifests: Sequence[manifest.Manifest]) -> None:
    """Raises a UserError if the folder holds another model; a casing that the manifests contradict is corrected."""
    path = os.path.join(options.output_dir, TOKENIZER_FILE)
    if options.do_train and manifests and TOKENIZER_FILE in contents and files.exists(path):
        if files.read_text(path) != contents[TOKENIZER_FILE]:
            print(f"note: {path} is corrected: the records' manifest says otherwise", flush=True)
        contents = {name: content for name, content in contents.items() if name != TOKENIZER_FILE}
    check_contents(options.output_dir, contents)


def _schedule(options: Options) -> PhasedSchedule:
    decay: dict[str, Any] = {
        "jump": options.warmup_jump,
        "power": options.decay_power,
        "end_rate": options.end_learning_rate,
    }
    phases, schedules = options.phases, []
    if options.phase2_learning_rate is None:  # one schedule over all steps, as in the paper
        phases = [dataclasses.replace(phases[0], last_step=options.total_steps)]
    for phase in phases:
        steps = phase.last_step - phase.first_step
        schedule = WarmupPolynomialDecay(phase.learning_rate, steps, phase.num_warmup_steps, **decay)
        schedules.append((phase.first_step, schedule))
    return PhasedSchedule(schedules)


def _print_memory_estimates(
    options: Options, config: BertConfig, replicas: int, records: RunRecords, phases: Sequence[Phase]
) -> None:
    for phase in phases:
        rows = records.rows(phase)
        if options.pack_sequences:
            print(f"phase {phase.number}: {phase.train_batch_size} records are packed into {rows} rows", flush=True)
        batch, predictions = rows // replicas // options.gradient_accumulation_steps, phase.predictions(config)
        needed = cost.memory_estimate(
            config, batch, phase.max_seq_length, predictions, options.dtype, options.rematerialize
        ).total
        on_tpu = " (its compiler makes do with less: make tpu-check)" if options.strategy == TPU else ""
        print(f"estimated memory of each device in phase {phase.number}: {needed / 1e9:.2f} GB{on_tpu}", flush=True)


def restore_or_initialize(setup: RunSetup) -> None:
    """Gives the model its weights: the run's own, those of --init_checkpoint, counted or random ones.

    Raises:
        UserError: a checkpoint does not fit, or there is nothing to evaluate.
    """
    # A run's own checkpoint comes before --init_checkpoint, so that the same command begins a run and goes on with it;
    # counted and random weights are the last choice, and none for an evaluation. Whether all workers stand at one step
    # is checked before weights are read from elsewhere: that may fail on one worker alone, and the others would wait.
    options = setup.options
    if setup.resumed_from:
        _restore(setup, setup.resumed_from)
    distribution.check_same_step(setup.strategy, setup.pretrainer.step, setup.folder)
    if setup.resumed_from:
        print(f"going on from {setup.resumed_from}, step {setup.pretrainer.step:,}")
    elif setup.initial is not None:
        print(f"weights from {options.init_checkpoint}:")
        lines = initial_checkpoint.assign_initial_weights(setup.pretrainer.model, setup.initial, options.init_allow)
        print("\n".join([*(f"note: {note}" for note in setup.initial.notes), *lines]), flush=True)
        setup.initial.weights.clear()  # frees their memory for the run
    elif options.init_from_records and options.do_train:
        print(
            corpus_initialization.initialize_from_records(
                setup.pretrainer.model,
                setup.config,
                setup.records.training(options.phases[0]),
                options.random_seed,
                options.next_sentence_prediction,
            ),
            flush=True,
        )
    elif not options.do_train:
        raise UserError(
            f"{setup.folder} has no checkpoint to evaluate; give the --output_dir of a training run, or weights as "
            "--init_checkpoint"
        )


def _restore(setup: RunSetup, checkpoint: str) -> None:
    """Restores the run's checkpoint, as far as it is wanted."""
    unwanted: set[str] = set()
    if not setup.options.do_train:
        unwanted = {"optimizer", "loss_scale", "place"}
    elif {"optimizer", "freeze"} & setup.changes.keys():
        print("the optimizer's moments start anew")
        unwanted = {"optimizer"}
    if "float16" in setup.changes.get("dtype", ()):
        unwanted.add("loss_scale")
    setup.checkpoints.restore(checkpoint, unwanted)
    if "optimizer" in unwanted:
        setup.pretrainer.optimizer.iterations.assign(run_checkpoints.step_of(checkpoint))
