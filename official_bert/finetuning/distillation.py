"""Distillation (Hinton et al., arXiv:1503.02531): trains a model, the student, on the predictions of a larger one.

The larger model, the teacher, is fine-tuned on the same task.

B batch, E examples, R rows, C classes
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from official_bert.checkpoints.formats import finetuned
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.finetuning.options import FinetuningOptions
from official_bert.inference.keras_model import KerasRunner
from official_bert.kinds.features import EXAMPLE, LABELS, Features
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.text_spec import TextSpec, average_windows
from official_bert.tasks.task import Task
from official_bert.utils.counting import pluralize


class DistillationLoss(keras.losses.Loss):
    """A weighted mean of the teacher's loss and the labels' loss.

    y_true is [B, 2 C]: the labels as probabilities, followed by the teacher's logits. y_pred is [B, C]: the student's
    logits. The teacher's loss is the cross-entropy between the teacher's and the student's probabilities at a
    temperature T. It is multiplied by T squared, so that the size of its gradient does not depend on T. In regression C
    is 1, y_pred is [B], and both losses are squared errors.

    Args:
        spec: The kind of task of teacher and student, with its labels and settings.
        temperature: The temperature T.
        teacher_weight: Weight of the teacher's loss, from 0 to 1.
    """

    def __init__(self, spec: TextSpec, temperature: float, teacher_weight: float) -> None:
        super().__init__(name="distillation")
        self._model, self._teacher_weight = create_kind_model(spec), teacher_weight
        self._temperature = 1.0 if spec.is_value else temperature

    def call(self, y_true: Any, y_pred: Any) -> Any:
        labels, teacher = ops.split(y_true, 2, axis=-1)
        logits = ops.reshape(y_pred, ops.shape(labels))
        t, weight = self._temperature, self._teacher_weight
        soft = t * t * self._model.soft_loss(self._model.soft_answers(teacher / t), logits / t)  # [B]
        return weight * soft + (1 - weight) * self._model.soft_loss(labels, logits)


def prepare_distillation(
    task: Task,
    examples: Sequence[Any],
    features: Features,
    options: FinetuningOptions,
    strategy: tf.distribute.Strategy,
) -> tuple[Features, DistillationLoss]:
    """Returns the student's features with the targets of DistillationLoss (labels and the teacher's logits), and it.

    The teacher tokenizes the texts with its own vocabulary, up to its own maximum length.

    Args:
        task: The task of teacher and student.
        examples: The training examples. They need no labels if --teacher_weight is 1.
        features: The student's features of these examples.
        options: Options of the run, with the folder of the teacher.
        strategy: The distribution strategy to run the teacher with.

    Raises:
        UserError: If distillation does not support the kind of task, the teacher was trained on another task, or labels
            are needed and missing.
    """
    spec, folder = task.spec, str(options.teacher)
    if not isinstance(spec, TextSpec):
        raise UserError(f"--teacher supports tasks with one answer per text; {task.name} is {spec.kind}")
    print(f"predicting {pluralize(len(examples), 'example')} with the teacher in {folder}", flush=True)
    teacher = open_model(folder)
    with strategy.scope():
        model = finetuned.build_model(teacher)
    teacher_spec, expected = teacher.task_spec or {}, task.task_spec(0)
    for key in ("kind", "labels"):
        if teacher_spec[key] != expected[key]:
            raise UserError(f"the teacher in {folder} has {key} {teacher_spec[key]}; the task needs {expected[key]}")
    if options.teacher_weight < 1.0 and not features.targets:
        raise UserError("the examples have no labels; pass --teacher_weight=1 to use only the teacher's predictions")
    length = teacher_spec["max_seq_length"]
    teacher_features = spec.featurize(examples, teacher.tokenizer, length)
    outputs = KerasRunner(model, strategy, length).compute_outputs(teacher_features, options.eval_batch_size)
    logits = average_windows(outputs, teacher_features)  # [E, C] or [E]
    rows = logits.reshape(len(examples), -1)[features.details[EXAMPLE]]
    labels = spec.soft_targets(features.targets[LABELS]) if features.targets else np.zeros(rows.shape)
    targets = np.concatenate([labels, rows], axis=-1).astype(np.float32)
    loss = DistillationLoss(spec, options.temperature, options.teacher_weight)
    return dataclasses.replace(features, targets={LABELS: targets}), loss
