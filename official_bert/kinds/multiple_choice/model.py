"""The model for multiple choice: a score for each choice.

B batch size, S sequence length, N choices
"""

from typing import Any

import keras
from keras import ops

from official_bert.kinds import model
from official_bert.kinds.multiple_choice.spec import MultipleChoiceSpec
from official_bert.modeling import layer_names
from official_bert.modeling.encoder import sequence_inputs


@keras.saving.register_keras_serializable(package="official_bert")
class FoldChoices(keras.layers.Layer):
    """Reshapes token inputs so that each choice is a sequence of the batch: [B, N, S] to [B * N, S]."""

    def call(self, inputs: Any) -> Any:
        return ops.reshape(inputs, (-1, ops.shape(inputs)[-1]))

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor((None, inputs.shape[-1]), dtype=inputs.dtype)


@keras.saving.register_keras_serializable(package="official_bert")
class UnfoldChoices(keras.layers.Layer):
    """Reshapes the scores of all choices to one row per example: [B * N, 1] to [B, N].

    Args:
        num_choices: N.
        kwargs: Arguments of keras.layers.Layer.
    """

    def __init__(self, num_choices: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_choices = num_choices

    def call(self, scores: Any) -> Any:
        return ops.reshape(scores, (-1, self.num_choices))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_choices": self.num_choices}


def build_multiple_choice_model(
    encoder: keras.Model, num_choices: int, dropout_rate: float = model.DROPOUT_RATE, seed: int | None = None
) -> keras.Model:
    """Returns a model that scores the choices of an example: inputs [B, N, S] to logits [B, N].

    Each choice is a sequence of its own. A dense layer, shared by all choices, computes the score from the pooled
    output.

    Args:
        encoder: An encoder with the output `pooled_output`.
        num_choices: N.
        dropout_rate: Dropout rate of the pooled output in training.
        seed: Seed of the initial weights of the dense layer. None draws a random seed.
    """
    shape = (num_choices, None)
    inputs = {name: keras.Input(shape, dtype="int32", name=name) for name in sequence_inputs()}  # [B, N, S]
    pooled = model.add_dropout(encoder, model.get_pooled(encoder), dropout_rate)
    choice_encoder = keras.Model(encoder.input, pooled, name=layer_names.CHOICE_ENCODER)
    folded = {name: FoldChoices(name=f"fold_{name}", dtype="int32")(each) for name, each in inputs.items()}
    scores = model.add_dense(encoder, choice_encoder(folded), 1, layer_names.MULTIPLE_CHOICE, seed)  # [B * N, 1]
    logits = UnfoldChoices(num_choices, name="unfold_choices", dtype="float32")(model.add_float32(scores))
    return keras.Model(inputs, logits, name="multiple_choice_model")


class Model(model.KindModel[MultipleChoiceSpec]):
    """The Keras head, loss and metrics of multiple choice."""

    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        return build_multiple_choice_model(encoder, self.spec.num_choices, seed=seed)
