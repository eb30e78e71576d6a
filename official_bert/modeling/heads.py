"""The heads on the encoder's output: the pooler, masked LM and next sentence.

B batch, S sequence, P predictions, H hidden size, V vocabulary
"""

from typing import Any

import keras
from keras import ops

from official_bert.modeling import layer_names
from official_bert.modeling.config import BertConfig
from official_bert.modeling.initialization import activation, dense, layer_norm


@keras.saving.register_keras_serializable(package="official_bert")
class FirstPosition(keras.layers.Layer):
    """The vector of [CLS]: [B, S, H] to [B, H]."""

    def call(self, sequence: Any) -> Any:
        return sequence[:, 0]


@keras.saving.register_keras_serializable(package="official_bert")
class LastToken(keras.layers.Layer):
    """The vector of the last token: [B, S, H] and the input_mask, [B, S] int32, to [B, H]."""

    def call(self, inputs: Any) -> Any:
        sequence, input_mask = inputs
        last = ops.maximum(ops.sum(input_mask, axis=1) - 1, 0)  # [B]
        return ops.take_along_axis(sequence, last[:, None, None], axis=1)[:, 0]


@keras.saving.register_keras_serializable(package="official_bert")
class GatherPositions(keras.layers.Layer):
    """The vectors at some positions: [B, S, H] and [B, P] int32 to [B, P, H]."""

    def call(self, inputs: Any) -> Any:
        sequence, positions = inputs
        batch, length, width = ops.shape(sequence)
        rows = positions + ops.arange(batch, dtype="int32")[:, None] * length  # [B, P] into [B * S]
        return ops.take(ops.reshape(sequence, (-1, width)), rows, axis=0)  # [B, P, H]

    def compute_output_spec(self, inputs: Any) -> Any:
        sequence, positions = inputs
        return keras.KerasTensor((*positions.shape, sequence.shape[-1]), dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="official_bert")
class OutputBias(keras.layers.Layer):
    """Adds a bias per class and returns float32 logits: [..., V] to [..., V]."""

    def build(self, input_shape: Any) -> None:
        self.bias = self.add_weight(shape=(input_shape[-1],), initializer="zeros", name="bias", autocast=False)

    def call(self, scores: Any) -> Any:
        return ops.cast(scores, "float32") + self.bias

    def compute_output_spec(self, scores: Any) -> Any:
        return keras.KerasTensor(scores.shape, dtype="float32")


def pool(
    sequence_output: Any,
    attention_ids: Any,
    config: BertConfig,
    seed: int | None,
    dtype: Any,
    record_starts: Any = None,
) -> Any:
    """Returns the pooled output, [B, H]: a dense layer with tanh on the vector of [CLS].

    A model that predicts next tokens uses the vector of the last token, which is the only one that attends to the whole
    text. Packed records use the vectors at record_starts, [B, R] int32, and return [B, R, H]. See `encoder_block` for
    the other arguments.
    """
    if record_starts is not None:
        pooled = GatherPositions(name=layer_names.FIRST_POSITION, dtype=dtype)([sequence_output, record_starts])
    elif not config.predicts_masked_tokens:
        pooled = LastToken(name=layer_names.LAST_TOKEN, dtype=dtype)([sequence_output, attention_ids])
    else:
        pooled = FirstPosition(name=layer_names.FIRST_POSITION, dtype=dtype)(sequence_output)
    return dense(config.hidden_size, layer_names.POOLER, config, seed, dtype, activation="tanh")(pooled)


def masked_lm_logits(
    sequence_output: Any, positions: Any, word_embedding: Any, config: BertConfig, seed: int | None, dtype: Any
) -> Any:
    """Returns the scores of all word pieces at the masked positions, [B, P, V] float32 (paper, appendix A.3).

    The layers are a dense layer with the model's activation, layer normalization, the transposed word embeddings and a
    bias per word piece.

    Args:
        sequence_output: Output of the encoder, [B, S, H].
        positions: The masked positions, [B, P] int32.
        word_embedding: The encoder's WordEmbedding, whose table is shared.
        config: Sizes of the model.
        seed: Seed of the initial weights. None draws a random seed.
        dtype: Dtype policy of the layers.
    """
    x = GatherPositions(name="masked_lm_gather", dtype=dtype)([sequence_output, positions])
    x = dense(config.hidden_size, "masked_lm_transform", config, seed, dtype, activation(config))(x)
    x = layer_norm("masked_lm_layer_norm", config, dtype)(x)
    return OutputBias(name="masked_lm_output", dtype=dtype)(word_embedding(x, reverse=True))


def next_sentence_logits(pooled_output: Any, config: BertConfig, seed: int | None, dtype: Any) -> Any:
    """Returns the scores of "b follows a" (0) and "b is random" (1) from the pooled output: [..., 2] float32."""
    scores = dense(2, layer_names.NEXT_SENTENCE, config, seed, dtype)(pooled_output)
    return keras.layers.Activation("linear", dtype="float32", name="next_sentence_logits")(scores)
