"""The SavedModel backend: answers texts in TensorFlow with an exported SavedModel, or with one of another tool.

B texts
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the operations of exported models)

from official_bert.errors import UserError, shorten_error
from official_bert.inference import exports
from official_bert.inference.exports import Columns
from official_bert.inference.predictor import (
    Predictor,
    PreprocessedTexts,
    Row,
    Signature,
    Tensor,
    bound_tokens,
    count_row_bytes,
    split_texts,
)
from official_bert.kinds.features import batches_by_length
from official_bert.kinds.names import DEFAULT_SIGNATURE, TOKENIZE_SIGNATURE
from official_bert.utils import files

_FINGERPRINT_FILE = "fingerprint.pb"


class SavedModelPredictor(Predictor):
    """A predictor for one version of a SavedModel, which takes texts and returns answers by itself.

    Args:
        folder: The folder that contains saved_model.pb.

    Raises:
        UserError: If the SavedModel cannot be loaded.
    """

    def __init__(self, folder: str) -> None:
        try:
            self._loaded = load_saved_model(folder)  # Keeps the variables alive.
        except UserError:
            raise
        except Exception as error:  # TensorFlow raises many types for incomplete or damaged files
            raise UserError(f"{folder} cannot be loaded: {error}") from error
        self._functions = dict(self._loaded.signatures)
        self.signatures = {name: _read_signature(function) for name, function in sorted(self._functions.items())}
        if not self.signatures:
            raise UserError(f"{folder} has no signatures; make the SavedModel with official-bert export")
        self.metadata = exports.read_metadata(folder)
        tokenize = self.signatures.get(TOKENIZE_SIGNATURE)
        if tokenize and "text_index" in tokenize.outputs:  # It reads long texts in windows.
            self.quick_bytes = int(self.metadata["max_seq_length"])

    def run(self, columns: Columns, batch_size: int | None = None) -> Columns:
        lengths = np.array([len(str(row)) for row in zip(*map(np.ndarray.tolist, columns.values()), strict=True)])
        answers: list[Columns] = [{}] * len(lengths)
        for numbers in batches_by_length(lengths, batch_size):
            outputs = self.call(DEFAULT_SIGNATURE, {name: texts[numbers] for name, texts in columns.items()})
            for number, row in zip(numbers, exports.split_rows(outputs), strict=True):
                answers[number] = row
        return exports.join_rows(answers)

    def supports_batching(self, signature: str) -> bool:
        # Padding is known to have no effect only for texts of serving_default, and for numbers of one shape.
        is_known = signature == DEFAULT_SIGNATURE or not self.signatures[signature].takes_only_texts
        return is_known and bool(self.metadata)

    def preprocess(self, signature: str, columns: Columns) -> list[PreprocessedTexts]:
        tokens = self._count_tokens(signature, columns)
        if not self.supports_batching(signature):
            return [PreprocessedTexts(signature, len(tokens), columns, [sum(tokens)], None)]
        return split_texts(signature, columns, tokens)

    def compute(self, some_rows: Sequence[Row]) -> list[Any]:
        first = some_rows[0][0]
        outputs = self.call(first.signature, exports.join_rows([texts.content for texts, _ in some_rows]))
        return exports.split_rows(outputs) if first.group else [outputs]

    def call(self, signature: str, columns: Columns) -> Columns:
        """Calls a signature, and returns its outputs, sorted by name.

        Args:
            signature: Name of the signature.
            columns: An array for each input, with the dtype and shape in the signature.

        Raises:
            RefusedTextsError: If the model cannot answer one of the texts.
        """
        specs = self.signatures[signature].inputs
        try:
            tensors = {name: tf.constant(value, specs[name].dtype) for name, value in columns.items()}
            outputs = self._functions[signature](**tensors)
        except (tf.errors.InvalidArgumentError, ValueError, TypeError) as error:  # The last two: a wrong shape.
            raise exports.RefusedTextsError(shorten_error(error)) from error
        answers = {name: value.numpy() for name, value in sorted(outputs.items())}
        return {
            name: np.asarray(_decode_texts(values), object) if values.dtype == object else values
            for name, values in answers.items()
        }

    def _count_tokens(self, signature: str, columns: Columns) -> list[int]:
        """Returns an upper bound of the tokens of each text, over all windows. 0 for a model of another tool."""
        num_bytes = count_row_bytes(columns)
        count = len(num_bytes)
        if not self.metadata:
            return [0] * count
        if not self.signatures[signature].takes_only_texts:
            return [max(value.size for value in columns.values()) // count] * count  # ids
        if max(num_bytes) > self.quick_bytes:
            windows = self.call(TOKENIZE_SIGNATURE, columns)
            per_window = windows["input_ids"].shape[1]
            return [int(each) * per_window for each in np.bincount(windows["text_index"], minlength=count)]
        return bound_tokens(columns, num_bytes, self.metadata["max_seq_length"])


def load_saved_model(folder: str) -> Any:
    """Loads a SavedModel with `tf.saved_model.load`, after checking its fingerprint file.

    Raises:
        UserError: If the fingerprint file is damaged or incomplete.
    """
    with files.link_to_plain_path(files.local_copy(folder)) as path:
        fingerprint = os.path.join(folder, _FINGERPRINT_FILE)
        if files.exists(fingerprint):
            # TensorFlow would load the model all the same, and log a traceback.
            try:
                tf.saved_model.experimental.read_fingerprint(path)
            except RuntimeError as error:
                raise UserError(f"{fingerprint} is damaged or incomplete; restore the folder from a copy") from error
        return tf.saved_model.load(path)


def _read_signature(function: Any) -> Signature:
    inputs, outputs = (
        {
            name: Tensor(each.dtype.name, None if each.shape.rank is None else tuple(each.shape))
            for name, each in sorted(tensors.items())
        }
        for tensors in (function.structured_input_signature[1], function.structured_outputs)
    )
    return Signature(inputs, outputs)


_decode_texts = np.frompyfunc(lambda value: value.decode(errors="replace"), 1, 1)
