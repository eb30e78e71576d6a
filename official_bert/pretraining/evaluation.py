"""Evaluation on held-out records, while training and after it, and the weights that did best."""

import math
import os
from collections.abc import Callable

import keras

from official_bert.checkpoints import bundle, run_checkpoints
from official_bert.checkpoints.model_files import write_contents
from official_bert.errors import UserError
from official_bert.pretraining.losses import pretraining_metrics
from official_bert.pretraining.monitor import next_sentence_part
from official_bert.pretraining.record_files import RecordFiles
from official_bert.pretraining.run_setup import RunSetup
from official_bert.pretraining.train_step import SUMS, Pretrainer
from official_bert.pretraining.unigram_level import unigram_accuracy
from official_bert.runs.training_log import EVAL, GENERAL, TrainingLog
from official_bert.utils import files
from official_bert.utils.counting import counted

RESULTS_FILE = "eval_results.txt"


class HeldOutEvaluation:
    """Evaluates a run on its held-out records, and on general ones if it has them; writes the scores to its log."""

    def __init__(self, setup: RunSetup, log: TrainingLog) -> None:
        self._setup, self._log = setup, log
        self._folder = os.path.join(setup.folder, "best")

    def on_the_way(self, is_stopping: Callable[[], bool]) -> bool:
        """Evaluates while training and keeps the best weights; returns False where a stop came first."""
        results = self._evaluate(is_stopping)
        if results is None:
            return False
        step = self._setup.pretrainer.step
        for kind, (metrics, _) in results.items():
            print(
                f"evaluation at step {step:,}{' on general text' * (kind == GENERAL)}: masked LM loss "
                f"{metrics['masked_lm_loss']:.4f} ({100 * metrics['masked_lm_accuracy']:.1f} % right)"
                f"{next_sentence_part(metrics, ', ')}",
                flush=True,
            )
        metrics, _ = results[EVAL]
        if self._setup.is_chief and self._best_weights().keep_if_better(step, metrics["loss"]):
            print(f"the best so far, kept in {self._folder}", flush=True)
        return True

    def at_the_end(self) -> None:
        """Evaluates the weights that training ended with, or those of the newest checkpoint, into a file."""
        setup, options = self._setup, self._setup.options
        evaluated = self._evaluate(lambda: False)
        assert evaluated is not None
        metrics, totals = evaluated[EVAL]
        results = {"global_step": setup.pretrainer.step, **metrics}
        if GENERAL in evaluated:
            results |= {f"general_{name}": value for name, value in evaluated[GENERAL][0].items()}
        text = "".join(f"{name} = {results[name]}\n" for name in sorted(results))
        if setup.is_chief:
            files.write_text(os.path.join(setup.folder, RESULTS_FILE), text)
        records = f"{counted(round(count), 'record')}, " if (count := totals["next_sentence_count"]) else ""
        print(f"evaluated {records}{counted(round(totals['masked_lm_count']), 'prediction')}")
        print(text, end="")
        baseline = unigram_accuracy(self._records(), options.eval_batch_size, options.max_eval_steps)
        print(f"unigram baseline, always the commonest token: masked_lm_accuracy = {baseline}", flush=True)

    def _evaluate(self, is_stopping: Callable[[], bool]) -> dict[str, tuple[dict[str, float], dict[str, float]]] | None:
        """Evaluates and logs; returns what `evaluate` does by the kind of log, None where a stop came first."""
        setup, options, general = self._setup, self._setup.options, self._setup.records.general
        # The log of the held-out records is written last: where it has a step, the other has it.
        results = {}
        for kind, records in {**({GENERAL: general} if general else {}), EVAL: self._records()}.items():
            with records.naming_damage():
                result = evaluate(
                    setup.pretrainer, records, options.eval_batch_size, options.max_eval_steps, is_stopping
                )
            if result is None:
                return None
            results[kind] = result
        for kind, (metrics, _) in results.items():
            self._log.write(kind, setup.pretrainer.step, metrics)
        return results

    def _best_weights(self) -> "BestWeights":
        setup = self._setup
        return BestWeights(self._folder, setup.pretrainer.model, setup.model_files, self._records().fingerprint)

    def _records(self) -> RecordFiles:
        records = self._setup.records.held_out
        assert records is not None
        return records


def evaluate(
    pretrainer: Pretrainer, records: RecordFiles, batch_size: int, most_batches: int, is_stopping: Callable[[], bool]
) -> tuple[dict[str, float], dict[str, float]] | None:
    """Returns the metrics of the weights as they are and the sums behind them; None where a stop came first.

    A batch has `batch_size` records over all devices; before each of at most `most_batches`, `is_stopping` is asked.
    """
    data = records.evaluation(batch_size).take(most_batches)
    totals = dict.fromkeys(SUMS, 0.0)
    for batch in pretrainer.strategy.experimental_distribute_dataset(data):
        if is_stopping():
            return None
        for name, value in pretrainer.evaluate(batch).items():
            totals[name] += value
    return pretraining_metrics(totals), totals


class BestWeights:
    """The weights that had the lowest loss on the held-out records so far, in a folder of their own.

    Their loss and the records' fingerprint, `data`, are saved with them, so that they are judged by nothing else.
    """

    def __init__(self, folder: str, model: keras.Model, model_files: dict[str, str], data: int) -> None:
        self._folder, self._model_files = folder, model_files
        self._loss = keras.Variable(0.0, dtype="float64", trainable=False, name="loss")
        self._data = run_checkpoints.counter("data", data)
        saved = {"model": model.variables, "best": [self._loss, self._data]}
        self._saved = run_checkpoints.RunCheckpoints(folder, saved, keep=1)

    def keep_if_better(self, step: int, loss: float) -> bool:
        """Saves the weights of a step if their loss is finite and below that of those kept; says whether it did."""
        if not (math.isfinite(loss) and loss < self._lowest(step)):
            return False
        write_contents(self._folder, self._model_files)
        self._loss.assign(loss)
        self._saved.save(step)
        return True

    def _lowest(self, step: int) -> float:
        try:
            path = self._saved.newest_whole()
        except UserError:  # what cannot be read is not the best
            return math.inf
        # Those of a later step are of a run that was stopped and went on from before: its steps are taken again.
        if path is None or run_checkpoints.step_of(path) > step:
            return math.inf
        source = bundle.open_bundle(path)
        held = {name: source.read(f"best/{name}/.ATTRIBUTES/VARIABLE_VALUE") for name in ("loss", "data")}
        return float(held["loss"]) if int(held["data"]) == int(self._data.numpy()) else math.inf
