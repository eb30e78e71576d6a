"""The fine-tuning loop: trains from one evaluation to the next, logs, saves the best model, and can resume."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.checkpoints import run_checkpoints
from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.checkpoints.formats import finetuned
from official_bert.errors import UserError
from official_bert.finetuning.data import RunData
from official_bert.finetuning.distillation import prepare_distillation
from official_bert.finetuning.options import FinetuningOptions
from official_bert.finetuning.trainer import Trainer
from official_bert.kinds.features import hash_rows
from official_bert.kinds.names import LOWER_IS_BETTER
from official_bert.optimization import distribution
from official_bert.runs import run_file
from official_bert.runs.stop_request import StopRequest
from official_bert.runs.training_log import EVAL, TRAIN, TrainingLog, read_log
from official_bert.runs.training_run import has_lost_checkpoints, refuse_nonfinite_loss
from official_bert.tasks.task import Task
from official_bert.utils import files
from official_bert.utils.counting import pluralize
from official_bert.utils.progress import Progress, get_log_interval

OPTIONS_FILE = "finetuning_options.json"
_STATE_FOLDER = "checkpoints"
_LOG_STEPS = 50  # maximum number of steps between lines of the log


def train(
    options: FinetuningOptions,
    data: RunData,
    initial_model: LoadedModel,
    strategy: tf.distribute.Strategy,
) -> dict[str, Any]:
    """Starts or resumes training, until the last step or until the scores stop improving.

    Afterwards the output folder contains the best model (see finetuned), the log and the last state.

    Args:
        options: Options of the run.
        data: Training and evaluation data.
        initial_model: The model that training starts from.
        strategy: The distribution strategy. The chief worker writes files, and all workers read them.

    Returns:
        The best model's predictions, by evaluation split. Empty if they were made before the run was resumed.

    Raises:
        UserError: If the folder contains another run, the data have no labels, the loss is not finite, or the score
            that selects the best model is undefined.
        SystemExit: If SIGTERM or SIGINT stopped the training (after it saved its state). The exit code is 128 plus the
            number of the signal.
    """
    run = _Run(options, data, initial_model, strategy)
    run.train()
    distribution.mean_over_workers(strategy, 0.0)  # wait until the chief has written the best model
    return run.best_predictions


def _is_logged(step: int, log_steps: int | None, eval_steps: int, num_steps: int) -> bool:
    """Returns whether to log the loss after `step` steps.

    Args:
        step: Number of steps done.
        log_steps: Number of steps between lines. If None, lines are evenly spaced between evaluations.
        eval_steps: Number of steps between evaluations.
        num_steps: Number of steps of the whole run.
    """
    if log_steps:
        return step % log_steps == 0
    lines = -(-eval_steps // get_log_interval(num_steps, _LOG_STEPS))  # between two evaluations
    return step * lines // eval_steps > (step - 1) * lines // eval_steps


class _Run:
    """Trains from one evaluation to the next, logs losses and scores, and saves the state and the best model.

    Args:
        options: Options of the run.
        data: Training and evaluation data. The scores of the evaluation data select the best model.
        initial_model: The model that training starts from.
        strategy: The distribution strategy.

    Attributes:
        best_predictions: The best model's predictions, by evaluation split.
    """

    def __init__(
        self, options: FinetuningOptions, data: RunData, initial_model: LoadedModel, strategy: tf.distribute.Strategy
    ) -> None:
        self._options, self._task, self._initial_model, self._strategy = options, data.task, initial_model, strategy
        task = self._task
        for split in task.eval_splits[:1]:
            task.spec.check_best_metric(task.best_metric, data.read(split))
        examples = data.read(task.train_split)
        self._features = data.features(task.train_split)
        task.spec, self._weights = task.spec.apply_class_weights(options.class_weights, self._features)
        if options.balanced_sampling and (options.teacher or not task.spec.is_single_label):
            raise UserError(
                "--balanced_sampling needs a classification task with exactly one class per example, and no --teacher; "
                f"the task is {task.spec.kind}"
            )
        loss_function = None
        if options.teacher:
            self._features, loss_function = prepare_distillation(task, examples, self._features, options, strategy)
        if not self._features.targets:
            raise UserError(f"the training examples of {task.name} have no labels")
        num_rows = len(self._features)
        self._trainer = Trainer(task.spec, initial_model, options, num_rows, loss_function, strategy)
        self._is_chief = strategy.extended.should_checkpoint
        digest, *evaluation_digests = digests = [data.digest(split) for split in (task.train_split, *task.eval_splits)]
        write_or_compare_options(options, digest, evaluation_digests, is_writer=self._is_chief)
        self._restore_state(digests)
        windows = f" in {pluralize(num_rows, 'window')}" if task.spec.reads_windows else ""
        print(
            f"fine-tuning {task.name}: {pluralize(len(examples), 'example')}{windows}, "
            f"{pluralize(self._trainer.num_steps, 'step')} of "
            f"{pluralize(min(options.train_batch_size, num_rows), 'row')} of up to {options.max_seq_length} tokens, "
            f"learning rate {options.learning_rate:g}, seed {options.random_seed}, "
            f"on {pluralize(strategy.num_replicas_in_sync, 'replica')}"
        )
        if self._trainer.buckets:
            print(
                f"batches are padded to {', '.join(map(str, self._trainer.buckets))} tokens; training and prediction "
                "are compiled once for each of these lengths"
            )
        self._log = TrainingLog(options.output_dir if self._is_chief else None, self._step)
        distribution.mean_over_workers(strategy, 0.0)  # wait until the chief has removed later lines from the log
        self._held_out = {split: (data.read(split), data.features(split)) for split in task.eval_splits}
        trained = set(hash_rows(self._features))
        for split, (_, features) in self._held_out.items():
            if copies := sum(row in trained for row in hash_rows(features)):
                rows = f"{copies:,} of {pluralize(len(features), 'row')}"
                print(f"note: {split}: {rows} also occur in the training data; scores on new texts may be lower")
        self._deciding_score = get_deciding_score(task) if self._held_out else ""
        self._sign = get_sign(task)
        self._scores = self._read_scores() if self._held_out else []  # higher is better
        self.best_predictions: dict[str, Any] = {}

    def _restore_state(self, digests: list[str]) -> None:
        """Restores the latest state of the run, if there is one, and the number of steps that it has done.

        Args:
            digests: Digests of the training and evaluation data, which all workers must have.
        """
        folder, trainer = os.path.join(self._options.output_dir, _STATE_FOLDER), self._trainer
        variables = {"model": trainer.model.variables, "optimizer": trainer.optimizer.variables}
        self._state, self._step = run_checkpoints.RunCheckpoints(folder, variables, keep=1), 0
        if restored := self._state.restore_latest():
            self._step = run_checkpoints.parse_step(restored)
            print(f"resuming at step {self._step:,}")
        elif has_lost_checkpoints(self._options.output_dir, folder, trainer.eval_steps):
            raise UserError(
                f"{self._options.output_dir} contains a run whose saved state ({_STATE_FOLDER}/ckpt-*.index) is "
                "missing: restore it to resume the run, or pass another --output_dir to start a new one"
            )
        if self._is_chief:
            self._state.remove_unfinished()
        flags = {f"--{name}": value for name, value in self._options.as_dict().items() if name != "worker_index"}
        values = {**flags, "data or vocabulary": digests}
        distribution.check_same_run(self._strategy, self._step, self._options.output_dir, values)

    def _read_scores(self) -> list[float]:
        """Returns the scores of earlier evaluations, which later ones are compared with to choose the best model.

        Raises:
            UserError: If the log lacks an evaluation.
        """
        lines, eval_steps = read_log(self._options.output_dir, EVAL), self._trainer.eval_steps
        missing = {*range(eval_steps, self._step + 1, eval_steps)} - {line["step"] for line in lines}
        if missing:
            raise UserError(
                f"{EVAL}.jsonl in {self._options.output_dir} lacks the scores of step {min(missing):,}, which later "
                "scores are compared with; restore the file from a copy, or start a new run in another --output_dir"
            )
        return [self._sign * line[self._deciding_score] for line in lines]

    def train(self) -> None:
        """Trains to the end of the run, evaluating in between, unless training stops early."""
        options, trainer, strategy = self._options, self._trainer, self._strategy
        num_steps, eval_steps, resumed_at = trainer.num_steps, trainer.eval_steps, self._step

        def count_rows(done: int) -> int:
            """Returns the number of rows trained on since this process started, after `done` steps of the run.

            The last batch of an epoch may be smaller than the others.
            """
            return (done - resumed_at) * len(self._features) // trainer.steps_per_epoch

        progress = Progress(f"fine-tuning {options.task}", count_rows(num_steps), "rows")
        with StopRequest(strategy) as stop:

            def on_step(done: int, loss: float) -> bool:
                if done == resumed_at + 1:
                    progress.begin(count_rows(done))  # the first step includes compilation
                progress.update(count_rows(done), f"loss {loss:.4f}{self._format_latest_score()}")
                if _is_logged(done, options.log_steps, eval_steps, num_steps):
                    self._log_figures(done)
                return stop.is_pending()

            step = resumed_at
            while step < num_steps and not has_stopped_improving(self._scores, options.early_stopping):
                first, last = step, min(step - step % eval_steps + eval_steps, num_steps)
                step, loss = trainer.train(self._features, first, last, on_step, self._weights)
                if not np.isfinite(loss):
                    refuse_nonfinite_loss(
                        f"The loss is not finite at step {step:,}",
                        os.path.join(options.output_dir, _STATE_FOLDER),
                        step,
                        f"lower --learning_rate (now {options.learning_rate:g}) or lengthen the warm-up",
                    )
                if step == last:
                    self._log_figures(step)
                    self._evaluate(step, loss)
                if self._is_chief:
                    self._state.save(step)
                if stop.is_pending():
                    print(f"stopped at step {step:,}; run the same command to resume")
                    raise SystemExit(stop.exit_code)
        if step < num_steps:
            evaluations = pluralize(options.early_stopping, "evaluation")
            print(f"stopped early: {self._deciding_score} did not improve in {evaluations}")

    def _log_figures(self, step: int) -> None:
        """Logs the loss and the speed of the steps since the previous line, if there are any, after `step` steps."""
        if figures := self._trainer.take_figures():
            self._log.write(TRAIN, step, figures)

    def _format_latest_score(self) -> str:
        """Returns the latest value of the score that selects the best model, as text for the progress line."""
        return f", {self._deciding_score} {self._sign * self._scores[-1]:.4f}" if self._scores else ""

    def _evaluate(self, step: int, loss: float) -> None:
        """Evaluates the model, logs and prints the scores, and saves the model if it is the best so far.

        Args:
            step: Number of steps done.
            loss: Mean loss since the previous evaluation, to print.
        """
        task, trainer = self._task, self._trainer
        epoch = step / trainer.steps_per_epoch
        line = f"step {step:,} of {trainer.num_steps:,} (epoch {epoch:.2f}): loss {loss:.4f}"
        predictions: dict[str, Any] = {}
        if self._held_out:
            scores: dict[str, float] = {}
            for split, (examples, features) in self._held_out.items():
                outputs = trainer.predict(features, self._options.eval_batch_size)
                predictions[split] = task.spec.decode(outputs, features, examples)
                split_scores = task.metrics(predictions[split], examples)
                scores |= {f"{split}/{name}": value for name, value in split_scores.items()}
            self._log.write(EVAL, step, scores)
            self._scores.append(self._sign * scores[self._deciding_score])
            line += "".join(f", {name} {value:.4f}" for name, value in scores.items())
        if not self._scores or self._scores[-1] > max(self._scores[:-1], default=-np.inf):
            if self._is_chief:
                task_spec, initial = task.task_spec(self._options.max_seq_length), self._initial_model
                vocab = initial.require_vocab()
                finetuned.save(
                    self._options.output_dir, trainer.model, task_spec, initial.config, vocab, initial.casing
                )
            self.best_predictions = predictions
            line += "; saved"
        print(line, flush=True)


def get_deciding_score(task: Task) -> str:
    """Returns the name in the log of the score that selects the best model, such as "dev/accuracy"."""
    return f"{task.eval_splits[0]}/{task.best_metric}"


def get_sign(task: Task) -> float:
    """Returns -1 if a lower deciding score is better, or else 1. Multiplied by it, higher scores are better."""
    return -1.0 if task.best_metric in LOWER_IS_BETTER else 1.0


def has_stopped_improving(scores: list[float], patience: int) -> bool:
    """Returns whether the best score is `patience` or more evaluations old. A patience of 0 means never."""
    return bool(patience and scores) and len(scores) - 1 - int(np.argmax(scores)) >= patience


def write_or_compare_options(
    options: FinetuningOptions, data_digest: str, evaluation_digests: Sequence[str], is_writer: bool = True
) -> None:
    """Writes the options and digests of a new run, or compares them with an earlier start in the output folder.

    Args:
        options: The options of the run.
        data_digest: Digest of the training data.
        evaluation_digests: Digests of the evaluation splits, whose scores select the best model.
        is_writer: Whether this process writes the run's files. Only one of several workers does.

    Raises:
        UserError: If the folder contains a run with other options or other data.
    """
    folder, path = options.output_dir, os.path.join(options.output_dir, OPTIONS_FILE)
    identity = {
        **run_file.locked_values(options, options.task_options),
        "data": data_digest,
        "evaluation_data": list(evaluation_digests),
    }
    if finetuned.is_finetuned(folder) or run_checkpoints.find_newest_step(os.path.join(folder, _STATE_FOLDER)):
        if not files.exists(path):
            raise UserError(
                f"{folder} contains a fine-tuned model that this command did not write; pass another --output_dir"
            )
        changes = run_file.find_changes(run_file.read_run_file(path), identity)
        run_file.refuse_changes(
            folder,
            changes,
            "Pass the same options and data, or another --output_dir. Without --do_train, the model there is scored.",
            {
                "data": "the training data or the vocabulary differ",
                "evaluation_data": "the evaluation data, whose scores selected the best model, differ",
            },
        )
    elif is_writer:
        run_file.write_run_file(path, identity)
