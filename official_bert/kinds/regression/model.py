"""The model for regression: a dense layer computes a number from the pooled output.

B batch size
"""

from typing import Any

import keras
from keras import ops

from official_bert.kinds import model
from official_bert.kinds.regression.spec import RegressionSpec

# Names of Keras' losses and metrics.
_ERRORS = ("MeanAbsolutePercentageError", "MeanSquaredLogarithmicError", "Poisson")


@keras.saving.register_keras_serializable(package="official_bert")
class WithoutAxis(keras.layers.Layer):
    """Removes the last axis, which has size 1: [..., 1] to [...]."""

    def call(self, inputs: Any) -> Any:
        return inputs[..., 0]


@keras.saving.register_keras_serializable(package="official_bert")
class SquaredError(keras.losses.Loss):
    """The squared error of each example, [B].

    Unlike keras.losses.MeanSquaredError, it takes outputs of shape [B] and applies sample weights before averaging.
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.square(y_pred - keras.ops.cast(y_true, y_pred.dtype))


@keras.saving.register_keras_serializable(package="official_bert")
class AbsoluteError(keras.metrics.Mean):
    """The mean absolute error over all examples.

    Keras' own metric would average the means of the batches, whatever their sizes.
    """

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        errors = keras.ops.abs(y_pred - keras.ops.cast(y_true, y_pred.dtype))
        super().update_state(errors, sample_weight)


def build_regressor(
    encoder: keras.Model, dropout_rate: float = model.DROPOUT_RATE, seed: int | None = None, name: str | None = None
) -> keras.Model:
    """Returns a regression model of texts or text pairs with one output, [B].

    Args:
        encoder: An encoder with the output `pooled_output`.
        dropout_rate: Dropout rate of the pooled output in training.
        seed: Seed of the initial weights of the dense layer. None draws a random seed.
        name: Name of the model and prefix of the names of its new layers, for several heads on one encoder in one Keras
            model. Defaults to None: "regressor", and no prefix.
    """
    pooled = model.get_pooled(encoder)
    logits = model.add_head(encoder, pooled, 1, "sequence_classifier", dropout_rate, seed, name)
    value = WithoutAxis(name=f"{name}_value" if name else "value", dtype="float32")(logits)
    return keras.Model(encoder.input, value, name=name or "regressor")


class Model(model.TextKindModel[RegressionSpec]):
    """The Keras head, loss and metrics of regression."""

    keras_losses = (*model.ERROR_LOSSES, *_ERRORS)
    keras_metrics = (*model.ERROR_METRICS, *_ERRORS, "R2Score")

    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        return build_regressor(encoder, seed=seed)

    def loss(self) -> keras.losses.Loss:
        return SquaredError()

    def metrics(self) -> Any:
        return [AbsoluteError(name="mean_absolute_error")]

    def soft_loss(self, targets: Any, logits: Any) -> Any:
        return ops.square(logits[:, 0] - targets[:, 0])

    def soft_answers(self, logits: Any) -> Any:
        return logits
