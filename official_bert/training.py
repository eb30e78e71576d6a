"""Pre-training: the loop over steps, with its log, evaluation, saving and resuming."""

import json
import math
import os
import signal
import time

import tensorflow as tf

from official_bert import checkpoints, cost, distribution, files, records, report
from official_bert.config import BertConfig
from official_bert.curves import RUN_FILE, comparison, read_curves, read_facts, save_curves
from official_bert.errors import UserError
from official_bert.metrics import pretraining_metrics
from official_bert.optimization import PhasedSchedule, WarmupPolynomialDecay
from official_bert.pretrainer import Pretrainer
from official_bert.profiling import Profile
from official_bert.stop_request import StopRequest
from official_bert.training_checks import check_replicas, check_vocabulary
from official_bert.training_evaluation import BestWeights, best_folder, evaluate, unigram_accuracy
from official_bert.training_facts import changes_asked_for, facts_of
from official_bert.training_log import EVAL, TRAIN, TrainingLog, progress_line, read_log
from official_bert.training_options import DTYPES, Options, Phase
from official_bert.training_records import RecordFiles

_GRACE = 10.0  # seconds that one call to the devices should take at the most, so that a stop is answered in time
_MOST_SKIPPED = 100  # steps in a row that are not finite: a run that only skips is stopped
_LOST_WORKER = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.InternalError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


def run(options: Options) -> int:
    """Trains, evaluates or both, as the options say; returns the process's exit code.

    The code is 0 when all is done, and 128 plus the signal's number when SIGTERM or Ctrl-C stopped training, which
    saves first.

    Raises:
        UserError: something given is wrong; what was saved stays as it is.
    """
    # First of all: a strategy over several workers must be made before TensorFlow does anything else.
    strategy = distribution.get_strategy(options.strategy, options.tpu_name, options.tpu_zone, options.gcp_project)
    check_replicas(options, strategy.num_replicas_in_sync)
    config = BertConfig.from_json_file(options.bert_config_file)
    for phase in options.phases:
        if phase.max_seq_length > config.max_position_embeddings:
            raise UserError(
                f"{phase.flag('max_seq_length')} is {phase.max_seq_length}, but {options.bert_config_file} has "
                f"max_position_embeddings {config.max_position_embeddings}"
            )
    if options.vocab_file:
        check_vocabulary(options.vocab_file, config, options.bert_config_file)
    description = checkpoints.description(config, options.vocab_file, options.do_lower_case)
    checkpoints.check_description(options.output_dir, description)
    try:
        return _Run(options, strategy, config, description).run()
    except _LOST_WORKER as error:
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise
        raise UserError(
            f"another worker was lost, or cannot be reached ({str(error).splitlines()[0]}); start all workers again "
            "with the same command: they go on from the last checkpoint"
        ) from error


class _Run:
    """A run under way: what its steps, evaluations and saves share."""

    def __init__(
        self, options: Options, strategy: tf.distribute.Strategy, config: BertConfig, description: dict[str, str]
    ) -> None:
        self.options = options
        self.config = config
        self.description = description
        self.is_chief = strategy.extended.should_checkpoint
        self.folder = options.output_dir
        self._found: dict[int, RecordFiles] = {}
        done = checkpoints.newest_step(self.folder)
        to_do = [phase for phase in options.phases if options.do_train and phase.last_step > done]
        self.records = {phase.number: self._records_of(phase) for phase in to_do}
        self.held_out = self._held_out()
        if options.compare_with:
            read_curves(options.compare_with)  # a mistake is told before hours of training, not after them
        if options.save_curves and self.is_chief:
            files.check_writable(options.save_curves)
        self.facts = facts_of(options, config, strategy, self.records, self.held_out)
        self.changed = changes_asked_for(options, self.facts) if options.do_train else {}
        self._tell_memory(strategy)
        self.schedule = PhasedSchedule(
            [
                (
                    phase.first_step,
                    WarmupPolynomialDecay(
                        phase.learning_rate,
                        phase.last_step - phase.first_step,
                        phase.num_warmup_steps,
                        options.warmup_jump,
                        options.decay_power,
                        options.end_learning_rate,
                    ),
                )
                for phase in options.phases
            ]
        )
        self.pretrainer = Pretrainer(
            config,
            strategy,
            self.schedule,
            options.random_seed,
            DTYPES[options.dtype],
            options.jit_compile,
            options.optimizer,
            options.freeze,
            options.gradient_accumulation_steps,
            options.rematerialize,
            options.on_nonfinite == "skip",
        )
        self.facts["parameters"] = self.pretrainer.model.count_params()
        self.place = checkpoints.place_in_data()
        held = {**self.pretrainer.variables, "place": self.place}
        self.saved = checkpoints.RunCheckpoints(self.folder, held, options.keep_checkpoint_max)
        self.matmul_rate = math.inf
        self.seconds_per_step: float | None = None
        self.skipped_in_a_row = 0

    def run(self) -> int:
        """Does what the options say; returns the exit code."""
        options = self.options
        restored = self._restore()
        if restored:
            print(f"going on from {restored}, step {self.pretrainer.step:,}")
        elif options.init_checkpoint:
            print(f"weights from {options.init_checkpoint}:")
            loaded = checkpoints.load_weights(self.pretrainer.model, options.init_checkpoint, options.init_allow)
            print("\n".join(loaded.lines()), flush=True)
        elif not options.do_train:
            raise UserError(
                f"{self.folder} has no checkpoint to evaluate; give the --output_dir of a training run, or weights "
                "as --init_checkpoint"
            )
        if self.is_chief:
            checkpoints.save_description(self.folder, self.description)
            # What was changed is kept once a step was taken with it: see _save.
            if options.do_train and not (restored and self.changed):
                self._keep_facts()
        self.log = TrainingLog(
            self.folder if self.is_chief else None, self.pretrainer.step if options.do_train else None
        )
        if restored and options.do_train:
            self.log.note(self.pretrainer.step, f"went on from {os.path.basename(restored)}")
        if options.do_train:
            if self.is_chief:
                self.saved.remove_unfinished()
            stopped_by = self._train()
            if stopped_by:
                return 128 + stopped_by
        if options.do_eval:
            self._evaluate_at_the_end()
        if self.is_chief:
            # After an evaluation alone the facts of the training stay those of the training.
            of_training = {} if options.do_train else read_facts(self.folder)
            facts = {**self.facts, **of_training, "evaluation_data": self.facts["evaluation_data"]}
            written = report.write_report(self.folder, facts, options.compare_with)
            print(f"report in {', '.join(written)}")
            if options.compare_with:
                print(comparison(read_curves(self.folder), read_curves(options.compare_with)))
            if options.save_curves:
                save_curves(self.folder, options.save_curves)
                print(f"curves kept in {options.save_curves}")
        return 0

    def _restore(self) -> str | None:
        """Restores the newest checkpoint, as far as it is wanted; returns its path."""
        leave: set[str] = set()
        if not self.options.do_train:
            leave = {"optimizer", "loss_scale", "place"}
        elif {"optimizer", "freeze"} & self.changed.keys():
            print("the optimizer's averages start anew")
            leave = {"optimizer"}
        if "float16" in self.changed.get("dtype", ()):
            leave.add("loss_scale")
        restored = self.saved.restore_latest(leave)
        if restored and "optimizer" in leave:
            self.pretrainer.optimizer.iterations.assign(checkpoints.step_of(restored))
        step = float(self.pretrainer.step)
        mean, mean_of_squares = (self.pretrainer.mean_over_workers(value) for value in (step, step**2))
        if mean_of_squares != mean**2:
            raise UserError(
                f"the workers stand at different steps, this one at {step:,.0f}: all must reach the same --output_dir, "
                f"and read the same checkpoints there; it is {self.folder}"
            )
        return restored

    def _keep_facts(self) -> None:
        files.write_text(os.path.join(self.folder, RUN_FILE), json.dumps(self.facts, indent=1) + "\n")

    # Before the first step.

    def _records_of(self, phase: Phase) -> RecordFiles:
        if phase.number not in self._found:
            self._found[phase.number] = self._records(phase.input_file, phase)
        return self._found[phase.number]

    def _records(self, patterns: list[str], phase: Phase, flag: str | None = None) -> RecordFiles:
        return RecordFiles.checked(
            patterns,
            flag or phase.flag("input_file").removeprefix("--"),
            phase.max_seq_length,
            phase.max_predictions_per_seq,
            self.config,
            self.options.vocab_file,
            self.options.on_corrupt_record == "skip",
        )

    def _held_out(self) -> RecordFiles | None:
        options = self.options
        if options.eval_input_file:
            return self._records(options.eval_input_file, options.phases[0], "eval_input_file")
        if not options.do_eval:
            return None
        return self._records_of(options.phases[0])

    def _tell_memory(self, strategy: tf.distribute.Strategy) -> None:
        if not self.options.do_train:
            return
        for phase in self.options.phases:
            needed = cost.memory_estimate(
                self.config,
                phase.train_batch_size // strategy.num_replicas_in_sync // self.options.gradient_accumulation_steps,
                phase.max_seq_length,
                phase.max_predictions_per_seq,
                self.options.dtype,
                self.options.rematerialize,
            )
            on_tpu = " (its compiler makes do with less: make tpu-check)" if self.options.strategy == "tpu" else ""
            print(
                f"estimated memory of each device in phase {phase.number}: {needed.total / 1e9:.2f} GB{on_tpu}",
                flush=True,
            )

    # Training.

    def _train(self) -> int | None:
        """Trains up to the last step; returns the number of the signal that stopped it, if one did."""
        if self.pretrainer.step >= self.options.total_steps:
            print(f"all {self.options.total_steps:,} steps are done already")
            return None
        self.matmul_rate = cost.matmul_rate(self.pretrainer.strategy, self.options.dtype)
        with StopRequest() as stop:
            step = self.pretrainer.step
            if self._is_evaluated(step):
                # A stop may have come between the step and its evaluation; the chief knows.
                lacks = self.is_chief and step not in {line["step"] for line in read_log(self.folder, EVAL)}
                if self.pretrainer.mean_over_workers(float(lacks)) > 0:
                    self._evaluate_on_the_way(stop)
            for phase in self.options.phases:
                if self.pretrainer.step < phase.last_step:
                    found = self._records_of(phase)
                    try:
                        stopped_by = self._train_phase(phase, found, stop)
                    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
                        raise _damage_told(found, error) from error
                    if stopped_by:
                        return stopped_by
        return None

    def _train_phase(self, phase: Phase, found: RecordFiles, stop: StopRequest) -> int | None:
        options, pretrainer = self.options, self.pretrainer
        step, position = pretrainer.step, 0
        saved_phase, saved_position, saved_data = (int(variable.numpy()) for variable in self.place)
        if (saved_phase, saved_data) == (phase.number, found.fingerprint):
            position = saved_position
        print(
            f"training {self.facts['parameters']:,} parameters from step {step:,} to {phase.last_step:,}, "
            f"batches of {phase.train_batch_size} x {phase.max_seq_length} on {', '.join(self.facts['devices'])}",
            flush=True,
        )
        if found.damaged:
            self.log.note(step, f"{found.damaged:,} damaged records of phase {phase.number} are left out")
        data = found.training(phase.train_batch_size, options.random_seed, position)
        batches = iter(pretrainer.strategy.experimental_distribute_dataset(data))
        interval = _Interval(step)
        profile = Profile(options.profile_steps, self.folder)
        calls = 0
        self.seconds_per_step = None
        while step < phase.last_step:
            first = step
            step = self._end_of_call(step, phase, profile)
            profile.at(first)
            since = time.monotonic()
            sums = pretrainer.train(batches, step - first)
            seconds = time.monotonic() - since
            calls += 1
            if calls > 1:  # the first call compiles; what it takes says nothing
                self.seconds_per_step = pretrainer.mean_over_workers(seconds / (step - first))
            self._check_finite(sums, first, step, position, phase, found)
            interval.add(sums, seconds)
            position += (step - first) * phase.train_batch_size
            profile.at(step)
            stopping = self._is_stopping(stop)
            saving = stopping or step == phase.last_step or not step % options.save_checkpoints_steps
            # Also where it saves, so that the log of a run that goes on from there has the same lines.
            if saving or not step % options.log_steps:
                self._tell(interval, step, phase)
                interval = _Interval(step)
            if self._is_evaluated(step) and not stopping:
                stopping = not self._evaluate_on_the_way(stop)
            if saving or stopping:
                self._save(step, phase, position, found)
            if stopping:
                profile.stop()
                print(f"stopped at step {step:,}; the same command goes on from there")
                return stop.signal or signal.SIGTERM
        profile.stop()
        return None

    def _is_stopping(self, stop: StopRequest) -> bool:
        """Whether a stop was asked of any worker; all of them must ask together."""
        return self.pretrainer.mean_over_workers(float(stop.signal is not None)) > 0

    def _is_evaluated(self, step: int) -> bool:
        ends = {phase.last_step for phase in self.options.phases}
        return bool(self.options.eval_steps and step and (not step % self.options.eval_steps or step in ends))

    def _save(self, step: int, phase: Phase, position: int, found: RecordFiles) -> None:
        if not self.is_chief:
            return
        for variable, value in zip(self.place, (phase.number, position, found.fingerprint), strict=True):
            variable.assign(value)
        print(f"saved {self.saved.save(step)}", flush=True)
        if self.changed:
            self._keep_facts()
            self.changed = {}

    def _tell(self, interval: "_Interval", step: int, phase: Phase) -> None:
        if interval.sums["nonfinite_steps"] == step - interval.first_step:
            return  # all were skipped; the notices say so
        values = self._measurements(interval, step, phase)
        self.log.write(TRAIN, step, values)
        print(progress_line(step, self.options.total_steps, values), flush=True)

    def _end_of_call(self, step: int, phase: Phase, profile: "Profile") -> int:
        """The step at which to come back from the devices: to log, to evaluate, to save, or to look for a stop."""
        options = self.options
        multiples = (options.log_steps, options.save_checkpoints_steps, options.eval_steps)
        ends = [(step // of + 1) * of for of in multiples if of]
        ends += [end for end in profile.steps if end > step]
        within = 1  # until it is known how long a step takes
        if self.seconds_per_step is not None:
            within = min(options.iterations_per_loop, max(1, int(_GRACE / self.seconds_per_step)))
        return min(step + within, phase.last_step, *ends)

    def _check_finite(
        self, sums: dict[str, float], first: int, last: int, position: int, phase: Phase, found: RecordFiles
    ) -> None:
        if sums["nonfinite_steps"] < last - first:
            self.skipped_in_a_row = 0
        if not sums["nonfinite_steps"]:
            return
        self.skipped_in_a_row += last - first
        step = int(sums["nonfinite_step"])
        what = (
            f"step {step:,}: loss {sums['nonfinite_loss']}, gradient norm {sums['nonfinite_norm']} "
            "(sums over the batch)"
        )
        # Gradients of float16 overflow now and then, until the loss is scaled less.
        skips = self.options.on_nonfinite == "skip" or (
            self.options.dtype == "float16" and not sums["nonfinite_losses"]
        )
        if skips and self.skipped_in_a_row < _MOST_SKIPPED:
            self.log.note(step, f"{sums['nonfinite_steps']:.0f} steps skipped as not finite, the first: {what}")
            print(f"skipped {sums['nonfinite_steps']:.0f} steps that were not finite; {what}", flush=True)
            return
        skipped = position + (step - 1 - first) * phase.train_batch_size
        places = found.places(self.options.random_seed, skipped, phase.train_batch_size)
        raise UserError(
            f"loss or gradient is not finite in {what}; its records, numbered from 0: {places}; the checkpoints before "
            "are intact: lower --learning_rate, lengthen the warm-up, look at these records, or "
            + (
                f"take --dtype=bfloat16 or float32 ({self.skipped_in_a_row} steps in a row were skipped)"
                if skips
                else "leave such steps out with --on_nonfinite=skip"
            )
        )

    def _measurements(self, interval: "_Interval", step: int, phase: Phase) -> dict[str, float]:
        steps, seconds, sums = step - interval.first_step, interval.seconds, interval.sums
        flop = cost.training_flop(
            self.config, phase.train_batch_size, phase.max_seq_length, phase.max_predictions_per_seq
        )
        return {
            **pretraining_metrics(sums),
            "learning_rate": float(self.schedule(step - 1)),
            "gradient_norm": sums["gradient_norm"] / max(steps - sums["nonfinite_steps"], 1),
            "steps_per_second": steps / seconds,
            "examples_per_second": steps * phase.train_batch_size / seconds,
            "tokens_per_second": sums["tokens"] / seconds,
            "input_wait_share": sums["input_wait"] / seconds,
            "model_flops_per_second": flop * steps / seconds,
            "flops_utilization": flop * steps / seconds / self.matmul_rate,
            "max_seq_length": phase.max_seq_length,
        }

    # Evaluation.

    def _evaluate(self, stop: StopRequest | None = None) -> tuple[dict[str, float], dict[str, float]] | None:
        """Evaluates, logs and returns what training_evaluation.evaluate does."""
        found, options = self.held_out, self.options
        assert found is not None

        def stopping() -> bool:
            return stop is not None and self._is_stopping(stop)

        try:
            result = evaluate(self.pretrainer, found, options.eval_batch_size, options.max_eval_steps, stopping)
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            raise _damage_told(found, error) from error
        if result:
            self.log.write(EVAL, self.pretrainer.step, result[0])
        return result

    def _evaluate_on_the_way(self, stop: StopRequest) -> bool:
        """Evaluates while training and keeps the best weights; returns whether no stop came first."""
        result = self._evaluate(stop)
        if result is None:
            return False
        metrics, _ = result
        step = self.pretrainer.step
        print(
            f"evaluation at step {step:,}: masked LM loss {metrics['masked_lm_loss']:.4f} "
            f"({100 * metrics['masked_lm_accuracy']:.1f} % right), next sentence "
            f"{metrics['next_sentence_loss']:.4f} ({100 * metrics['next_sentence_accuracy']:.1f} %)",
            flush=True,
        )
        if self.is_chief and self._best().keep_if_better(step, metrics["loss"]):
            print(f"the best so far, kept in {best_folder(self.folder)}", flush=True)
        return True

    def _best(self) -> BestWeights:
        assert self.held_out is not None
        model = self.pretrainer.model
        return BestWeights(best_folder(self.folder), model, self.description, self.held_out.fingerprint)

    def _evaluate_at_the_end(self) -> None:
        """Evaluates the weights that training ended with, or those of the newest checkpoint."""
        result = self._evaluate()
        assert result is not None
        assert self.held_out is not None
        metrics, totals = result
        results = {"global_step": self.pretrainer.step, **metrics}
        text = "".join(f"{name} = {results[name]}\n" for name in sorted(results))
        if self.is_chief:
            files.write_text(os.path.join(self.folder, "eval_results.txt"), text)
        print(f"evaluated {totals['next_sentence_count']:,.0f} records, {totals['masked_lm_count']:,.0f} predictions")
        print(text, end="")
        baseline = unigram_accuracy(self.held_out, self.options.eval_batch_size, self.options.max_eval_steps)
        print(f"unigram baseline, always the commonest token: masked_lm_accuracy = {baseline}", flush=True)


class _Interval:
    """The steps since the last line of the log."""

    def __init__(self, first_step: int) -> None:
        self.first_step = first_step
        self.seconds = 0.0
        self.calls = 0
        self.sums: dict[str, float] = {}

    def add(self, sums: dict[str, float], seconds: float) -> None:
        """Adds the sums of a call."""
        self.seconds += seconds
        self.calls += 1
        self.sums = {name: self.sums.get(name, 0.0) + value for name, value in sums.items()}


def _damage_told(found: RecordFiles, error: Exception) -> Exception:
    damage = records.find_damage(found.paths, found.schema)
    if damage is None:
        return error
    return UserError(
        f"{damage}; checkpoints up to here are intact; --on_corrupt_record=skip leaves damaged records out"
    )
