"""The layers on the encoder's output in pre-training: the pooler, and the masked-LM and next-sentence heads.

B batch size, S sequence length, P masked positions, H hidden size, V vocabulary size
"""

from typing import Any

import keras
from keras import ops

from official_bert.modeling import layer_names
from official_bert.modeling.config import BertConfig
from official_bert.modeling.initialization import activation, dense, layer_norm


@keras.saving.register_keras_serializable(package="official_bert")
class FirstPosition(keras.layers.Layer):
    """Selects the vector of [CLS]: [B, S, H] to [B, H]."""

    def call(self, sequence: Any) -> Any:
        return sequence[:, 0]

    def compute_output_shape(self, sequence_shape: Any) -> Any:
        batch, _, width = sequence_shape
        return batch, width


@keras.saving.register_keras_serializable(package="official_bert")
class LastToken(keras.layers.Layer):
    """Selects the vector of the last token before the padding.

    Takes [sequence, input_mask]: [B, S, H] and int32 [B, S]. Returns [B, H].
    """

    def call(self, inputs: Any) -> Any:
        sequence, input_mask = inputs
        last = ops.maximum(ops.sum(input_mask, axis=1) - 1, 0)  # [B]
        return ops.take_along_axis(sequence, last[:, None, None], axis=1)[:, 0]


@keras.saving.register_keras_serializable(package="official_bert")
class GatherPositions(keras.layers.Layer):
    """Selects the vectors at given positions.

    Takes [sequence, positions]: [B, S, H] and int32 [B, P]. Returns [B, P, H].
    """

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
    """Adds a bias for each class to scores, [..., V], and returns float32 logits of the same shape."""

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
    """Applies the pooler: a dense layer with tanh on the vector of [CLS].

    In models with causal attention, it reads the vector of the last token, which is the only one that attends to the
    whole text.

    Args:
        sequence_output: Output of the encoder, [B, S, H].
        attention_ids: The input_mask or record_ids, int32 [B, S].
        config: Sizes of the model.
        seed: Seed of the initial weights. None draws a random seed.
        dtype: Keras dtype policy of the layers.
        record_starts: For packed rows, the position of each record's [CLS], int32 [B, R].

    Returns:
        The pooled output, [B, H], or [B, R, H] for packed rows.
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
    """Applies the masked-LM head, and returns the logits of all word pieces at the masked positions.

    The layers are a dense layer with the model's activation, layer normalization, the transposed word embeddings and a
    bias per word piece (paper, appendix A.3).

    Args:
        sequence_output: Output of the encoder, [B, S, H].
        positions: The masked positions, int32 [B, P].
        word_embedding: The encoder's WordEmbedding, whose table is shared.
        config: Sizes of the model.
        seed: Seed of the initial weights. None draws a random seed.
        dtype: Keras dtype policy of the layers.

    Returns:
        float32 [B, P, V].
    """
    x = GatherPositions(name="masked_lm_gather", dtype=dtype)([sequence_output, positions])
    x = dense(config.hidden_size, "masked_lm_transform", config, seed, dtype, activation(config))(x)
    x = layer_norm("masked_lm_layer_norm", config, dtype)(x)
    return OutputBias(name="masked_lm_output", dtype=dtype)(word_embedding(x, reverse=True))


def next_sentence_logits(pooled_output: Any, config: BertConfig, seed: int | None, dtype: Any) -> Any:
    """Applies the next-sentence head, and returns the logits of "b follows a" (0) and "b is random" (1).

    Args:
        pooled_output: [B, H], or [B, R, H] for packed rows.
        config: Sizes of the model.
        seed: Seed of the initial weights. None draws a random seed.
        dtype: Keras dtype policy of the layer.

    Returns:
        float32 [..., 2].
    """
    scores = dense(2, layer_names.NEXT_SENTENCE, config, seed, dtype)(pooled_output)
    return keras.layers.Activation("linear", dtype="float32", name="next_sentence_logits")(scores)
