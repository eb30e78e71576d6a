"""The texts' signature of a SavedModel that has been loaded.

B texts
"""

from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.inference import exports
from official_bert.utils.tensorflow_import import import_tensorflow


class SavedModel:
    """Loads the SavedModel of a folder.

    Attributes:
        makes_batches: whether it cuts texts into batches itself.
    """

    makes_batches = False

    def __init__(self, folder: str) -> None:
        import_tensorflow()
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  (the operations of the exported tokenizer)

        self._tf = tf
        self._answer = exports.load_saved_model(folder).signatures[exports.DEFAULT_SIGNATURE]

    def answers(self, texts: Mapping[str, Sequence[Any]]) -> exports.Outputs:
        """Returns the answers to texts, a column for each input: arrays [B, ...] by name, strings as bytes.

        Raises:
            RefusedTextsError: it cannot answer one of them.
        """
        try:
            tensors = {name: self._tf.constant(column) for name, column in texts.items()}
            return {name: value.numpy() for name, value in self._answer(**tensors).items()}
        # The last two: of texts' shapes.
        except (self._tf.errors.InvalidArgumentError, ValueError, TypeError) as error:
            raise exports.RefusedTextsError(str(error).strip().splitlines()[0]) from error
