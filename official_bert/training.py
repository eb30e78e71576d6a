"""Pre-training: the loop over steps, its log, evaluation, saving and resuming."""

import dataclasses
import json
import math
import os
import platform
import signal
import sys
import time
from typing import Any

import keras
import tensorflow as tf

import official_bert
from official_bert import checkpoints, cost, distribution, files, records, report
from official_bert.config import BertConfig
from official_bert.curves import RUN_FILE, comparison, read_curves, read_facts, save_curves
from official_bert.errors import UserError
from official_bert.metrics import pretraining_metrics
from official_bert.optimization import PhasedSchedule, WarmupPolynomialDecay
from official_bert.pretrainer import SUMS, Pretrainer
from official_bert.tokenization import check_special_tokens, load_vocab
from official_bert.training_log import EVAL, TRAIN, TrainingLog, progress_line, read_log
from official_bert.training_options import DATA, DECISIVE, DTYPES, Options, Phase
from official_bert.training_records import RecordFiles

BEST_FOLDER = "best"

_GRACE = 10.0  # seconds that one call to the devices should take at the most, so that a stop is answered in time


class _StopRequest:
    """Within its context, SIGTERM and the first Ctrl-C ask for a stop instead of forcing one."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> "_StopRequest":
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        self.signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"received {signal.Signals(number).name}: saving after the steps under way", flush=True)


def run(options: Options) -> int:
    """Trains, evaluates or both, as the options say; returns the process's exit code.

    The code is 0 when all is done, and 128 plus the signal's number when SIGTERM or Ctrl-C stopped training, which
    saves first.

    Raises:
        UserError: something given is wrong; what was saved stays as it is.
    """
    # First of all: a strategy over several workers must be made before TensorFlow does anything else.
    strategy = distribution.get_strategy(options.strategy, options.tpu_name, options.tpu_zone, options.gcp_project)
    _check_replicas(options, strategy.num_replicas_in_sync)
    config = BertConfig.from_json_file(options.bert_config_file)
    for phase in options.phases:
        if phase.max_seq_length > config.max_position_embeddings:
            raise UserError(
                f"{phase.flag('max_seq_length')} is {phase.max_seq_length}, but {options.bert_config_file} has "
                f"max_position_embeddings {config.max_position_embeddings}"
            )
    if options.vocab_file:
        _check_vocabulary(options.vocab_file, config, options.bert_config_file)
    description = checkpoints.description(config, options.vocab_file, options.do_lower_case)
    checkpoints.check_description(options.output_dir, description)
    return _Run(options, strategy, config, description).run()


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
        self.records = [self._records(phase.input_file, phase) for phase in options.phases] if options.do_train else []
        self.held_out = self._held_out()
        if options.compare_with:
            read_curves(options.compare_with)  # a mistake is told before hours of training, not after them
        self.facts = self._facts(strategy)
        if options.do_train:
            self._check_changes()
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
        self.saved = checkpoints.RunCheckpoints(self.folder, self.pretrainer.variables, options.keep_checkpoint_max)
        self.matmul_rate = math.inf
        self.seconds_per_step: float | None = None

    def run(self) -> int:
        """Does what the options say; returns the exit code."""
        options = self.options
        restored = self.saved.restore_latest()
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
            if options.do_train:
                files.write_text(os.path.join(self.folder, RUN_FILE), json.dumps(self.facts, indent=1) + "\n")
        self.log = TrainingLog(
            self.folder if self.is_chief else None, self.pretrainer.step if options.do_train else None
        )
        if restored and options.do_train:
            self.log.note(self.pretrainer.step, f"went on from {os.path.basename(restored)}")
        if options.do_train:
            stopped_by = self._train()
            if stopped_by:
                return 128 + stopped_by
        if options.do_eval:
            self._evaluate(final=True)
        if self.is_chief:
            # After an evaluation alone the facts of the training stay those of the training.
            facts = self.facts if options.do_train else {**self.facts, **read_facts(self.folder)}
            written = report.write_report(self.folder, facts, options.compare_with)
            print(f"report in {', '.join(written)}")
            if options.compare_with:
                print(comparison(read_curves(self.folder), read_curves(options.compare_with)))
            if options.save_curves:
                save_curves(self.folder, options.save_curves)
                print(f"curves kept in {options.save_curves}")
        return 0

    # Before the first step.

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
        return self.records[0] if self.records else self._records(options.input_file, options.phases[0])

    def _facts(self, strategy: tf.distribute.Strategy) -> dict[str, Any]:
        """What is kept beside the checkpoints as run.json (see report.write_report)."""
        manifests = {id(each): each for found in self.records for each in found.manifests}.values()
        return {
            "command": " ".join(sys.argv),
            "flags": dataclasses.asdict(self.options),
            "config": self.config.to_dict(),
            "data": [json.loads(each.to_json()) for each in manifests],
            "evaluation_data": [
                json.loads(each.to_json()) for each in (self.held_out.manifests if self.held_out else [])
            ],
            "versions": {
                "official_bert": official_bert.__version__,
                "tensorflow": tf.__version__,
                "keras": keras.__version__,
                "python": platform.python_version(),
            },
            "devices": _devices(strategy),
            "records": [found.identity() for found in self.records],
        }

    def _check_changes(self) -> None:
        """Compares what decides the weights with what the run was begun with."""
        before = read_facts(self.folder) if files.exists(os.path.join(self.folder, RUN_FILE)) else {}
        if not before:
            return
        now = json.loads(json.dumps(self.facts))
        changed = {
            name: (before["flags"].get(name), now["flags"][name])
            for name in sorted(DECISIVE)
            if name in before["flags"] and before["flags"][name] != now["flags"][name]
        }
        self.data_changed = before.get("records") not in (None, now["records"])
        problems = [
            f"--{name} was {old!r} and is {new!r}"
            for name, (old, new) in changed.items()
            if name not in self.options.allow_changes
        ]
        if self.data_changed and DATA not in self.options.allow_changes:
            problems.append("the records are other ones")
        if problems:
            names = [*changed, *([DATA] if self.data_changed else [])]
            raise UserError(
                f"{self.folder} holds a run that was begun otherwise: {'; '.join(problems)}; give what it was begun "
                f"with, or another --output_dir, or go on with the changes by --allow_changes={','.join(names)}"
            )
        for name, (old, new) in changed.items():
            print(f"changed as asked for: --{name} from {old!r} to {new!r}")

    data_changed = False

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
            print(f"estimated memory of each device in phase {phase.number}: {needed.total / 1e9:.2f} GB", flush=True)

    # Training.

    def _train(self) -> int | None:
        """Trains up to the last step; returns the number of the signal that stopped it, if one did."""
        if self.pretrainer.step >= self.options.total_steps:
            print(f"all {self.options.total_steps:,} steps are done already")
            return None
        if self.data_changed:
            self.saved.position.assign(0)
        self.matmul_rate = cost.matmul_rate(self.pretrainer.strategy, self.options.dtype)
        with _StopRequest() as stop:
            for phase, found in zip(self.options.phases, self.records, strict=True):
                if self.pretrainer.step < phase.last_step:
                    try:
                        stopped_by = self._train_phase(phase, found, stop)
                    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
                        raise _damage_told(found, error) from error
                    if stopped_by:
                        return stopped_by
        return None

    def _train_phase(self, phase: Phase, found: RecordFiles, stop: _StopRequest) -> int | None:
        options, pretrainer, saved = self.options, self.pretrainer, self.saved
        step, position = pretrainer.step, int(saved.position.numpy())
        print(
            f"training {self.facts['parameters']:,} parameters from step {step:,} to {phase.last_step:,}, "
            f"batches of {phase.train_batch_size} x {phase.max_seq_length} on {', '.join(self.facts['devices'])}",
            flush=True,
        )
        data = found.training(phase.train_batch_size, options.random_seed, position)
        batches = iter(pretrainer.strategy.experimental_distribute_dataset(data))
        interval = _Interval(step)
        profile = _Profile(options.profile_steps, self.folder)
        while step < phase.last_step:
            first = step
            step = self._end_of_call(step, phase, profile)
            profile.at(first)
            since = time.monotonic()
            sums = pretrainer.train(batches, step - first)
            seconds = time.monotonic() - since
            self._note_time(seconds / (step - first), is_first=interval.calls == 0)
            self._check_finite(sums, first, position, phase, found)
            interval.add(sums, seconds)
            position += (step - first) * phase.train_batch_size
            profile.at(step)
            stopping = pretrainer.over_workers(float(stop.signal is not None)) > 0
            if stopping or not step % options.log_steps or step == phase.last_step:
                values = self._measurements(interval, step, phase)
                self.log.write(TRAIN, step, values)
                print(progress_line(step, options.total_steps, values), flush=True)
                interval = _Interval(step)
            if options.eval_steps and not stopping and (not step % options.eval_steps or step == phase.last_step):
                self._evaluate()
            if stopping or step == phase.last_step or not step % options.save_checkpoints_steps:
                # At a phase's end the place is that in the next one's data.
                saved.position.assign(0 if step == phase.last_step else position)
                if self.is_chief:
                    print(f"saved {saved.save(step)}", flush=True)
            if stopping:
                profile.stop()
                print(f"stopped at step {step:,}; the same command goes on from there")
                return stop.signal or signal.SIGTERM
        profile.stop()
        return None

    def _end_of_call(self, step: int, phase: Phase, profile: "_Profile") -> int:
        """The step at which to come back from the devices: to log, to evaluate, to save, or to look for a stop."""
        options = self.options
        multiples = (options.log_steps, options.save_checkpoints_steps, options.eval_steps)
        ends = [(step // of + 1) * of for of in multiples if of]
        ends += [end for end in profile.steps if end > step]
        within = options.iterations_per_loop
        if self.seconds_per_step:
            within = min(within, max(1, int(_GRACE / self.seconds_per_step)))
        return min(step + within, phase.last_step, *ends)

    def _note_time(self, seconds: float, is_first: bool) -> None:
        # The first call compiles; what it takes says nothing. All workers must come to the same number.
        if is_first and self.seconds_per_step is None:
            self.seconds_per_step = 0.0
            return
        self.seconds_per_step = self.pretrainer.over_workers(seconds)

    def _check_finite(
        self, sums: dict[str, float], first: int, position: int, phase: Phase, found: RecordFiles
    ) -> None:
        if not sums["nonfinite_steps"]:
            return
        step = int(sums["nonfinite_step"])
        what = (
            f"step {step:,}: loss {sums['nonfinite_loss']}, gradient norm {sums['nonfinite_norm']} "
            "(sums over the batch)"
        )
        if self.options.on_nonfinite == "skip" or (
            self.options.dtype == "float16" and math.isfinite(sums["nonfinite_loss"])
        ):
            self.log.note(step, f"{sums['nonfinite_steps']:.0f} steps skipped as not finite, the first: {what}")
            print(f"skipped {sums['nonfinite_steps']:.0f} steps that were not finite; {what}", flush=True)
            return
        skipped = position + (step - 1 - first) * phase.train_batch_size
        places = found.places(self.options.random_seed, skipped, phase.train_batch_size)
        raise UserError(
            f"loss or gradient is not finite in {what}; its records, numbered from 0: {places}; the checkpoints before "
            "are intact: lower --learning_rate, lengthen the warm-up, look at these records, or leave such steps out "
            "with --on_nonfinite=skip"
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

    def _evaluate(self, final: bool = False) -> None:
        """Evaluates on the held-out records (or the training ones, where no others are given).

        Args:
            final: whether this is the evaluation that was asked for, after training; else it is one while training,
                whose best weights are kept.
        """
        found = self.held_out
        assert found is not None
        data = found.evaluation(self.options.eval_batch_size).take(self.options.max_eval_steps)
        totals = dict.fromkeys(SUMS, 0.0)
        try:
            for batch in self.pretrainer.strategy.experimental_distribute_dataset(data):
                for name, value in self.pretrainer.evaluate(batch).items():
                    totals[name] += value
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            raise _damage_told(found, error) from error
        metrics = pretraining_metrics(totals)
        step = self.pretrainer.step
        best = min((line["loss"] for line in read_log(self.folder, EVAL)), default=math.inf)
        self.log.write(EVAL, step, metrics)
        if not final:
            print(
                f"evaluation at step {step:,}: masked LM loss {metrics['masked_lm_loss']:.4f} "
                f"({100 * metrics['masked_lm_accuracy']:.1f} % right), next sentence "
                f"{metrics['next_sentence_loss']:.4f} ({100 * metrics['next_sentence_accuracy']:.1f} %)",
                flush=True,
            )
            if metrics["loss"] < best and self.is_chief:
                self._keep_best(step)
            return
        results = {"global_step": step, **metrics}
        text = "".join(f"{name} = {results[name]}\n" for name in sorted(results))
        if self.is_chief:
            files.write_text(os.path.join(self.folder, "eval_results.txt"), text)
        print(f"evaluated {totals['next_sentence_count']:,.0f} records, {totals['masked_lm_count']:,.0f} predictions")
        print(text, end="")
        print(
            f"unigram baseline, always the commonest token: masked_lm_accuracy = {_unigram_accuracy(data)}", flush=True
        )

    def _keep_best(self, step: int) -> None:
        folder = os.path.join(self.folder, BEST_FOLDER)
        checkpoints.save_description(folder, self.description)
        best = checkpoints.RunCheckpoints(folder, {"model": self.pretrainer.model.variables}, keep=1)
        print(f"the best so far, kept in {best.save(step)}", flush=True)


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


class _Profile:
    """Starts and stops TensorFlow's profiler."""

    def __init__(self, steps: list[str], folder: str) -> None:
        self.steps = [int(step) for step in steps]
        self._folder = folder
        self._running = False

    def at(self, step: int) -> None:
        """Does what is due when so many steps are done."""
        if self.steps and not self._running and self.steps[0] <= step < self.steps[1]:
            tf.profiler.experimental.start(os.path.join(self._folder, TRAIN))
            self._running = True
        elif self._running and step >= self.steps[1]:
            self.stop()

    def stop(self) -> None:
        """Ends the profile, if one is under way."""
        if self._running:
            tf.profiler.experimental.stop()
            self._running = False
            self.steps = []
            print(f"profile written to {os.path.join(self._folder, TRAIN)}; see it in TensorBoard", flush=True)


def _damage_told(found: RecordFiles, error: Exception) -> Exception:
    damage = records.find_damage(found.paths, found.schema)
    if damage is None:
        return error
    return UserError(
        f"{damage}; checkpoints up to here are intact; --on_corrupt_record=skip leaves damaged records out"
    )


def _check_vocabulary(vocab_file: str, config: BertConfig, config_file: str) -> None:
    vocab = load_vocab(vocab_file)
    check_special_tokens(vocab, vocab_file)
    pieces = max(vocab.values()) + 1
    if pieces > config.vocab_size:
        raise UserError(
            f"{vocab_file} has {pieces} tokens, but {config_file} has vocab_size {config.vocab_size}; they must belong "
            "together"
        )
    if pieces < config.vocab_size:
        print(
            f"note: {vocab_file} has {pieces} tokens, {config_file} has vocab_size {config.vocab_size}; the rest of "
            "the table is never used"
        )


def _check_replicas(options: Options, replicas: int) -> None:
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


def _devices(strategy: tf.distribute.Strategy) -> list[str]:
    """The short names of this process's devices: CPU:0, GPU:1, TPU:7."""
    return [device.split("device:")[-1] for device in strategy.extended.worker_devices]


def _unigram_accuracy(batches: tf.data.Dataset) -> float:
    """How often the best constant answer is right: the share of the commonest token among those to predict."""
    counts: dict[int, int] = {}
    for batch in batches:
        ids = tf.boolean_mask(batch["masked_lm_ids"], batch["masked_lm_weights"] > 0)
        for token in ids.numpy().tolist():
            counts[token] = counts.get(token, 0) + 1
    return max(counts.values(), default=0) / max(sum(counts.values()), 1)
