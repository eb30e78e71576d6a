"""The loop over the steps of a run, with what stands between them: log, evaluation, saving, stopping."""

import functools
import os
import time

import tensorflow as tf

from official_bert.optimization import distribution
from official_bert.pretraining.evaluation import HeldOutEvaluation
from official_bert.pretraining.monitor import Monitor
from official_bert.pretraining.options import Phase
from official_bert.pretraining.record_files import RecordFiles
from official_bert.pretraining.run_setup import RunSetup
from official_bert.runs.stop_request import StopRequest
from official_bert.runs.training_log import EVAL, TRAIN, TrainingLog, read_log
from official_bert.utils.allocator import retune_allocator

_GRACE = 10.0  # seconds that one call to the devices should take at the most, so that a stop is answered in time


class Profile:
    """Starts and stops TensorFlow's profiler over some steps of a run."""

    def __init__(self, steps: list[str], folder: str) -> None:
        self.steps = [int(step) for step in steps]
        self._folder = os.path.join(folder, TRAIN)
        self._running = False

    def at(self, step: int) -> None:
        """Does what is due when so many steps are done."""
        if self.steps and not self._running and self.steps[0] <= step < self.steps[1]:
            tf.profiler.experimental.start(self._folder)
            self._running = True
        elif self._running and step >= self.steps[1]:
            self.stop()

    def stop(self) -> None:
        """Ends the profile, if one is under way."""
        if self._running:
            tf.profiler.experimental.stop()
            self._running = False
            self.steps = []
            print(f"profile written to {self._folder}; see it in TensorBoard", flush=True)


class TrainingLoop:
    """Trains phase after phase, call after call: a call is a number of steps that the devices take by themselves."""

    def __init__(self, setup: RunSetup, log: TrainingLog, monitor: Monitor, evaluation: HeldOutEvaluation) -> None:
        self._setup, self._options, self._pretrainer = setup, setup.options, setup.pretrainer
        self._log, self._monitor, self._evaluation = log, monitor, evaluation
        self._seconds_per_step: float | None = None  # of all workers; None until a call was timed
        self._metadata_is_written = not setup.changes
        self._mean_over_workers = functools.partial(distribution.mean_over_workers, setup.strategy)

    def run(self) -> int:
        """Trains up to the last step; returns the exit code, which is not 0 if a signal stopped it."""
        with StopRequest(self._setup.strategy) as stop:
            self._make_up_for_a_missed_evaluation(stop)
            for phase in self._options.phases:
                if self._pretrainer.step < phase.last_step:
                    records = self._setup.records.training(phase)
                    with records.naming_damage():
                        exit_code = self._run_phase(phase, records, stop)
                    if exit_code:
                        return exit_code
        return 0

    def _run_phase(self, phase: Phase, records: RecordFiles, stop: StopRequest) -> int:
        options, pretrainer, monitor = self._options, self._pretrainer, self._monitor
        step, position = pretrainer.step, self._position_in(phase, records)
        self._announce(phase, records)
        packing = self._setup.records.packing(phase)
        data = records.training(phase.train_batch_size, options.random_seed, position, packing)
        batches = iter(pretrainer.strategy.experimental_distribute_dataset(data))
        retune_allocator()
        profile = Profile(options.profile_steps, self._setup.folder)
        monitor.start_interval(step)
        self._seconds_per_step = None
        is_compiled = False
        saved_at = step
        while step < phase.last_step:
            # Some steps, on the devices.
            first, step = step, self._end_of_call(step, phase, profile)
            profile.at(first)
            since, used = time.monotonic(), time.process_time()
            sums = pretrainer.train(batches, step - first)
            seconds, processor_seconds = time.monotonic() - since, time.process_time() - used
            profile.at(step)
            if is_compiled:  # the first call compiles: what it takes says nothing
                self._seconds_per_step = self._mean_over_workers(seconds / (step - first))
            is_compiled = True
            monitor.check_finite(sums, first, step, position, phase, records)
            monitor.add(sums, seconds, processor_seconds)
            position += (step - first) * phase.train_batch_size

            # What is due after them.
            stopping = stop.is_pending()
            saving = stopping or step == phase.last_step or step % options.save_checkpoints_steps == 0
            # A line at each save too, so that the log of a run that goes on from there has the same lines.
            if saving or step % options.log_interval == 0:
                monitor.write(step, phase)
            if self._is_evaluated(step) and not stopping:
                stopping = not self._evaluate(stop)
            # Weights that every step since the last save has left as they were are not saved again: that would only
            # push out older checkpoints, which may be needed to go on from.
            is_changed = monitor.skipped_in_a_row < step - saved_at
            if (saving or stopping) and (is_changed or step == phase.last_step):
                self._save(step, phase, position, records)
                saved_at = step
            if stopping:
                profile.stop()
                print(f"stopped at step {step:,}; the same command goes on from there")
                return stop.exit_code
        profile.stop()
        return 0

    def _position_in(self, phase: Phase, records: RecordFiles) -> int:
        """How many records of the phase were used before the run was stopped; 0 where it had other records."""
        saved_phase, saved_position, fingerprint = (int(each.numpy()) for each in self._setup.data_position)
        return saved_position if (saved_phase, fingerprint) == (phase.number, records.fingerprint) else 0

    def _announce(self, phase: Phase, records: RecordFiles) -> None:
        metadata, step = self._setup.metadata, self._pretrainer.step
        print(
            f"training {metadata['parameters']:,} parameters from step {step:,} to {phase.last_step:,}, "
            f"batches of {phase.train_batch_size} x {phase.max_seq_length} on {', '.join(metadata['devices'])}",
            flush=True,
        )
        if records.damaged:
            self._log.note(step, f"{records.damaged:,} damaged records of phase {phase.number} are left out")

    def _end_of_call(self, step: int, phase: Phase, profile: Profile) -> int:
        """The step at which to come back from the devices: to log, to evaluate, to save, or to look for a stop."""
        options = self._options
        intervals = (options.log_interval, options.save_checkpoints_steps, options.eval_steps)
        due = [(step // interval + 1) * interval for interval in intervals if interval]
        due += [end for end in profile.steps if end > step]
        most = 1  # until it is known how long a step takes
        if self._seconds_per_step is not None:
            most = min(options.iterations_per_loop, max(1, int(_GRACE / self._seconds_per_step)))
        return min(step + most, phase.last_step, *due)

    def _is_evaluated(self, step: int) -> bool:
        eval_steps = self._options.eval_steps
        ends = {phase.last_step for phase in self._options.phases}
        has_weights = step or self._options.init_checkpoint  # random ones are not worth it
        return bool(eval_steps and has_weights and (step % eval_steps == 0 or step in ends))

    def _evaluate(self, stop: StopRequest) -> bool:
        """Evaluates the weights as they are; returns False where a stop came first."""
        return self._evaluation.on_the_way(stop.is_pending)

    def _make_up_for_a_missed_evaluation(self, stop: StopRequest) -> None:
        """Evaluates first where the run was stopped between a step and its evaluation, or begins with weights."""
        step = self._pretrainer.step
        if not self._is_evaluated(step):
            return
        # Only the chief has the log; all workers must evaluate together.
        missed = self._setup.is_chief and step not in {line["step"] for line in read_log(self._setup.folder, EVAL)}
        if self._mean_over_workers(float(missed)) > 0:
            self._evaluate(stop)

    def _save(self, step: int, phase: Phase, position: int, records: RecordFiles) -> None:
        if not self._setup.is_chief:
            return
        saved = (phase.number, position, records.fingerprint)
        for variable, value in zip(self._setup.data_position, saved, strict=True):
            variable.assign(value)
        print(f"saved {self._setup.checkpoints.save(step)}", flush=True)
        if not self._metadata_is_written:
            # Changed options are kept once a step was taken with them, so that a kill before it changes nothing.
            self._setup.write_metadata()
            self._metadata_is_written = True
