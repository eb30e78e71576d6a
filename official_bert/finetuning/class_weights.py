"""How much the rows of each class weigh in the loss."""

import numpy as np

from official_bert.errors import UserError
from official_bert.modeling import task_models
from official_bert.tasks.task import LABELS, Array, Features, Task

BALANCED = "balanced"


def row_weights(class_weights: list[str], task: Task, features: Features) -> Array | None:
    """Returns how much each row weighs in the loss, float32 [R]; None where all weigh 1.

    Args:
        class_weights: a weight for each class, in the order of the labels; or "balanced" alone: each class weighs as
            much as any other altogether, and a row 1 on average.
        task: what is learned.
        features: the rows, with targets.

    Raises:
        UserError: they are not such weights, or the task has no classes.
    """
    if not class_weights:
        return None
    if task.kind != task_models.CLASSIFICATION or not features.targets:
        raise UserError(f"--class_weights is for classification with labels; {task.name} is {task.kind}")
    classes = len(task.labels or ())
    labels = features.targets[LABELS]
    if class_weights == [BALANCED]:
        counts = np.bincount(labels, minlength=classes)
        weights = len(labels) / (np.maximum(counts, 1) * np.count_nonzero(counts))
    else:
        try:
            weights = np.array([float(weight) for weight in class_weights])
        except ValueError:
            weights = np.empty(0)
        if len(weights) != classes or not (weights >= 0).all():
            raise UserError(
                f"--class_weights is {','.join(class_weights)}; expected {BALANCED}, or {classes} numbers, one for "
                f"each of {', '.join(task.labels or ())}"
            )
    return np.asarray(weights[labels], np.float32)
