"""What a fine-tuned model answers: scores, a report and predictions, as files in the run's folder."""

import functools
import json
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_bert.checkpoints import finetuned
from official_bert.errors import UserError
from official_bert.finetuning.data import RunData
from official_bert.finetuning.options import Options
from official_bert.finetuning.report import write_report
from official_bert.learning.predictor import Predictor
from official_bert.optimization.choices import DTYPES
from official_bert.utils import files
from official_bert.utils.counting import counted

RESULTS_FILE = "results.json"

Scores = dict[str, dict[str, float]]  # by split and name


def evaluate_and_predict(
    options: Options,
    data: RunData,
    folder: str,
    strategy: tf.distribute.Strategy,
    known_predictions: Mapping[str, Any] | None = None,
) -> Scores:
    """Scores and predicts, as the options say; returns the scores of each part.

    Args:
        options: of the run, whose folder gets the files.
        data: what is scored and predicted.
        folder: of the fine-tuned model.
        strategy: where; of several workers the chief writes.
        known_predictions: those of the model for parts that need not be predicted again, by split.

    Raises:
        UserError: the model is of another task.
    """
    task = data.task
    task_spec, expected = finetuned.load_task_spec(folder), task.task_spec(data.max_seq_length)
    differing = [key for key in ("kind", "labels", "num_choices") if task_spec[key] != expected[key]]
    if differing:
        shown = "; ".join(f"{key}: {task_spec[key]}, the task's: {expected[key]}" for key in differing)
        raise UserError(f"the model in {folder} is of another task than {task.name} ({shown})")

    @functools.cache
    def predictor() -> Predictor:
        with strategy.scope():
            model = finetuned.load(folder, DTYPES[options.dtype]).model
        return Predictor(model, strategy, data.max_seq_length)

    def predictions_of(split: str) -> tuple[list[Any], Any]:
        examples = data.read(split)
        if known_predictions and split in known_predictions:
            return examples, known_predictions[split]
        features = data.features(split)
        outputs = predictor().predict(features, options.eval_batch_size)
        return examples, task.head.decode(outputs, features, examples)

    is_chief = strategy.extended.should_checkpoint
    results: Scores = {}
    if options.do_eval and task.eval_splits:
        outcomes = {}
        for split in task.eval_splits:
            examples, predictions = predictions_of(split)
            results[split] = task.metrics(predictions, examples)
            print(f"{split}: " + ", ".join(f"{name} {value:.4f}" for name, value in results[split].items()))
            if is_chief:
                outcomes[split] = task.head.outcomes(predictions, examples)
                task.write_predictions(options.output_dir, split, predictions, examples)
        if is_chief:
            files.write_text(os.path.join(options.output_dir, RESULTS_FILE), json.dumps(results, indent=1) + "\n")
            cut = {split: data.features(split).cut for split in outcomes}
            *_, page = write_report(options.output_dir, task, options.as_dict(), results, outcomes, cut)
            print(f"scores, curves and errors: {page}")
    if options.do_predict:
        for split in task.test_splits:
            examples, predictions = predictions_of(split)
            for path in task.write_predictions(options.output_dir, split, predictions, examples) if is_chief else ():
                print(f"written {path}: {counted(len(examples), 'prediction')}")
    return results
