"""Evaluates a fine-tuned model and writes scores, a model card and predictions into the folder of the run."""

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_bert.checkpoints.formats import finetuned
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.finetuning.data import RunData
from official_bert.finetuning.model_card import CARD_FILE, Evaluation, format_model_card
from official_bert.finetuning.options import FinetuningOptions
from official_bert.finetuning.training import OPTIONS_FILE
from official_bert.inference.keras_model import KerasRunner
from official_bert.kinds.all_kinds import create_spec
from official_bert.kinds.constant_answers import describe_constant_answers
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.spec import DecisionOptions, KindSpec
from official_bert.optimization.choices import DTYPES
from official_bert.tasks.options import TASK_OPTIONS
from official_bert.utils import files
from official_bert.utils.counting import pluralize
from official_bert.utils.flags import TRAINING

RESULTS_FILE = "results.json"
_FORMATS = {"temperature": "temperature of the probabilities: {:.4f}", "min_confidence": "minimum confidence: {:g}"}

Scores = dict[str, dict[str, float]]  # by split and name


def evaluate_and_predict(
    options: FinetuningOptions,
    data: RunData,
    folder: str,
    strategy: tf.distribute.Strategy,
    known_predictions: Mapping[str, Any] | None = None,
) -> Scores:
    """Evaluates a fine-tuned model and makes predictions, as the options specify. Returns the scores of each split.

    Args:
        options: Options of the run. Files are written into its folder.
        data: The data of the task.
        folder: Folder of the fine-tuned model.
        strategy: The distribution strategy. Only the chief worker writes files.
        known_predictions: Predictions that the model has already made, by split. They are not computed again.

    Raises:
        UserError: If the model was trained on another task.
    """
    task = data.task
    task_spec = finetuned.read_task_spec(folder) or {}
    _check_task(task_spec, task.task_spec(data.max_seq_length), folder, task.name)
    trained = create_spec(task_spec)
    names = set(task.spec.decision_settings) & task_spec.keys() - options.task_options.list_given(options.given_flags)
    decided: dict[str, Any] = {name: getattr(trained, name) for name in names}
    task.spec = dataclasses.replace(task.spec, **decided)
    # `predict` returns uncalibrated predictions, so that calibrating a model again gives the same temperature.
    spec = task.spec.uncalibrated()

    @functools.cache
    def make_predictor() -> KerasRunner:
        with strategy.scope():
            learner = create_kind_model(spec).answering_model(
                finetuned.build_model(open_model(folder), DTYPES[options.dtype])
            )
        return KerasRunner(learner, strategy, data.max_seq_length)

    @functools.cache
    def predict(split: str) -> tuple[list[Any], Any]:
        examples = data.read(split)
        if known_predictions and split in known_predictions:
            return examples, known_predictions[split]
        features = data.features(split)
        outputs = make_predictor().compute_outputs(features, options.eval_batch_size)
        return examples, spec.decode(outputs, features, examples)

    def predict_calibrated(split: str) -> tuple[list[Any], Any]:
        examples, predictions = predict(split)
        return examples, task.spec.calibrate(predictions)

    is_chief = strategy.extended.should_checkpoint
    if options.chooses_decision_settings:
        examples, predictions = predict(task.eval_splits[0])
        task.spec = task.spec.choose_settings(predictions, examples, get_decision_options(options))
    before, settings = (each.select_decision_settings(each.settings) for each in (trained, task.spec))
    if is_chief and (options.chooses_decision_settings or settings != before):
        print(_describe_decision_settings(task.spec, settings))
        if folder == options.output_dir:
            finetuned.replace_task_spec(folder, task_spec | settings)
            print("existing exports do not include them; export the model again")
        else:
            print(f"note: the model in --init keeps its own; to store these in it, pass --output_dir={folder}")
    results: Scores = {}
    evaluations: dict[str, Evaluation] = {}
    warnings: list[str] = []
    for split in task.eval_splits if options.do_eval else ():
        examples, predictions = predict_calibrated(split)
        results[split] = task.metrics(predictions, examples)
        _print_scores(split, results[split], task.spec.undefined_scores(examples))
        if is_chief:
            evaluations[split] = Evaluation(
                scores=results[split],
                outcomes=task.spec.outcomes(predictions, examples),
                num_truncated=data.features(split).num_truncated,
                label_scores=task.spec.label_scores(predictions, examples),
                calibration=task.spec.calibration_report(predictions, examples),
            )
            task.write_predictions(options.output_dir, split, predictions, examples)
            outcomes = evaluations[split].outcomes
            if {each.expected for each in outcomes} != {each.predicted for each in outcomes}:
                warnings += _warn_if_constant(split, task.spec, predictions, examples)
    if evaluations:
        # With several labels, add the scores of each label.
        contents: dict[str, Any] = {
            split: {**each.scores, **({"labels": each.label_scores} if each.label_scores else {})}
            for split, each in evaluations.items()
        }
        contents |= {"warnings": warnings} if warnings else {}
        files.write_text(os.path.join(options.output_dir, RESULTS_FILE), json.dumps(contents, indent=1) + "\n")
        card = os.path.join(options.output_dir, CARD_FILE)
        files.write_text(card, format_model_card(task, _card_settings(options), evaluations))
        print(f"model card, with scores and errors: {card}")
    for split in task.test_splits if options.do_predict else ():
        examples, predictions = predict_calibrated(split)
        if is_chief:
            for path in task.write_predictions(options.output_dir, split, predictions, examples):
                print(f"wrote {pluralize(len(examples), 'prediction')} to {path}")
            _warn_if_constant(split, task.spec, predictions, examples)
    return results


def _print_scores(split: str, scores: Mapping[str, float], undefined: Sequence[str]) -> None:
    print(f"{split}: " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items()))
    if undefined:
        names = ", ".join(undefined)
        print(f"note: {split}: {names} are left out. They are undefined if all examples have the same class.")


def _check_task(task_spec: Mapping[str, Any], expected: Mapping[str, Any], folder: str, name: str) -> None:
    """Raises a UserError if the model in a folder was trained on another task.

    Args:
        task_spec: The contents of the model's task.json.
        expected: The same for the task of the run.
        folder: The folder.
        name: Name of the task of the run.
    """
    keys = ["kind", "labels", "num_choices"]
    if task_spec.get("task") in TASK_OPTIONS:  # Otherwise, the model was converted, and these two are assumptions.
        keys += ["pair", "version_2"]
    differing = [key for key in keys if task_spec.get(key) != expected.get(key)]
    if differing:
        shown = "; ".join(f"{key} is {task_spec.get(key)}, expected {expected.get(key)}" for key in differing)
        raise UserError(f"the model in {folder} does not fit the task {name}: {shown}")


def _describe_decision_settings(spec: KindSpec, settings: Mapping[str, Any]) -> str:
    """Returns lines about the decision settings (such as thresholds) that were chosen on the evaluation data."""
    lines = []
    for name, value in settings.items():
        if name == "thresholds":
            thresholds = zip(spec.labels or (), value, strict=False)
            lines += [f"threshold of {label}: {threshold:.4f}" for label, threshold in thresholds]
        else:
            lines.append(_FORMATS.get(name, f"{name}: {{:g}}").format(value))
    return "\n".join(lines or ["no decision changed"])


def _warn_if_constant(split: str, spec: KindSpec, predictions: Any, examples: list[Any]) -> list[str]:
    """Prints a warning if all predictions are (nearly) equal. Returns a list with the warning, or an empty list."""
    answers = spec.named_answers(predictions, examples)
    expected = [each.label for each in examples if each.label is not None] if "value" in answers else []
    if not (warning := describe_constant_answers(answers, expected)):
        return []
    print(f"warning: {split}: {warning}", flush=True)
    return [f"{split}: {warning}"]


def _card_settings(options: FinetuningOptions) -> dict[str, Any]:
    """Returns the options to show in the model card.

    If the run does not train, the training options are read from the model's folder, which stores the
    options of its training run.
    """
    settings, path = options.as_dict(), os.path.join(options.output_dir, OPTIONS_FILE)
    if not options.do_train and files.exists(path):
        fields = dataclasses.fields(FinetuningOptions)
        names = {"init", *(field.name for field in fields if field.metadata.get("group") == TRAINING)}
        settings |= {name: value for name, value in files.read_json_object(path).items() if name in names}
    return settings


def get_decision_options(options: FinetuningOptions) -> DecisionOptions:
    """Returns which decision settings to choose on the evaluation data."""
    return DecisionOptions(options.calibrate, options.thresholds, options.min_confidence)
