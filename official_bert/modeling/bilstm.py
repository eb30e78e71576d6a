"""A two-layer BiLSTM between the encoder and a task's head (paper, section 5.3 and table 5).

B batch size, S sequence length, H hidden size, U units per direction
"""

import zlib
from typing import Any

import keras
from keras import ops

from official_bert.modeling import layer_names
from official_bert.modeling.dropout import Dropout
from official_bert.modeling.fast.model_parts import find_blocks
from official_bert.modeling.head_input import BILSTM
from official_bert.modeling.heads import FirstPosition, LastToken

_LAYERS = 2


@keras.saving.register_keras_serializable(package="official_bert")
class BiLSTM(keras.layers.Layer):
    """A bidirectional LSTM layer that skips padding.

    Takes [x, input_mask]: [B, S, H] and int32 [B, S]. Returns [B, S, 2 U], with zeros at padding. It passes on no Keras
    mask, because losses and scores use their own weights.

    Args:
        units: Number of units per direction, U.
        seed: Seed of the initial weights. None draws a random seed.
        kwargs: Arguments of keras.layers.Layer.
    """

    def __init__(self, units: int, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.seed = units, seed
        self.bidirectional = keras.layers.Bidirectional(
            self._make_lstm("forward", False),
            backward_layer=self._make_lstm("backward", True),
            name="bidirectional",
            dtype=self.dtype_policy,
        )

    def _make_lstm(self, name: str, backwards: bool) -> keras.Layer:
        def derive_seed(what: str) -> int | None:
            return None if self.seed is None else zlib.crc32(f"{self.seed}/{self.name}/{name}/{what}".encode())

        return keras.layers.LSTM(
            self.units,
            return_sequences=True,
            go_backwards=backwards,
            kernel_initializer=keras.initializers.GlorotUniform(derive_seed("kernel")),
            recurrent_initializer=keras.initializers.Orthogonal(seed=derive_seed("recurrent")),
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Any) -> None:
        self.bidirectional.build(input_shape[0])

    def call(self, inputs: Any) -> Any:
        x, input_mask = inputs
        is_token = ops.greater(input_mask, 0)
        x = self.bidirectional(x, mask=is_token)
        return x * ops.cast(is_token, x.dtype)[..., None]

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor((*inputs[0].shape[:-1], 2 * self.units), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "seed": self.seed}


def extend_encoder(encoder: keras.Model, head: str, units: int, seed: int | None = None) -> keras.Model:
    """Returns a model of the encoder followed by a two-layer BiLSTM, with the same inputs and output names.

    sequence_output becomes [B, S, 2 U]. pooled_output, [B, 4 U], concatenates the BiLSTM's outputs at the last token
    and at [CLS], where the forward and the backward direction end.

    Args:
        encoder: An encoder from `build_encoder`. Unless `head` is BILSTM, it is frozen and its dropout is turned off,
            in place.
        head: BILSTM to fine-tune the encoder too, or one of head_input.FEATURES to use these outputs of the frozen
            encoder.
        units: Number of units per direction, U.
        seed: Seed of the initial weights of the BiLSTM. None draws a random seed.
    """
    x = encoder.output["sequence_output"] if head == BILSTM else _frozen_features(encoder, head)
    policy = encoder.get_layer(layer_names.WORD_EMBEDDINGS).dtype_policy
    input_mask = encoder.input["input_mask"]
    for number in range(_LAYERS):
        x = BiLSTM(units, seed, name=f"bilstm_{number}", dtype=policy)([x, input_mask])  # [B, S, 2 U]
    ends = [
        LastToken(name="bilstm_last_token", dtype=policy)([x, input_mask]),
        FirstPosition(name="bilstm_first_position", dtype=policy)(x),
    ]
    pooled = keras.layers.Concatenate(name="bilstm_ends", dtype=policy)(ends)
    return keras.Model(encoder.input, {"sequence_output": x, "pooled_output": pooled}, name="encoder_with_bilstm")


def _frozen_features(encoder: keras.Model, head: str) -> Any:
    """Freezes the encoder, and returns the vectors of the tokens that `head` names, [B, S, H] or [B, S, 4 H]."""
    for layer in encoder.layers:
        layer.trainable = False
        if isinstance(layer, Dropout):
            layer.rate = 0.0
    embeddings = encoder.get_layer(layer_names.EMBEDDINGS_DROPOUT).output
    blocks = [block.encoded for block in find_blocks(encoder)]
    if head == "embeddings":
        return embeddings
    if head == "last_hidden":
        return blocks[-1]
    if head == "second_to_last_hidden":
        return [embeddings, *blocks][-2]
    some = blocks if head == "sum_all" else blocks[-4:]
    if len(some) == 1:
        return some[0]
    merge = keras.layers.Concatenate if head == "concat_last_four" else keras.layers.Add
    return merge(name="features", dtype=encoder.get_layer(layer_names.WORD_EMBEDDINGS).dtype_policy)(some)
