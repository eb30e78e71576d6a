"""A Keras layer that converts strings to the inputs of the encoder in a TensorFlow graph.

B texts, S sequence length
"""

import functools
from collections.abc import Mapping
from typing import Any, Self

import keras
import tensorflow as tf

from official_bert.kinds.graph_model import TextGraph
from official_bert.tokenization.casing import Casing, resolve_casing, restore_casing
from official_bert.tokenization.exact import FullTokenizer, parse_vocab


@keras.saving.register_keras_serializable(package="official_bert")
class Preprocessor(keras.layers.Layer):
    """Converts texts or text pairs to input_ids, input_mask and segment_ids, exactly like the Python tokenizer.

    You can call it on a batch of strings, or use it in `dataset.map`.

    Args:
        vocab: Contents of a vocab.txt.
        do_lower_case: Whether the vocabulary is uncased. None detects it from capital letters in the vocabulary. A
            Casing object is used without a check against the vocabulary.
        max_seq_length: Maximum number of tokens in a sequence. Longer texts are truncated as in fine-tuning.
        strip_accents: Whether to remove accents. Defaults to the value of do_lower_case.
        layer_settings: Arguments of keras.layers.Layer.

    Call arguments:
        inputs: Strings [B], a tuple of two such tensors, or a dict with the keys `text` and `text_pair`.

    Returns:
        A dict of int32 tensors, [B, S].
    """

    def __init__(
        self,
        vocab: str,
        do_lower_case: bool | Casing | None = None,
        max_seq_length: int = 128,
        strip_accents: bool | None = None,
        **layer_settings: Any,
    ) -> None:
        super().__init__(**{"trainable": False, **layer_settings})
        self.built = True  # It has no weights, and Keras' quantize rejects layers that are not built.
        self._settings: dict[str, Any] = {"vocab": vocab, "max_seq_length": max_seq_length}
        self._convert_input_args = False  # Keras would convert strings to numbers.
        self._allow_non_tensor_positional_args = True
        tokens = parse_vocab(vocab)
        casing = resolve_casing(tokens, do_lower_case, strip_accents)
        self._settings |= casing.settings
        tokenizer = FullTokenizer.from_vocab(tokens, **casing._asdict())
        # The tables take seconds, and Keras reads model.preprocessor whenever it saves a model.
        self._make_graph = functools.partial(TextGraph, keras.Model(), tokenizer, max_seq_length)
        self._graph: TextGraph | None = None

    def call(self, inputs: Any) -> dict[str, Any]:
        if self._graph is None:
            with tf.init_scope():  # Inside `dataset.map`, the tables would belong to the graph of that map.
                self._graph = self._make_graph()
        names = ("text", "text_pair")
        if not isinstance(inputs, Mapping):
            inputs = dict(zip(names, inputs if isinstance(inputs, tuple) else (inputs,), strict=False))
        texts = {name: tf.convert_to_tensor(inputs[name], tf.string) for name in names if name in inputs}
        return self._graph.read_texts(texts).features

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._settings}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**restore_casing(config))
