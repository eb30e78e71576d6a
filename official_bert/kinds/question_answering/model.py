"""The model for question answering: logits of each position as the start and the end of the answer.

B batch size, S sequence length
"""

from typing import Any

import keras
from keras import ops

from official_bert.kinds import model
from official_bert.kinds.question_answering.questions import END_LOGITS, OUTPUTS, START_LOGITS
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec

_PADDING = -1e9  # the logit of a position without a token


@keras.saving.register_keras_serializable(package="official_bert")
class SpanLogits(keras.layers.Layer):
    """Splits the output of the dense layer, [B, S, 2], into start_logits and end_logits, float32 [B, S].

    The second input is input_mask, int32 [B, S]. The logits of padding become -1e9, so that the length of the padding
    has no effect. The original does not mask padding.
    """

    def call(self, inputs: Any) -> Any:
        scores, input_mask = inputs
        scores = ops.where(input_mask[..., None] > 0, ops.cast(scores, "float32"), _PADDING)  # [B, S, 2]
        return {START_LOGITS: scores[..., 0], END_LOGITS: scores[..., 1]}


def build_span_predictor(encoder: keras.Model, seed: int | None = None) -> keras.Model:
    """Returns a question-answering model with the outputs start_logits and end_logits, each [B, S].

    Like the original, it has no dropout before the head.

    Args:
        encoder: An encoder.
        seed: Seed of the initial weights of the dense layer. None draws a random seed.
    """
    scores = model.add_dense(encoder, encoder.output["sequence_output"], 2, "question_answering", seed)
    logits = SpanLogits(name="span_logits", dtype="float32")([scores, encoder.input["input_mask"]])
    return keras.Model(encoder.input, logits, name="span_predictor")


class Model(model.KindModel[QuestionAnsweringSpec]):
    """The Keras head, losses and metrics of question answering."""

    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        return build_span_predictor(encoder, seed=seed)

    def loss(self) -> dict[str, keras.losses.Loss]:
        return {name: super(Model, self).loss() for name in OUTPUTS}

    def metrics(self) -> Any:
        return {name: super(Model, self).metrics() for name in OUTPUTS}
