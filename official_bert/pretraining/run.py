"""Pre-training from the options to the report, in the order of execution. Read this file first.

PretrainingRun  checks the options, the records and an earlier start; builds the model, optimizer and step
restore         loads the weights: the run's checkpoint, --init_checkpoint, counts of the records, or random weights
train           repeats for each phase: K steps on the devices, then log, evaluation, checkpoint and stop request
evaluation      evaluates held-out records, during training and at the end
report          writes run.json and the model card
"""

import dataclasses
import os
import time
from typing import Any

from official_bert.checkpoints import run_checkpoints
from official_bert.checkpoints.checkpoint import LoadedModel, LoadOverrides
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.model_files import write_model_files
from official_bert.errors import UserError
from official_bert.optimization import distribution
from official_bert.optimization.choices import DTYPES
from official_bert.optimization.precision import resolve_dtype, should_jit_compile
from official_bert.optimization.schedules import PhasedSchedule, WarmupPolynomialDecay
from official_bert.pretraining import checks, corpus_initialization, cost, initial_checkpoint, run_metadata
from official_bert.pretraining.evaluation import HeldOutEvaluation
from official_bert.pretraining.model_card import write_model_card
from official_bert.pretraining.monitor import Monitor, Profile
from official_bert.pretraining.options import Phase, PretrainingOptions
from official_bert.pretraining.run_records import RunRecords
from official_bert.pretraining.train_step import Pretrainer
from official_bert.runs.run_file import describe_changes
from official_bert.runs.stop_request import StopRequest
from official_bert.runs.training_log import EVAL, TrainingLog, read_log
from official_bert.runs.training_run import open_training_run
from official_bert.utils.allocator import retune_allocator
from official_bert.utils.counting import pluralize

_MAX_CALL_SECONDS = 10.0  # Longest call to the devices, so that a stop request is served in time.


def pretrain(options: PretrainingOptions) -> int:
    """Runs pre-training: trains, evaluates or both, as the options specify. Returns the process's exit code.

    The code is 0 if everything is done. If SIGTERM or Ctrl-C stopped the training (after it saved a checkpoint), the
    code is 128 plus the number of the signal.

    Raises:
        UserError: If an option, a file or the output folder cannot be used. Saved checkpoints stay intact.
    """
    with open_training_run(options) as strategy:
        run = PretrainingRun(options, strategy)
        options = run.options
        restore(run)
        if run.is_chief:
            if options.do_train and not run.resumed_from:
                run.checkpoints.remove_all()  # unreadable checkpoints of an earlier run: see --begin_anew
            write_model_files(options.output_dir, run.model_files)
            # If options changed, run.json is written with the next checkpoint: a run killed before keeps the old one.
            if options.do_train and not (run.resumed_from and run.changes):
                run_metadata.write_run_metadata(options.output_dir, run.metadata)
        first_step = run.pretrainer.step if options.do_train else None
        log = TrainingLog(options.output_dir if run.is_chief else None, first_step)
        evaluation = HeldOutEvaluation(
            options, run.config, run.pretrainer, run.records, run.model_files, log, run.is_chief
        )
        if options.do_train and (exit_code := train(run, log, evaluation)):
            return exit_code
        if options.do_eval:
            evaluation.evaluate_final_weights()
        if run.is_chief:
            write_report(run)
        return 0


class PretrainingRun:
    """The objects that a run consists of.

    To create them, it checks the options and files, then builds the model. Mistakes are thus reported within seconds.

    Raises:
        UserError: If options or files contradict each other, or the earlier start of the run in the output folder.

    Attributes:
        strategy: The distribution strategy.
        is_chief: Whether this process writes the run's files. Only one of several workers, the chief, does.
        options: The options, with the dtype and the casing of the records filled in.
        config: The configuration of the model.
        records: The records to read.
        resumed_from: The checkpoint to resume, or None if the run is new.
        initial: The model of --init_checkpoint, unless the run is resumed.
        model_files: Contents of the small files next to the checkpoints, by name.
        changes: See run_metadata.check_resume_compatibility.
        metadata: The contents of run.json.
        pretrainer: The model in training.
        data_position: Variables that are saved with the weights.
        checkpoints: The checkpoints of the run.
    """

    def __init__(self, options: PretrainingOptions, strategy: Any) -> None:
        self.strategy = strategy
        self.is_chief = bool(strategy.extended.should_checkpoint)
        replicas = strategy.num_replicas_in_sync
        checks.check_replicas(options, replicas)
        self.config = config = checks.read_config(options)
        # --dtype=auto is measured once. A resumed run takes the result from run.json.
        earlier = run_metadata.read_run_metadata(options.output_dir).get("flags", {}).get("dtype")
        tokens = options.train_batch_size * options.max_seq_length // replicas
        dtype = resolve_dtype(options.dtype, earlier, strategy, config, tokens)
        options = dataclasses.replace(options, dtype=dtype)
        self.records = RunRecords(options, config, replicas)
        self.resumed_from = checks.find_checkpoint(options)
        steps_done = run_checkpoints.parse_step(self.resumed_from) if self.resumed_from else 0
        phases = [phase for phase in options.phases if options.do_train and phase.last_step > steps_done]
        self.initial: LoadedModel | None = None
        if options.init_checkpoint and not self.resumed_from:
            overrides = LoadOverrides(fallback_config=config, allow=options.init_allow)
            self.initial = open_model(options.init_checkpoint, overrides)
        options, self.model_files, self.changes = checks.check_and_resolve_options(
            options, config, self.records, phases, self.resumed_from, self.initial
        )
        self.options = options
        self.metadata = run_metadata.collect_run_metadata(
            options, config, strategy, self.records, phases, self.changes, steps_done
        )
        if phases:
            checks.warn_of_useless_options(options)
        for phase in phases:
            cost.print_memory_estimate(options, config, replicas, phase, self.records.rows(phase))
        self.pretrainer = Pretrainer(
            config=config,
            strategy=strategy,
            schedule=make_schedule(options),
            seed=options.random_seed,
            dtype=DTYPES[options.dtype],
            jit_compile=should_jit_compile(options.jit_compile, options.dtype, strategy),
            compile_parts=options.compile_parts and distribution.compiles_parts(strategy),
            optimizer=options.optimizer,
            optimizer_settings=options.optimizer_settings,
            next_sentence=options.next_sentence_prediction,
            frozen=options.freeze,
            micro_batches=options.gradient_accumulation_steps,
            rematerialize=options.rematerialize,
            skip_nonfinite=options.on_nonfinite == "skip",
            packed=options.pack_sequences,
            times_input=not options.deterministic,
        )
        self.metadata["parameters"] = self.pretrainer.model.count_params()
        self.data_position = run_checkpoints.create_data_position()
        variables = {**self.pretrainer.variables, "place": self.data_position}
        self.checkpoints = run_checkpoints.RunCheckpoints(options.output_dir, variables, options.keep_checkpoint_max)


def make_schedule(options: PretrainingOptions) -> PhasedSchedule:
    """Returns the learning-rate schedule: one over all steps, as in the paper, or one for each phase."""
    schedules = []
    for phase in options.schedule_phases:
        schedule = WarmupPolynomialDecay(
            phase.learning_rate,
            phase.last_step - phase.first_step,
            phase.num_warmup_steps,
            jump=options.warmup_jump,
            power=options.decay_power,
            end_rate=options.end_learning_rate,
        )
        schedules.append((phase.first_step, schedule))
    return PhasedSchedule(schedules)


def restore(run: PretrainingRun) -> None:
    """Loads the weights into the model, from the first available of several places (see the comment below).

    Raises:
        UserError: If a checkpoint does not fit the model, or there are no weights to evaluate.
    """
    # The order of restoring:
    # 1. The run's own checkpoint comes first, so that the same command starts a run and resumes it.
    # 2. The workers compare their steps, options and data before they read other weights. If reading failed on one
    #    worker only, the others would wait for it.
    # 3. --init_checkpoint.
    # 4. Initial weights computed from token counts of the records.
    # 5. Random weights, which the model has already. They are not evaluated.
    options, pretrainer = run.options, run.pretrainer
    if run.resumed_from:
        _restore_checkpoint(run, run.resumed_from)
    flags = {f"--{name}": value for name, value in run.metadata["flags"].items() if name != "worker_index"}
    data = {"records": run.metadata["records"], "evaluation records": run.metadata["evaluation_data"]}
    values = {**flags, **data, "configuration or vocabulary": run.model_files}
    distribution.check_same_run(run.strategy, pretrainer.step, options.output_dir, values)
    if run.resumed_from:
        print(f"resuming from {run.resumed_from}, step {pretrainer.step:,}")
    elif run.initial is not None:
        print(f"weights from {options.init_checkpoint}:")
        lines = initial_checkpoint.assign_initial_weights(pretrainer.model, run.initial, options.init_allow)
        print("\n".join([*(f"note: {note}" for note in run.initial.notes), *lines]), flush=True)
        run.initial.weights.clear()  # Frees their memory for the run.
    elif options.init_from_records and options.do_train:
        records, seed = run.records.training(options.phases[0]), options.random_seed
        summary = corpus_initialization.initialize_from_records(
            pretrainer.model, run.config, records, seed, options.next_sentence_prediction
        )
        print(summary, flush=True)
    elif not options.do_train:
        raise UserError(
            f"{options.output_dir} has no checkpoint to evaluate. Pass the --output_dir of a training run, or weights "
            "as --init_checkpoint."
        )


def _restore_checkpoint(run: PretrainingRun, checkpoint: str) -> None:
    """Restores the run's checkpoint, without variables that an evaluation or changed options do not need."""
    unwanted: set[str] = set()
    if not run.options.do_train:
        unwanted = {"optimizer", "loss_scale", "place"}
    elif {"optimizer", "freeze"} & run.changes.keys():
        print("the optimizer's moments start from 0")
        unwanted = {"optimizer"}
    if "float16" in run.changes.get("dtype", ()):
        unwanted.add("loss_scale")
    run.checkpoints.restore(checkpoint, unwanted)
    if "optimizer" in unwanted:
        run.pretrainer.optimizer.iterations.assign(run_checkpoints.parse_step(checkpoint))


def train(run: PretrainingRun, log: TrainingLog, evaluation: HeldOutEvaluation) -> int:
    """Trains up to the last step. Returns 0, or the process's exit code if a signal stopped the training."""
    options, pretrainer = run.options, run.pretrainer
    if run.resumed_from:
        changes = describe_changes(run.changes, run_metadata.CHANGE_DESCRIPTIONS)
        notice = f"resumed from {os.path.basename(run.resumed_from)}{f' with changes: {changes}' if changes else ''}"
        log.note(pretrainer.step, notice)
    if run.is_chief:
        run.checkpoints.remove_unfinished()
    if pretrainer.step >= options.total_steps:
        print(f"nothing to train: all {pluralize(options.total_steps, 'step')} are done")
        return 0
    monitor = Monitor(options, run.config, pretrainer, run.records, log, run.is_chief)
    with StopRequest(run.strategy) as stop:
        # A run may have been stopped between a step and its evaluation. Only the chief has the log, but all workers
        # must evaluate together.
        if _is_evaluated(options, pretrainer.step):
            is_missing = run.is_chief and all(
                line["step"] != pretrainer.step for line in read_log(options.output_dir, EVAL)
            )
            is_missing_anywhere = distribution.mean_over_workers(run.strategy, float(is_missing)) > 0
            if is_missing_anywhere and not evaluation.evaluate_checkpoint(stop.is_pending):
                return _report_stop(pretrainer.step, stop)
        for phase in options.phases:
            if pretrainer.step < phase.last_step:
                with run.records.training(phase).explain_damage():
                    exit_code = _train_phase(run, phase, monitor, evaluation, stop)
                if exit_code:
                    return exit_code
    return 0


def _train_phase(
    run: PretrainingRun, phase: Phase, monitor: Monitor, evaluation: HeldOutEvaluation, stop: StopRequest
) -> int:
    options, pretrainer, records = run.options, run.pretrainer, run.records.training(phase)
    step = pretrainer.step
    print(
        f"training {run.metadata['parameters']:,} parameters from step {step:,} to {phase.last_step:,}, "
        f"batches of {phase.train_batch_size} x {phase.max_seq_length} on {', '.join(run.metadata['devices'])}",
        flush=True,
    )
    if records.damaged:
        monitor.log.note(step, f"skipped {pluralize(records.damaged, 'damaged record')} of phase {phase.number}")
    # The saved position is valid for one phase and one set of files. Other records are read from the start.
    saved_phase, saved_position, fingerprint = (int(each.numpy()) for each in run.data_position)
    position = saved_position if (saved_phase, fingerprint) == (phase.number, records.fingerprint) else 0
    data = records.training_batches(phase.train_batch_size, options.random_seed, position, run.records.packing(phase))
    batches = iter(run.strategy.experimental_distribute_dataset(data))
    retune_allocator()
    profile = Profile(options.profile_steps, options.output_dir)
    monitor.start_interval(step)
    seconds_per_step: float | None = None  # mean over the workers, once a call was timed
    is_compiled = False
    saved_at = step
    while step < phase.last_step:
        # Some steps on the devices.
        first, step = step, _choose_end_of_call(options, phase, profile, step, seconds_per_step)
        profile.update(first)
        since, used = time.monotonic(), time.process_time()
        sums = pretrainer.train(batches, step - first)
        seconds, processor_seconds = time.monotonic() - since, time.process_time() - used
        profile.update(step)
        if is_compiled:  # The first call compiles, so its duration is not representative.
            seconds_per_step = distribution.mean_over_workers(run.strategy, seconds / (step - first))
        monitor.check_finite(sums, first, step, position, phase, records)
        monitor.add(sums, step - first, seconds, processor_seconds, is_compiled)
        is_compiled = True
        position += (step - first) * phase.train_batch_size

        # Log, evaluation, checkpoint, stop.
        stopping = stop.is_pending()
        saving = stopping or step == phase.last_step or step % options.save_checkpoints_steps == 0
        # Each save writes a line too, so that the log of a resumed run has the same lines.
        if saving or step % options.log_interval == 0:
            monitor.write(step, phase)
        if _is_evaluated(options, step) and not stopping:
            stopping = not evaluation.evaluate_checkpoint(stop.is_pending)
        # If all steps since the last save were skipped, another save would only remove older checkpoints, which may
        # be needed.
        is_changed = monitor.skipped_in_a_row < step - saved_at
        if (saving or stopping) and (is_changed or step == phase.last_step):
            _save(run, step, (phase.number, position, records.fingerprint))
            saved_at = step
        if stopping:
            profile.stop()
            return _report_stop(step, stop)
    profile.stop()
    return 0


def _report_stop(step: int, stop: StopRequest) -> int:
    """Prints how to resume. Returns the exit code."""
    print(f"stopped at step {step:,}; run the same command to resume", flush=True)
    return stop.exit_code


def _choose_end_of_call(
    options: PretrainingOptions, phase: Phase, profile: Profile, step: int, seconds_per_step: float | None
) -> int:
    """Chooses how far to train in one call. Returns the step at which the call ends.

    It ends at the next step at which to log, evaluate, save or profile. So that stop requests are noticed, it also ends
    after --iterations_per_loop steps or a few seconds.

    Args:
        options: The options of the run.
        phase: The present phase.
        profile: The profiler.
        step: Number of steps done.
        seconds_per_step: Measured duration of a step, or None if it is unknown.
    """
    intervals = (options.log_interval, options.save_checkpoints_steps, options.eval_steps)
    due = [(step // interval + 1) * interval for interval in intervals if interval]
    due += [end for end in profile.steps if end > step]
    max_steps = 1
    if seconds_per_step is not None:
        max_steps = min(options.iterations_per_loop, max(1, int(_MAX_CALL_SECONDS / seconds_per_step)))
    return min(step + max_steps, phase.last_step, *due)


def _is_evaluated(options: PretrainingOptions, step: int) -> bool:
    """Returns whether the weights after `step` steps are to be evaluated during training. Random weights never are."""
    if not options.eval_steps or not (step or options.init_checkpoint):
        return False
    return step % options.eval_steps == 0 or step in {phase.last_step for phase in options.phases}


def _save(run: PretrainingRun, step: int, data_position: tuple[int, int, int]) -> None:
    if not run.is_chief:
        return
    for variable, value in zip(run.data_position, data_position, strict=True):
        variable.assign(value)
    print(f"saved {run.checkpoints.save(step)}", flush=True)
    if run.changes:
        run_metadata.write_run_metadata(run.options.output_dir, run.metadata)


def write_report(run: PretrainingRun) -> None:
    """Writes the model card and run.json at the end of a run."""
    options, metadata = run.options, run.metadata
    if not options.do_train:  # An evaluation keeps the description of the training.
        before = run_metadata.read_run_metadata(options.output_dir)
        metadata = {**metadata, **before, "evaluation_data": metadata["evaluation_data"]}
    run_metadata.write_run_metadata(options.output_dir, metadata)
    print(f"model card: {write_model_card(options.output_dir, metadata)}")
