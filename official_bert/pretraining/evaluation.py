"""Evaluates held-out records during and after training, and keeps the best weights."""

import dataclasses
import math
import os
from collections.abc import Callable

import keras

from official_bert.checkpoints import bundle, run_checkpoints
from official_bert.checkpoints.model_files import write_model_files
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.losses import compute_pretraining_metrics
from official_bert.pretraining.monitor import format_losses
from official_bert.pretraining.options import PretrainingOptions
from official_bert.pretraining.record_files import RecordFiles
from official_bert.pretraining.run_records import RunRecords
from official_bert.pretraining.train_step import SUMS, Pretrainer
from official_bert.pretraining.unigram_level import compute_unigram_accuracy
from official_bert.runs.training_log import EVAL, GENERAL, TrainingLog
from official_bert.utils import files
from official_bert.utils.counting import pluralize

RESULTS_FILE = "eval_results.txt"


@dataclasses.dataclass(frozen=True)
class HeldOutEvaluation:
    """Evaluates a run on its held-out records, and on records of general text if --general_eval_file is set."""

    options: PretrainingOptions
    config: BertConfig
    pretrainer: Pretrainer
    records: RunRecords
    model_files: dict[str, str]
    log: TrainingLog
    is_chief: bool

    def evaluate_checkpoint(self, is_stopping: Callable[[], bool]) -> bool:
        """Evaluates the current weights during training, and saves them if they are the best so far.

        Args:
            is_stopping: Function that returns whether a stop was requested.

        Returns:
            False if the evaluation was ended by a stop request, or else True.
        """
        results = self._evaluate(is_stopping)
        if results is None:
            return False
        step = self.pretrainer.step
        for kind, (metrics, _) in results.items():
            print(
                f"evaluation at step {step:,}{' on general text' * (kind == GENERAL)}: "
                f"{format_losses(metrics, self.config, ', ', noun=' loss')}",
                flush=True,
            )
        metrics, _ = results[EVAL]
        if self.is_chief:
            folder = os.path.join(self.options.output_dir, "best")
            model, data = self.pretrainer.model, self._held_out.fingerprint
            if save_if_best(folder, step, metrics["loss"], model, self.model_files, data):
                print(f"best evaluation so far; saved to {folder}", flush=True)
        return True

    def evaluate_final_weights(self) -> None:
        """Evaluates the current weights at the end of a run (--do_eval), and writes the scores to eval_results.txt."""
        evaluated = self._evaluate(lambda: False)
        assert evaluated is not None
        metrics, totals = evaluated[EVAL]
        results = {"global_step": self.pretrainer.step, **metrics}
        if GENERAL in evaluated:
            results |= {f"general_{name}": value for name, value in evaluated[GENERAL][0].items()}
        text = "".join(f"{name} = {results[name]}\n" for name in sorted(results))
        if self.is_chief:
            files.write_text(os.path.join(self.options.output_dir, RESULTS_FILE), text)
        print(self._describe_evaluated(totals))
        print(text, end="")
        baseline = compute_unigram_accuracy(self._held_out, self.options.eval_batch_size, self.options.max_eval_steps)
        print(f"unigram baseline, always the commonest token: masked_lm_accuracy = {baseline}", flush=True)

    def _describe_evaluated(self, totals: dict[str, float]) -> str:
        """Returns a line with the number of evaluated records and predictions."""
        predictions = pluralize(round(totals["masked_lm_count"]), "prediction")
        options, available = self.options, self._held_out.num_records
        limit = options.max_eval_steps * options.eval_batch_size
        if available is not None and limit < available:
            return (
                f"evaluated the first {limit:,} of {available:,} records (--max_eval_steps={options.max_eval_steps} "
                f"x --eval_batch_size={options.eval_batch_size}), {predictions}"
            )
        records = f"{pluralize(round(count), 'record')}, " if (count := totals["next_sentence_count"]) else ""
        return f"evaluated {records}{predictions}"

    def _evaluate(self, is_stopping: Callable[[], bool]) -> dict[str, tuple[dict[str, float], dict[str, float]]] | None:
        """Evaluates and logs. Returns the results by kind of log, or None if a stop was requested first."""
        options, general = self.options, self.records.general
        # The log of the held-out records is written last, so that a step in it is in the other log too.
        results = {}
        for kind, records in {**({GENERAL: general} if general else {}), EVAL: self._held_out}.items():
            with records.explain_damage():
                result = evaluate(
                    self.pretrainer, records, options.eval_batch_size, options.max_eval_steps, is_stopping
                )
            if result is None:
                return None
            results[kind] = result
        for kind, (metrics, totals) in results.items():
            # The number of predictions shows whether two evaluations used the same records.
            self.log.write(kind, self.pretrainer.step, {**metrics, "predictions": round(totals["masked_lm_count"])})
        return results

    @property
    def _held_out(self) -> RecordFiles:
        assert self.records.held_out is not None
        return self.records.held_out


def evaluate(
    pretrainer: Pretrainer, records: RecordFiles, batch_size: int, most_batches: int, is_stopping: Callable[[], bool]
) -> tuple[dict[str, float], dict[str, float]] | None:
    """Evaluates the current weights of a model.

    Args:
        pretrainer: The model.
        records: The records to evaluate.
        batch_size: Number of records per batch, over all devices.
        most_batches: Maximum number of batches.
        is_stopping: Function that returns whether a stop was requested. It is called before each batch.

    Returns:
        The metrics by name (see compute_pretraining_metrics), and the sums that they come from. None if a stop was
        requested.
    """
    data = records.evaluation_batches(batch_size).take(most_batches)
    totals = dict.fromkeys(SUMS, 0.0)
    for batch in pretrainer.strategy.experimental_distribute_dataset(data):
        if is_stopping():
            return None
        for name, value in pretrainer.evaluate(batch).items():
            totals[name] += value
    return compute_pretraining_metrics(totals), totals


def save_if_best(
    folder: str, step: int, loss: float, model: keras.Model, model_files: dict[str, str], data: int
) -> bool:
    """Saves the current weights in a folder of their own if their held-out loss is the lowest so far.

    The loss and the fingerprint of the held-out records are saved with the weights, so that losses on different records
    are not compared.

    Args:
        folder: The folder.
        step: Number of steps done.
        loss: The loss on the held-out records.
        model: The model.
        model_files: Texts of the model's small files, by file name.
        data: Fingerprint of the held-out records.

    Returns:
        Whether the weights were saved.
    """
    variable = keras.Variable(loss, dtype="float64", trainable=False, name="loss")
    saved = {"model": model.variables, "best": [variable, run_checkpoints.create_counter("data", data)]}
    if not (math.isfinite(loss) and loss < _find_lowest_loss(folder, step, data)):
        return False
    write_model_files(folder, model_files)
    run_checkpoints.RunCheckpoints(folder, saved, keep=1).save(step)
    return True


def _find_lowest_loss(folder: str, step: int, data: int) -> float:
    try:
        path = run_checkpoints.find_newest_complete(folder)
    except UserError:  # Unreadable weights do not count.
        return math.inf
    # Weights of a later step were saved before the run was resumed from an earlier one.
    if path is None or run_checkpoints.parse_step(path) > step:
        return math.inf
    source = bundle.open_bundle(path)
    held = {name: source.read(f"best/{name}/.ATTRIBUTES/VARIABLE_VALUE") for name in ("loss", "data")}
    return float(held["loss"]) if int(held["data"]) == data else math.inf
