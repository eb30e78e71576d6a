"""Distillation (Hinton et al., arXiv:1503.02531): a model learns what a larger, fine-tuned one answers.

B batch, R rows, C classes
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.inference.keras_model import KerasRunner
from official_bert.kinds.features import EXAMPLE, LABELS, Features
from official_bert.kinds.model import model_for
from official_bert.kinds.text_spec import TextSpec, pooled
from official_bert.tasks.task import Task


class DistillationLoss(keras.losses.Loss):
    """The teacher's loss and the labels', mixed.

    y_true is [B, 2 C], what the labels say (as probabilities) and the teacher's logits side by side; y_pred is [B, C],
    logits. The teacher's loss is the cross-entropy of both logits' probabilities at a temperature T, times T squared,
    so that its gradient keeps its size. For values C is 1, y_pred is [B], and both losses are squared errors.

    Args:
        head: of teacher and model.
        temperature: T.
        teacher_weight: the share of the teacher's loss, from 0 to 1.
    """

    def __init__(self, head: TextSpec, temperature: float, teacher_weight: float) -> None:
        super().__init__(name="distillation")
        self._model, self._teacher_weight = model_for(head), teacher_weight
        self._temperature = 1.0 if head.is_value else temperature

    def call(self, y_true: Any, y_pred: Any) -> Any:
        labels, teacher = ops.split(y_true, 2, axis=-1)
        logits = ops.reshape(y_pred, ops.shape(labels))
        t, share = self._temperature, self._teacher_weight
        soft = t * t * self._model.soft_loss(self._model.soft_answers(teacher / t), logits / t)  # [B]
        return share * soft + (1 - share) * self._model.soft_loss(labels, logits)


def text_head(task: Task) -> TextSpec:
    """Returns the head of a task, which a teacher can teach; raises a UserError for others."""
    if not isinstance(task.head, TextSpec):
        raise UserError(f"--teacher is for tasks of whole texts; {task.name} is {task.head.kind}")
    return task.head


def with_teacher(
    task: Task,
    examples: Sequence[Any],
    features: Features,
    folder: str,
    teacher_weight: float,
    batch_size: int,
    strategy: tf.distribute.Strategy | None = None,
) -> Features:
    """Returns the features with targets for DistillationLoss.

    The teacher reads the texts with its own vocabulary, up to its own length.

    Args:
        task: of the examples and of the teacher.
        examples: the training data; without labels if all is learned from the teacher.
        features: theirs, for the model that learns.
        folder: the teacher's, as fine-tuning leaves it.
        teacher_weight: 1 where the labels are not needed.
        batch_size: rows that the teacher answers at once.
        strategy: where it answers; None for where TensorFlow would.

    Raises:
        UserError: the teacher is of another task, or labels are missing.
    """
    head = text_head(task)
    teacher = open_model(folder)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = finetuned.build_model(teacher)
    spec, expected = teacher.task or {}, task.task_spec(0)
    for key in ("kind", "labels"):
        if spec[key] != expected[key]:
            raise UserError(f"the teacher in {folder} has {key} {spec[key]}; the task has {expected[key]}")
    if teacher_weight < 1.0 and not features.targets:
        raise UserError("the examples have no labels; pass --teacher_weight=1 to learn from the teacher alone")
    length = spec["max_seq_length"]
    read = head.featurize(examples, teacher.tokenizer, length)
    outputs = KerasRunner(model, strategy, length).compute_outputs(read, batch_size)
    logits = pooled(outputs, read, len(examples))  # [E, C] or [E]
    rows = logits.reshape(len(examples), -1)[features.details[EXAMPLE]]
    labels = head.soft_targets(features.targets[LABELS], rows.shape[1]) if features.targets else np.zeros(rows.shape)
    targets = np.concatenate([labels, rows], axis=-1).astype(np.float32)
    return dataclasses.replace(features, targets={LABELS: targets})
