"""How much the rows of each class weigh in the loss, or each label where a text may have several."""

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds.features import LABELS, Array, Features
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.python_data import BALANCED, LARGEST, balanced_weights
from official_bert.kinds.spec import KindSpec


def row_weights(class_weights: list[str], head: KindSpec, features: Features) -> Array | None:
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
    labels = features.targets[LABELS]
    if class_weights == [BALANCED]:
        weights = balanced_weights(labels, len(head.labels or ()))
    else:
        weights = _numbers(class_weights, head)
    return np.asarray(weights[labels], np.float32)


def positive_weights(class_weights: list[str], head: MultiLabelSpec, features: Features) -> tuple[float, ...]:
    """Returns how much more each label weighs where a text has it; none for 1.

    Args:
        class_weights: as of `row_weights`; balanced: texts with a label weigh as much as those without.
        head: what is learned.
        features: the rows, with targets.

    Raises:
        UserError: they are not such weights, or no text has a label.
    """
    if not class_weights:
        return ()
    if class_weights != [BALANCED]:
        return tuple(_numbers(class_weights, head).tolist())
    rows = features.targets[LABELS]
    counts = rows.sum(axis=0)
    if absent := [label for label, count in zip(head.labels, counts, strict=True) if not count]:
        raise UserError(
            f"no text to train on has the label {', '.join(absent)}, so that balanced weights have no limit"
        )
    return tuple(((len(rows) - counts) / counts).tolist())


def _numbers(class_weights: list[str], head: KindSpec) -> Array:
    classes = len(head.labels or ())
    try:
        weights = np.array([float(weight) for weight in class_weights])
    except ValueError:
        weights = np.empty(0)
    if len(weights) != classes or not ((weights >= 0) & (weights <= LARGEST)).all():
        raise UserError(
            f"--class_weights is {','.join(class_weights)}; expected {BALANCED}, or {classes} numbers, one for "
            f"each of {', '.join(head.labels or ())}"
        )
    return weights
