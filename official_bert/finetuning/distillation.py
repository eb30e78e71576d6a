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
from official_bert.errors import UserError
from official_bert.finetuning.replicas import Predictor
from official_bert.modeling import task_models
from official_bert.tasks import sequences
from official_bert.tasks.task import EXAMPLE, LABELS, Array, Features, Task
from official_bert.tokenization.fast import FastTokenizer

_KINDS = (task_models.CLASSIFICATION, task_models.MULTI_LABEL, task_models.REGRESSION)


@keras.saving.register_keras_serializable(package="official_bert")
class DistillationLoss(keras.losses.Loss):
    """The teacher's loss and the labels', mixed.

    y_true is [B, 2 C], what the labels say (as probabilities) and the teacher's logits side by side; y_pred is [B, C],
    logits. The teacher's loss is the cross-entropy of both logits' probabilities at a temperature T, times T squared,
    so that its gradient keeps its size. For regression C is 1, y_pred is [B], and both losses are squared errors.

    Args:
        kind: classification, multi_label or regression.
        temperature: T.
        teacher_weight: the share of the teacher's loss, from 0 to 1.
    """

    def __init__(self, kind: str, temperature: float, teacher_weight: float, name: str = "distillation") -> None:
        super().__init__(name=name)
        self.kind, self.temperature, self.teacher_weight = kind, temperature, teacher_weight

    def call(self, y_true: Any, y_pred: Any) -> Any:
        labels, teacher = ops.split(y_true, 2, axis=-1)
        t, share = self.temperature, self.teacher_weight
        if self.kind == task_models.REGRESSION:
            value = ops.reshape(y_pred, (-1,))
            return share * ops.square(value - teacher[:, 0]) + (1 - share) * ops.square(value - labels[:, 0])
        entropy, activation = keras.losses.categorical_crossentropy, ops.softmax
        if self.kind == task_models.MULTI_LABEL:
            entropy, activation = keras.losses.binary_crossentropy, ops.sigmoid
        soft = t * t * entropy(activation(teacher / t), y_pred / t, from_logits=True)  # [B]
        return share * soft + (1 - share) * entropy(labels, y_pred, from_logits=True)

    def get_config(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "temperature": self.temperature,
            "teacher_weight": self.teacher_weight,
            "name": self.name,
        }


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
    if task.kind not in _KINDS:
        raise UserError(f"--teacher is for {', '.join(_KINDS)}; {task.name} is {task.kind}")
    with strategy.scope() if strategy else contextlib.nullcontext():
        teacher = finetuned.load(folder)
    expected = task.task_spec(0)
    for key in ("kind", "labels"):
        if teacher.task_spec[key] != expected[key]:
            raise UserError(f"the teacher in {folder} has {key} {teacher.task_spec[key]}; the task has {expected[key]}")
    if teacher_weight < 1.0 and not features.targets:
        raise UserError("the examples have no labels; pass --teacher_weight=1 to learn from the teacher alone")
    length = teacher.task_spec["max_seq_length"]
    read = task.featurize(examples, FastTokenizer.of(teacher.tokenizer), length)
    outputs = Predictor(teacher.model, strategy, length).predict(read, batch_size)
    logits = sequences.pooled(outputs, read, len(examples))  # [E, C] or [E]
    rows = logits.reshape(len(examples), -1)[features.details[EXAMPLE]]
    targets = np.concatenate([_probabilities(task, features, rows.shape), rows], axis=-1).astype(np.float32)
    return dataclasses.replace(features, targets={LABELS: targets})


def _probabilities(task: Task, features: Features, shape: tuple[int, ...]) -> Array:
    """What the labels say, as probabilities or values, [R, C]; zeros where there are none."""
    if not features.targets:
        return np.zeros(shape)
    labels = features.targets[LABELS]
    if task.kind == task_models.CLASSIFICATION:
        return np.asarray(np.eye(shape[1])[labels])
    return labels.reshape(shape)
