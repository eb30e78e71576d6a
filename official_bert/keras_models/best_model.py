"""Implements `metric_for_best_model` of fit: keeps the weights of the epoch with the best validation score."""

from collections.abc import Callable
from typing import Any

import keras

from official_bert.errors import UserError
from official_bert.keras_models.inputs import Inputs
from official_bert.kinds.input_adapters import are_ids
from official_bert.kinds.names import LOWER_IS_BETTER

_LOSS = "loss"


def select_best_model(
    metric: str, predict: Callable[..., Any], inputs: Inputs, data: Any, batch_size: int, epochs: int
) -> keras.callbacks.Callback:
    """Returns the callback for `metric_for_best_model` of fit.

    Args:
        metric: Name of one of the spec's scores, or "loss".
        predict: Function that takes examples and returns their predictions.
        inputs: The converter of the inputs of fit.
        data: The validation data, as `Inputs.read_evaluation` returns them.
        batch_size: Number of validation texts per batch.
        epochs: Number of epochs.

    Raises:
        UserError: If the spec has no score of this name, it is undefined for the data, or they contain no texts.
    """
    valid = (_LOSS, *inputs.spec.score_names)
    if metric not in valid:
        raise UserError(f"metric_for_best_model is {metric!r}; expected one of {', '.join(valid)}")
    if data is None or are_ids(data[0] if isinstance(data, tuple) else data):
        raise UserError("metric_for_best_model needs validation texts; pass validation_data or validation_split")
    examples = inputs.collect_examples(data, batch_size).items
    inputs.spec.check_best_metric(metric, examples)

    def compute_score() -> float:
        return inputs.spec.scores(predict(examples, batch_size, verbose=0), examples)[metric]

    return _BestModel(metric, compute_score, epochs)


class _BestModel(keras.callbacks.EarlyStopping):
    """A callback that adds a validation score to the logs of each epoch, and restores the best epoch's weights."""

    def __init__(self, metric: str, compute_score: Callable[[], float], epochs: int) -> None:
        mode = "min" if metric in LOWER_IS_BETTER else "max"
        super().__init__(f"val_{metric}", patience=epochs, mode=mode, restore_best_weights=True)
        self._compute_score = compute_score

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if f"val_{_LOSS}" in logs:  # The epoch had a validation.
            if self.monitor not in logs:
                logs[self.monitor] = self._compute_score()
            super().on_epoch_end(epoch, logs)
