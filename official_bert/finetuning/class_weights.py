"""How much the rows of each class weigh in the loss."""

import numpy as np

from official_bert.errors import UserError
from official_bert.tasks.heads.features import LABELS, Array, Features
from official_bert.tasks.heads.head import Head
from official_bert.tasks.heads.python_data import BALANCED, balanced_weights


def row_weights(class_weights: list[str], head: Head, features: Features) -> Array | None:
    """Returns how much each row weighs in the loss, float32 [R]; None where all weigh 1.

    Args:
        class_weights: a weight for each class, in the order of the labels; or "balanced" alone: each class weighs as
            much as any other altogether, and a row 1 on average.
        head: what is learned.
        features: the rows, with targets.

    Raises:
        UserError: they are not such weights, or an example is not of one class.
    """
    if not class_weights:
        return None
    if not head.has_one_class or not features.targets:
        raise UserError(f"--class_weights is for classification with labels; the task is {head.kind}")
    classes = len(head.labels or ())
    labels = features.targets[LABELS]
    if class_weights == [BALANCED]:
        weights = balanced_weights(labels, classes)
    else:
        try:
            weights = np.array([float(weight) for weight in class_weights])
        except ValueError:
            weights = np.empty(0)
        if len(weights) != classes or not ((weights >= 0) & (weights < np.inf)).all():
            raise UserError(
                f"--class_weights is {','.join(class_weights)}; expected {BALANCED}, or {classes} numbers, one for "
                f"each of {', '.join(head.labels or ())}"
            )
    return np.asarray(weights[labels], np.float32)
