"""Monitors a run: logs measurements, checks for non-finite steps, and runs the profiler."""

import dataclasses
import os
from collections.abc import Mapping

import tensorflow as tf

from official_bert.modeling.config import BertConfig
from official_bert.pretraining.losses import compute_pretraining_metrics
from official_bert.pretraining.options import Phase, PretrainingOptions
from official_bert.pretraining.record_files import RecordFiles
from official_bert.pretraining.run_records import RunRecords
from official_bert.pretraining.train_step import Pretrainer
from official_bert.pretraining.unigram_level import CHECKED_STEP, warn_at_unigram_level
from official_bert.runs.training_log import TRAIN, TrainingLog
from official_bert.runs.training_run import refuse_nonfinite_loss
from official_bert.utils.counting import pluralize
from official_bert.utils.progress import format_duration

_MOST_SKIPPED = 100  # non-finite steps in a row after which a run stops; fewer if the run is shorter


@dataclasses.dataclass
class Monitor:
    """Logs measurements of the training steps, and stops a run whose loss or gradient is not finite.

    Each line of the log has the means over an interval: the steps since the previous line.
    """

    options: PretrainingOptions
    config: BertConfig
    pretrainer: Pretrainer
    records: RunRecords
    log: TrainingLog
    is_chief: bool

    def __post_init__(self) -> None:
        # Initial weights from a checkpoint start below the unigram level.
        from_scratch = not self.options.init_checkpoint
        self._checks_unigram_level = self.is_chief and from_scratch and self.pretrainer.step < CHECKED_STEP
        self.skipped_in_a_row = 0  # Number of last steps without a finite one.
        self.start_interval(self.pretrainer.step)

    def start_interval(self, step: int) -> None:
        """Starts collecting measurements for the next line of the log. `step` is the number of steps done."""
        self._first_step, self._seconds, self._processor_seconds = step, 0.0, 0.0
        self._compiled_steps, self._compiled_seconds = 0, 0.0  # without steps during which the step was compiled
        self._sums: dict[str, float] = {}

    def add(
        self, sums: dict[str, float], steps: int, seconds: float, processor_seconds: float, is_compiled: bool = True
    ) -> None:
        """Adds measurements of some steps to the interval.

        Args:
            sums: The result of Pretrainer.train.
            steps: Number of steps.
            seconds: Duration of the steps.
            processor_seconds: Processor time of this process during the steps.
            is_compiled: False if the duration includes compilation. Such steps are left out of the rates.
        """
        self._compiled_steps += steps * is_compiled
        self._compiled_seconds += seconds * is_compiled
        self._seconds += seconds
        self._processor_seconds += processor_seconds
        self._sums = {name: self._sums.get(name, 0.0) + value for name, value in sums.items()}

    def write(self, step: int, phase: Phase) -> None:
        """Ends the interval after `step` steps, and writes its means to the log and the terminal."""
        # If all steps were skipped, nothing can be averaged, and the notices have reported the steps.
        if self._sums["nonfinite_steps"] < step - self._first_step:
            values = self._measure(step, phase)
            self.log.write(TRAIN, step, values)
            compilation = None if self._compiled_steps else self._seconds
            print(format_progress(step, self.options.total_steps, values, self.config, compilation), flush=True)
            if self._checks_unigram_level and phase.number == 1 and step >= CHECKED_STEP:
                self._checks_unigram_level = False
                records = self.records.training(phase)
                warn_at_unigram_level(self.options.output_dir, records, self.log, step, phase, self.config)
        self.start_interval(step)

    def _measure(self, step: int, phase: Phase) -> dict[str, float]:
        steps, seconds, sums = step - self._first_step, self._seconds, self._sums
        rate = self._compiled_steps / self._compiled_seconds if self._compiled_steps else steps / seconds
        return {
            **compute_pretraining_metrics(sums),
            "learning_rate": float(self.pretrainer.schedule(step - 1)),
            "gradient_norm": sums["gradient_norm"] / max(steps - sums["nonfinite_steps"], 1),
            "steps_per_second": rate,
            "examples_per_second": rate * phase.train_batch_size,
            "tokens_per_second": rate * sums["tokens"] / steps,
            "processor_seconds": self._processor_seconds,
            "input_wait_share": sums["input_wait"] / seconds,
            "max_seq_length": phase.max_seq_length,
        }

    def check_finite(
        self, sums: dict[str, float], first: int, last: int, position: int, phase: Phase, records: RecordFiles
    ) -> None:
        """If some steps were not finite, notes in the log that they were skipped, or stops the run.

        Args:
            sums: The result of a call of Pretrainer.train.
            first: Number of steps before the call.
            last: Number of steps after the call.
            position: Number of the phase's records that were read before the call.
            phase: The phase.
            records: The phase's records.

        Raises:
            UserError: If a step was not finite and the options do not allow to skip it, or if too many steps in a row,
                or all steps of the run, were skipped.
        """
        if sums["nonfinite_steps"] < last - first:
            self.skipped_in_a_row = 0
        self.skipped_in_a_row += int(sums["nonfinite_at_end"])
        if not sums["nonfinite_steps"]:
            return
        step = int(sums["nonfinite_step"])
        loss, norm = sums["nonfinite_loss"], sums["nonfinite_norm"]
        what = f"step {step:,}: loss {loss}, gradient norm {norm} (sums over the batch)"
        options = self.options
        first_skipped = last - self.skipped_in_a_row + 1
        # Gradients in float16 sometimes overflow until the loss scale is reduced.
        skips = options.on_nonfinite == "skip" or (options.dtype == "float16" and not sums["nonfinite_losses"])
        if skips and self.skipped_in_a_row < min(_MOST_SKIPPED, options.total_steps):
            skipped = pluralize(int(sums["nonfinite_steps"]), "step")
            self.log.note(step, f"{skipped} skipped as not finite, the first: {what}")
            print(f"skipped {skipped}, not finite; {what}", flush=True)
            return
        # Steps are counted from 1.
        used_before = position + (step - 1 - first) * phase.train_batch_size
        locations = records.describe_locations(options.random_seed, used_before, phase.train_batch_size)
        refuse_nonfinite_loss(
            f"The loss or the gradient is not finite in {what}. Its records, numbered from 0: {locations}",
            options.output_dir,
            first_skipped if skips else step,
            "lower --learning_rate, lengthen the warm-up, look at these records, or "
            + (
                f"use --dtype=bfloat16 or float32 ({self.skipped_in_a_row} steps in a row were skipped)"
                if skips
                else "skip such steps with --on_nonfinite=skip"
            ),
        )


class Profile:
    """Runs TensorFlow's profiler over a range of steps.

    Args:
        steps: The steps after which to start and stop, as strings. Empty for no profile.
        folder: Folder of the run.
    """

    def __init__(self, steps: list[str], folder: str) -> None:
        self.steps = [int(step) for step in steps]
        self._folder = os.path.join(folder, TRAIN)
        self._running = False

    def update(self, step: int) -> None:
        """Starts or stops the profiler if this is due after `step` steps."""
        if self.steps and not self._running and self.steps[0] <= step < self.steps[1]:
            tf.profiler.experimental.start(self._folder)
            self._running = True
        elif self._running and step >= self.steps[1]:
            self.stop()

    def stop(self) -> None:
        """Stops the profiler if it is running."""
        if self._running:
            tf.profiler.experimental.stop()
            self._running = False
            self.steps = []
            print(f"profile written to {self._folder}; see it in TensorBoard", flush=True)


def format_losses(values: Mapping[str, float], config: BertConfig, separator: str, noun: str = "") -> str:
    """Formats losses and accuracies as text.

    Args:
        values: Metrics by name.
        config: Configuration of the model, which determines the name of the token objective.
        separator: Text between the metrics.
        noun: Text after the name of each objective.
    """
    accuracy = 100 * values["masked_lm_accuracy"]
    text = f"{config.token_objective}{noun} {values['masked_lm_loss']:.4f} (accuracy {accuracy:.1f} %)"
    if "next_sentence_loss" not in values:
        return text
    accuracy = 100 * values["next_sentence_accuracy"]
    return f"{text}{separator}next sentence {values['next_sentence_loss']:.4f} (accuracy {accuracy:.1f} %)"


def format_progress(
    step: int, total_steps: int, values: Mapping[str, float], config: BertConfig, compilation: float | None = None
) -> str:
    """Formats measurements for the terminal.

    Args:
        step: Number of steps done.
        total_steps: Number of steps of the run.
        values: The measurements that were logged.
        config: Configuration of the model.
        compilation: Seconds of compilation, which are shown if they are all that was measured, instead of the rates.
    """
    remaining_time = format_duration((total_steps - step) / values["steps_per_second"])
    speed = (
        f"{values['examples_per_second']:,.0f} examples/s {values['tokens_per_second']:,.0f} tokens/s"
        f"  {remaining_time} left"
    )
    return (
        f"step {step:,} of {total_steps:,}"
        f"  loss {values['loss']:.4f}"
        f"  {format_losses(values, config, '  ')}"
        f"  learning rate {values['learning_rate']:.2e}"
        f"  gradient norm {values['gradient_norm']:.2f}"
        f"  {speed if compilation is None else f'compiled in {format_duration(compilation)}'}"
    )
