"""The embeddings of words, segments and positions (paper, figure 2).

B batch size, S sequence length, H hidden size, V vocabulary size, T segment types, L maximum sequence length
"""

from typing import Any

import keras
from keras import ops

from official_bert.modeling import layer_names
from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import Dropout
from official_bert.modeling.initialization import layer_norm, seeded_normal


@keras.saving.register_keras_serializable(package="official_bert")
class WordEmbedding(keras.layers.Layer):
    """The table of word embeddings, which is also the output matrix of masked language modeling.

    Converts ids, int32 [B, S], to vectors, [B, S, H]. With reverse=True, converts vectors, [..., H], to the scores of
    all word pieces, [..., V].

    Args:
        vocab_size: Number of rows, V.
        hidden_size: Size of a row, H.
        embeddings_initializer: Initializer of the table.
        kwargs: Arguments of keras.layers.Layer.
    """

    def __init__(self, vocab_size: int, hidden_size: int, embeddings_initializer: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape: Any) -> None:
        self.embeddings = self.add_weight(
            shape=(self.vocab_size, self.hidden_size), initializer=self.embeddings_initializer, name="embeddings"
        )

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        if reverse:
            return ops.matmul(inputs, ops.transpose(self.embeddings))  # [..., V]
        return ops.take(self.embeddings, inputs, axis=0)  # [B, S, H]

    def compute_output_spec(self, inputs: Any, reverse: bool = False) -> Any:
        shape = (*inputs.shape[:-1], self.vocab_size) if reverse else (*inputs.shape, self.hidden_size)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }


@keras.saving.register_keras_serializable(package="official_bert")
class TokenTypeEmbedding(keras.layers.Layer):
    """The table of segment embeddings: converts segment ids, int32 [B, S], to vectors, [B, S, H].

    It multiplies one-hot vectors with the table, because for few rows this is faster than a lookup, especially its
    gradient.

    Args:
        type_vocab_size: Number of rows, T.
        hidden_size: Size of a row, H.
        embeddings_initializer: Initializer of the table.
        kwargs: Arguments of keras.layers.Layer.
    """

    def __init__(
        self, type_vocab_size: int, hidden_size: int, embeddings_initializer: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.type_vocab_size, self.hidden_size = type_vocab_size, hidden_size
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, input_shape: Any) -> None:
        self.embeddings = self.add_weight(
            shape=(self.type_vocab_size, self.hidden_size), initializer=self.embeddings_initializer, name="embeddings"
        )

    def call(self, segment_ids: Any) -> Any:
        one_hot = ops.one_hot(segment_ids, self.type_vocab_size, dtype=self.compute_dtype)  # [B, S, T]
        return ops.matmul(one_hot, self.embeddings)  # [B, S, H]

    def compute_output_shape(self, segment_ids_shape: Any) -> Any:
        return *segment_ids_shape, self.hidden_size

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "type_vocab_size": self.type_vocab_size,
            "hidden_size": self.hidden_size,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }


@keras.saving.register_keras_serializable(package="official_bert")
class PositionEmbedding(keras.layers.Layer):
    """Adds a learned vector to each position: [B, S, H] to [B, S, H].

    Positions count from 0, unless the second input position_ids, int32 [B, S], is given. It must be less than L.

    Args:
        max_position_embeddings: Maximum length of a sequence, L.
        embeddings_initializer: Initializer of the table.
        kwargs: Arguments of keras.layers.Layer.

    Raises:
        ValueError: If the sequence is longer than L and position_ids is not given.
    """

    def __init__(self, max_position_embeddings: int, embeddings_initializer: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_position_embeddings = max_position_embeddings
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, inputs_shape: Any, position_ids_shape: Any = None) -> None:
        shape = (self.max_position_embeddings, inputs_shape[-1])
        self.embeddings = self.add_weight(shape=shape, initializer=self.embeddings_initializer, name="embeddings")

    def call(self, inputs: Any, position_ids: Any = None) -> Any:
        if position_ids is not None:
            return inputs + ops.take(self.embeddings, position_ids, axis=0)  # [B, S, H]
        length = ops.shape(inputs)[1]
        if isinstance(length, int) and length > self.max_position_embeddings:
            raise ValueError(
                f"the sequence has {length} positions, but the model has {self.max_position_embeddings}; shorten it or "
                "build the model with a larger max_position_embeddings"
            )
        return inputs + self.embeddings[:length]  # [B, S, H]

    def compute_output_shape(self, inputs_shape: Any, position_ids_shape: Any = None) -> Any:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "max_position_embeddings": self.max_position_embeddings,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }


def embed(
    input_ids: Any, segment_ids: Any, config: BertConfig, seed: int | None, dtype: Any, position_ids: Any = None
) -> Any:
    """Applies the embedding layers: the sum of word, segment and position embeddings, layer normalization and dropout.

    Args:
        input_ids: int32 [B, S].
        segment_ids: int32 [B, S].
        config: Sizes of the model.
        seed: Seed of the initial weights. None draws a random seed.
        dtype: Keras dtype policy of the layers.
        position_ids: int32 [B, S]. None counts positions from 0.

    Returns:
        The input of the first encoder block, [B, S, H].
    """

    def table(layer: type[keras.Layer], name: str, *sizes: int) -> keras.Layer:
        return layer(*sizes, seeded_normal(config.initializer_range, seed, name), name=name, dtype=dtype)

    width = config.hidden_size
    words = table(WordEmbedding, layer_names.WORD_EMBEDDINGS, config.vocab_size, width)
    words.bert_config = config  # for modeling.fast.verification
    x = words(input_ids)
    types = table(TokenTypeEmbedding, layer_names.TOKEN_TYPE_EMBEDDINGS, config.type_vocab_size, width)(segment_ids)
    x = keras.layers.Add(name="embeddings_sum", dtype=dtype)([x, types])
    positions = table(PositionEmbedding, layer_names.POSITION_EMBEDDINGS, config.max_position_embeddings)
    x = positions(x, position_ids)
    x = layer_norm(layer_names.EMBEDDINGS_LAYER_NORM, config, dtype)(x)
    return Dropout(config.hidden_dropout_prob, name=layer_names.EMBEDDINGS_DROPOUT, dtype=dtype)(x)
