"""From strings to the network's inputs, as a Keras layer of TensorFlow operations.

B texts, S sequence
"""

from collections.abc import Mapping
from typing import Any, Self

import keras
import tensorflow as tf

from official_bert.kinds.graph_model import TextGraph
from official_bert.tokenization.casing import Casing, make_casing, resolve_casing
from official_bert.tokenization.exact import FullTokenizer, parse_vocab


@keras.saving.register_keras_serializable(package="official_bert")
class Preprocessor(keras.layers.Layer):
    """Turns texts or pairs of texts into input_ids, input_mask and segment_ids, exactly as the tokenizer does.

    It may be called on a batch of strings, or used in `dataset.map`.

    Args:
        vocab: the text of a vocab.txt.
        do_lower_case: Whether the vocabulary is uncased. None detects it from the capital letters. A Casing is taken
            without comparing it with the vocabulary.
        max_seq_length: the longest sequence in tokens; longer texts are cut as in fine-tuning.
        pad_to_max: whether every batch has max_seq_length tokens, as TPUs want it, rather than those of its longest.
        strip_accents: whether texts lose their accents; None for lower-cased ones.

    Call arguments:
        inputs: strings [B], or a tuple of two of those, or a dict with `text` and `text_pair`.

    Returns:
        A dict of int32 [B, S].
    """

    def __init__(
        self,
        vocab: str,
        do_lower_case: bool | Casing | None = None,
        max_seq_length: int = 128,
        pad_to_max: bool = False,
        strip_accents: bool | None = None,
        **layer_settings: Any,
    ) -> None:
        super().__init__(**{"trainable": False, **layer_settings})
        self.built = True  # it has no weights; Keras' quantize takes no layer that is not
        self._settings: dict[str, Any] = {
            "vocab": vocab,
            "max_seq_length": max_seq_length,
            "pad_to_max": pad_to_max,
        }
        self._convert_input_args = False  # Keras would take strings for numbers
        self._allow_non_tensor_positional_args = True
        tokens = parse_vocab(vocab)
        casing = resolve_casing(tokens, do_lower_case, strip_accents)
        self._settings |= casing.settings
        tokenizer = FullTokenizer.from_vocab(tokens, **casing._asdict())
        task_spec = {"max_seq_length": max_seq_length}
        with tf.init_scope():  # made within `dataset.map`, the tables would belong to the graph of that map alone
            self._single = TextGraph(keras.Model(), tokenizer, {**task_spec, "pair": False})
            self._pair = TextGraph(keras.Model(), tokenizer, {**task_spec, "pair": True})

    def call(self, inputs: Any) -> dict[str, Any]:
        return self.ids_and_cuts(inputs)[0]

    def ids_and_cuts(self, inputs: Any) -> tuple[dict[str, Any], Any]:
        """Returns what the layer does, and which texts or pairs were cut, bool [B]."""
        if isinstance(inputs, Mapping):
            inputs = (inputs["text"], inputs["text_pair"]) if "text_pair" in inputs else inputs["text"]
        if isinstance(inputs, tuple):
            first, second = (tf.convert_to_tensor(each, tf.string) for each in inputs)
            rows = self._pair.read_texts({"text": first, "text_pair": second})
        else:
            rows = self._single.read_texts({"text": tf.convert_to_tensor(inputs, tf.string)})
        features = rows.features
        if self._settings["pad_to_max"]:
            length = self._settings["max_seq_length"]
            features = {name: _padded(values, length) for name, values in features.items()}
        return features, rows.is_truncated

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._settings}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        casing = make_casing(config["do_lower_case"], config.get("strip_accents"))
        return cls(**{**config, "do_lower_case": casing, "strip_accents": None})


def _padded(values: Any, length: int) -> Any:
    padded = tf.pad(values, [[0, 0], [0, length - tf.shape(values)[1]]])
    return tf.ensure_shape(padded, [None, length])
