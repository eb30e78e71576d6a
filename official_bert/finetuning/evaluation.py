"""What a fine-tuned model answers: scores, a model card and predictions, as files in the run's folder."""

import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.finetuning.data import RunData
from official_bert.finetuning.model_card import Evaluation, write_model_card
from official_bert.finetuning.options import Options
from official_bert.finetuning.training import OPTIONS_FILE
from official_bert.inference.keras_model import KerasRunner
from official_bert.kinds.constant_answers import describe_constant_answers
from official_bert.kinds.label_spec import DECISIONS
from official_bert.kinds.model import model_for
from official_bert.kinds.spec import Decisions, KindSpec
from official_bert.optimization.choices import DTYPES
from official_bert.tasks.task import Task
from official_bert.utils import files
from official_bert.utils.counting import pluralize
from official_bert.utils.flags import TRAINING

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
    task_spec, expected = finetuned.read_task(folder) or {}, task.task_spec(data.max_seq_length)
    differing = [key for key in ("kind", "labels", "num_choices") if task_spec.get(key) != expected[key]]
    if differing:
        shown = "; ".join(f"{key}: {task_spec.get(key)}, the task's: {expected[key]}" for key in differing)
        raise UserError(f"the model in {folder} is of another task than {task.name} ({shown})")

    task.head = _with_decisions(task.head, task_spec)
    # Whose predictions `predictions_of` returns: calibrated anew, a model gets the same temperature.
    head = task.head.uncalibrated()

    @functools.cache
    def predictor() -> KerasRunner:
        with strategy.scope():
            learner = model_for(head).answering_model(finetuned.build_model(open_model(folder), DTYPES[options.dtype]))
        return KerasRunner(learner, strategy, data.max_seq_length)

    @functools.cache
    def predictions_of(split: str) -> tuple[list[Any], Any]:
        examples = data.read(split)
        if known_predictions and split in known_predictions:
            return examples, known_predictions[split]
        features = data.features(split)
        outputs = predictor().compute_outputs(features, options.eval_batch_size)
        return examples, head.decode(outputs, features, examples)

    def decided_of(split: str) -> tuple[list[Any], Any]:
        examples, predictions = predictions_of(split)
        return examples, task.head.calibrate(predictions)

    is_chief = strategy.extended.should_checkpoint
    if options.makes_decisions:
        examples, predictions = predictions_of(_deciding_split(task))
        wanted = Decisions(options.calibrate, options.thresholds, options.min_confidence)
        task.head = task.head.decide(predictions, examples, wanted)
        if is_chief:
            decisions = {name: value for name, value in task.head.settings.items() if name in DECISIONS}
            finetuned.replace_task(folder, task_spec | decisions)
            print(f"decisions: {decisions}; exports that were made before do not have them")
    results: Scores = {}
    warnings: list[str] = []
    if options.do_eval and task.eval_splits:
        evaluations: dict[str, Evaluation] = {}
        for split in task.eval_splits:
            examples, predictions = decided_of(split)
            results[split] = task.metrics(predictions, examples)
            print(f"{split}: " + ", ".join(f"{name} {value:.4f}" for name, value in results[split].items()))
            if is_chief:
                evaluations[split] = _evaluation(
                    task.head, results[split], data.features(split).cut, predictions, examples
                )
                task.write_predictions(options.output_dir, split, predictions, examples)
                if len({outcome.expected for outcome in evaluations[split].outcomes}) > 1:
                    warnings += _warn_if_constant(split, task.head, predictions, examples)
        if is_chief:
            # Of several labels the figures of each as well.
            kept: dict[str, Any] = {
                split: {**each.scores, **({"labels": each.label_scores} if each.label_scores else {})}
                for split, each in evaluations.items()
            }
            kept |= {"warnings": warnings} if warnings else {}
            files.write_text(os.path.join(options.output_dir, RESULTS_FILE), json.dumps(kept, indent=1) + "\n")
            card = write_model_card(options.output_dir, task, _card_settings(options), evaluations)
            print(f"model card, with scores and errors: {card}")
    if options.do_predict:
        for split in task.test_splits:
            examples, predictions = decided_of(split)
            for path in task.write_predictions(options.output_dir, split, predictions, examples) if is_chief else ():
                print(f"written {path}: {pluralize(len(examples), 'prediction')}")
            if is_chief:
                _warn_if_constant(split, task.head, predictions, examples)
    return results


def _warn_if_constant(split: str, head: KindSpec, predictions: Any, examples: list[Any]) -> list[str]:
    """Prints a warning if all predictions are (nearly) equal, and returns it in a list."""
    if not (warning := describe_constant_answers(head.named_answers(predictions, examples))):
        return []
    print(f"warning: {split}: {warning}", flush=True)
    return [f"{split}: {warning}"]


def _card_settings(options: Options) -> dict[str, Any]:
    """Returns the options of the run, with those that the model was trained with if this run only evaluates it."""
    settings, path = options.as_dict(), os.path.join(options.output_dir, OPTIONS_FILE)
    if not options.do_train and files.exists(path):
        fields = dataclasses.fields(Options)
        names = {"init", *(field.name for field in fields if field.metadata.get("group") == TRAINING)}
        settings |= {name: value for name, value in files.read_json_object(path).items() if name in names}
    return settings


def _evaluation(
    head: KindSpec, scores: Mapping[str, float], num_truncated: int, predictions: Any, examples: list[Any]
) -> Evaluation:
    """Returns the results on one part of the data, for the model card."""
    return Evaluation(
        scores=scores,
        outcomes=head.outcomes(predictions, examples),
        num_truncated=num_truncated,
        label_scores=head.label_scores(predictions, examples),
        calibration=head.calibration_figures(predictions, examples),
    )


def _with_decisions(head: KindSpec, task_spec: Mapping[str, Any]) -> KindSpec:
    """The head with what a fine-tuned model's task.json says of its decisions."""
    decisions: dict[str, Any] = {name: task_spec[name] for name in DECISIONS if name in task_spec}
    if "thresholds" in decisions:
        decisions["thresholds"] = tuple(decisions["thresholds"])
    return dataclasses.replace(head, **decisions)


def _deciding_split(task: Task) -> str:
    if not task.eval_splits:
        raise UserError(
            f"--calibrate, --thresholds and --min_confidence need evaluation data, and {task.name} has none; a table "
            "needs --eval_file"
        )
    return task.eval_splits[0]
