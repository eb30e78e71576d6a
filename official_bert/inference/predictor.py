"""The path from texts to answers that all backends share: arrays of texts in, arrays of answers out.

A backend is a subclass of `Predictor`: a SavedModel (saved_model.py), an ONNX model (onnx_model.py) or a Keras model
(keras_model.py). This module imports neither TensorFlow nor Keras. Texts are Python strings in arrays of objects. Only
the SavedModel backend converts them to bytes and back.

B texts, N endings of multiple choice, R rows (texts, or windows of long texts)
"""

import abc
import dataclasses
import re
import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from official_bert.inference import exports
from official_bert.inference.exports import Columns
from official_bert.kinds.features import Features, Outputs, gather_rows, row_lengths
from official_bert.kinds.names import IS_TRUNCATED
from official_bert.kinds.spec import KindSpec
from official_bert.tokenization.exact import FullTokenizer

STRING, BOOL = "string", "bool"  # TensorFlow's names

# Maximum number of batches that a server computes at a time, over all models.
PARALLEL_BATCHES = 2


@dataclasses.dataclass(frozen=True)
class Tensor:
    """The dtype and shape of an input or output of a signature. The first dimension is the batch.

    Attributes:
        dtype: TensorFlow's name of the dtype, such as "string" or "int32".
        shape: Sizes of the dimensions (None: any size), or None if the number of dimensions is unknown.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def is_integer(self) -> bool:
        """Whether the dtype is an integer type that NumPy also has."""
        return re.fullmatch("u?int(8|16|32|64)", self.dtype) is not None

    @property
    def is_floating(self) -> bool:
        """Whether the dtype is a floating-point type."""
        return self.dtype in ("float16", "float32", "float64", "bfloat16")

    @property
    def numpy_type(self) -> Any:
        """The NumPy dtype for values of the tensor: object for strings, and float32 for bfloat16, which NumPy lacks."""
        return object if self.dtype == STRING else np.dtype("float32" if self.dtype == "bfloat16" else self.dtype)

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest value of an integer dtype."""
        limits = np.iinfo(self.numpy_type)
        return int(limits.min), int(limits.max)

    def describe(self, name: str) -> dict[str, Any]:
        """Returns TensorFlow Serving's JSON description of a tensor with this name."""
        sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in self.shape or ()]
        dtype = {"float16": "HALF", "float32": "FLOAT", "float64": "DOUBLE"}.get(self.dtype, self.dtype.upper())
        shape = {"dim": sizes, "unknown_rank": self.shape is None}
        return {"dtype": f"DT_{dtype}", "tensor_shape": shape, "name": name}


@dataclasses.dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a function of a model, by name."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def takes_rows(self) -> bool:
        """Whether every input has a batch dimension, so that a request may contain several texts."""
        return bool(self.inputs) and all(tensor.shape for tensor in self.inputs.values())

    def describe(self) -> dict[str, Any]:
        """Returns TensorFlow Serving's JSON description of a signature."""
        inputs, outputs = (
            {name: tensor.describe(name) for name, tensor in tensors.items()} for tensors in (self.inputs, self.outputs)
        )
        return {"inputs": inputs, "outputs": outputs, "method_name": "tensorflow/serving/predict", "defaults": {}}

    @property
    def takes_only_texts(self) -> bool:
        """Whether all inputs are strings."""
        return all(tensor.dtype == STRING for tensor in self.inputs.values())


@dataclasses.dataclass(frozen=True, eq=False)
class PreprocessedTexts:
    """Texts of one request that `compute` can take, as rows (texts, or windows of long texts).

    Attributes:
        signature: Name of the signature.
        num_texts: Number of texts.
        content: The inputs, in the form that the backend needs.
        tokens: Number of tokens of each row.
        group: The rows of requests with equal groups may be in the same batch. None if each row needs a batch of its
            own.
    """

    signature: str
    num_texts: int
    content: Any
    tokens: list[int]
    group: Hashable


Row = tuple[PreprocessedTexts, int]  # and the index of the row in it


class Predictor(abc.ABC):
    """Base class of the backends that answer texts. All methods may be called from several threads.

    `run` answers a batch of texts. A server, which combines rows of several requests to batches, calls `preprocess`,
    `compute` and `postprocess` instead.

    Attributes:
        metadata: The export's metadata. Empty for a SavedModel of another tool, and for a model that is not exported.
        signatures: The inputs and outputs of each signature, by name. Not set for a model that is not exported.
        has_even_speed: Whether texts of equal length always take about the same time. In TensorFlow, the first batch of
            a new shape takes longer.
        quick_bytes: Up to this number of bytes of text, `preprocess` and `postprocess` take so little time that the
            server calls them without a thread.
        parallel_batches: Number of batches to compute at a time for the highest throughput, at most PARALLEL_BATCHES.
    """

    metadata: Mapping[str, Any] = {}
    signatures: Mapping[str, Signature]
    has_even_speed: ClassVar[bool] = False
    quick_bytes = sys.maxsize
    parallel_batches = PARALLEL_BATCHES

    @property
    def kind(self) -> str:
        """The kind of task, such as "classification", or "other" if it is unknown."""
        return str(self.metadata.get("kind", "other"))

    @abc.abstractmethod
    def run(self, columns: Columns, batch_size: int | None = None) -> Columns:
        """Returns the model's answers to texts: an array [B, ...] for each output name.

        Args:
            columns: An array of texts for each text input: [B], or [B, N] for the endings of multiple choice.
            batch_size: Maximum number of rows per batch. Rows are sorted by length. None means a single batch, or the
                size that the backend computes fastest.

        Raises:
            RefusedTextsError: If the model cannot answer one of the texts.
        """

    def supports_batching(self, signature: str) -> bool:
        """Returns whether the texts of one request may be split, and be in a batch with texts of other requests.

        Args:
            signature: Name of the signature that the request calls.
        """
        return True

    @abc.abstractmethod
    def preprocess(self, signature: str, columns: Columns) -> list[PreprocessedTexts]:
        """Converts the texts of a request to one or more PreprocessedTexts for `compute`.

        Args:
            signature: Name of the signature that the request calls.
            columns: An array [B, ...] for each input of the signature.
        """

    @abc.abstractmethod
    def compute(self, some_rows: Sequence[Row]) -> list[Any]:
        """Computes a batch of rows (texts, or windows of long texts), and returns the output of each row.

        Args:
            some_rows: Rows of one or more requests. Their `group` must be equal.

        Raises:
            RefusedTextsError: If the model cannot answer one of the rows.
        """

    def postprocess(self, texts: PreprocessedTexts, outputs: Sequence[Any]) -> Columns:
        """Converts the outputs of a request's rows to answers: for each output name, an array with a row per text.

        Args:
            texts: The texts, from `preprocess`.
            outputs: The output of each of its rows, from `compute`.
        """
        (answer,) = outputs
        return dict(answer)


class SpecPredictor(Predictor):
    """Base class of the predictors that tokenize texts and decode outputs in Python, using the KindSpec of the model.

    Args:
        spec: The KindSpec of the model, which builds features and decodes outputs.
        tokenizer: The model's tokenizer.
        max_seq_length: Maximum number of tokens of a row.
    """

    def __init__(self, spec: KindSpec, tokenizer: FullTokenizer, max_seq_length: int) -> None:
        self.spec, self.max_seq_length, self._tokenizer = spec, max_seq_length, tokenizer

    @abc.abstractmethod
    def compute_outputs(self, features: Features, batch_size: int | None = None) -> Outputs:
        """Returns the model's outputs for all rows, in order and without padding (see features.Outputs).

        Args:
            features: The tokenized texts, or windows of long texts (rows).
            batch_size: Maximum number of rows per batch. None lets the backend choose.
        """

    def run(self, columns: Columns, batch_size: int | None = None) -> Columns:
        examples, features = self._featurize(columns)
        return self._to_columns(self._decode(examples, features, self.compute_outputs(features, batch_size)))

    def answer(self, columns: Columns, batch_size: int | None = None) -> tuple[dict[str, list[Any]], list[float]]:
        """Returns the answers to texts as a list for each output name, and the margin of each answer.

        Args:
            columns: An array of texts for each text input.
            batch_size: Maximum number of rows per batch. None lets the backend choose.

        Returns:
            The answers, and how far each answer is from a different one (see KindSpec.margins).
        """
        examples, features = self._featurize(columns)
        outputs = self.compute_outputs(features, batch_size)
        return self._decode(examples, features, outputs), self.spec.margins(outputs, features, examples)

    def preprocess(self, signature: str, columns: Columns) -> list[PreprocessedTexts]:
        num_bytes = count_row_bytes(columns)
        if sum(num_bytes) <= self.quick_bytes:
            # Short texts are tokenized and decoded by `compute`: for a batch that costs hardly more than for one text.
            return split_texts(signature, columns, bound_tokens(columns, num_bytes, self.max_seq_length))
        examples, features = self._featurize(columns)
        tokens = row_lengths(features) * features.choices
        return [PreprocessedTexts(signature, len(examples), (examples, features), tokens.tolist(), signature)]

    def compute(self, some_rows: Sequence[Row]) -> list[Any]:
        if isinstance(some_rows[0][0].content, dict):
            return exports.split_rows(self.run(exports.join_rows([texts.content for texts, _ in some_rows])))
        features = gather_rows([(texts.content[1], number) for texts, number in some_rows])
        outputs = self.compute_outputs(features)
        if isinstance(outputs, dict):
            return [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]
        return list(outputs)

    def postprocess(self, texts: PreprocessedTexts, outputs: Sequence[Any]) -> Columns:
        if isinstance(texts.content, dict):
            return super().postprocess(texts, outputs)
        examples, features = texts.content
        is_structured = isinstance(outputs[0], dict)
        joined = {name: [row[name] for row in outputs] for name in outputs[0]} if is_structured else outputs
        return self._to_columns(self._decode(examples, features, joined))

    def _featurize(self, columns: Columns) -> tuple[Sequence[Any], Features]:
        texts = {name: values.tolist() for name, values in columns.items()}
        examples = self.spec.make_prediction_examples(texts, self._tokenizer)
        return examples, self.spec.featurize(examples, self._tokenizer, self.max_seq_length)

    def _decode(self, examples: Sequence[Any], features: Features, outputs: Outputs) -> dict[str, list[Any]]:
        answers = self.spec.named_answers(self.spec.decode(outputs, features, examples), examples)
        return {**answers, IS_TRUNCATED: features.is_truncated.tolist()}

    def _to_columns(self, answers: Mapping[str, list[Any]]) -> Columns:
        dtypes = {**self.spec.answer_dtypes, IS_TRUNCATED: np.bool_}
        return {name: _pad_answers(name, answers[name], dtypes[name]) for name in sorted(answers)}


def split_texts(signature: str, columns: Columns, tokens: Sequence[int]) -> list[PreprocessedTexts]:
    """Makes each text a PreprocessedTexts object, with one row that may share a batch with other texts.

    Args:
        signature: Name of the signature.
        columns: An array of texts, [B, ...], for each input.
        tokens: Number of tokens of each text.
    """
    group = (signature, *(value.shape[1:] for value in columns.values()))
    rows = [{name: value[i : i + 1] for name, value in columns.items()} for i in range(len(tokens))]
    return [PreprocessedTexts(signature, 1, row, [count], group) for row, count in zip(rows, tokens, strict=True)]


def bound_tokens(columns: Columns, num_bytes: Sequence[int], max_seq_length: int) -> list[int]:
    """Returns an upper bound of the number of tokens of each text without [CLS] and [SEP]: its bytes.

    It is at most max_seq_length. For multiple choice, it is multiplied by the number of choices.

    Args:
        columns: An array of texts for each input: [B], or [B, N] for the endings of multiple choice.
        num_bytes: Number of bytes of each text, over all inputs.
        max_seq_length: Maximum number of tokens of a sequence.
    """
    choices = max(value.size for value in columns.values()) // len(num_bytes)
    return [min(count, max_seq_length) * choices for count in num_bytes]


def count_row_bytes(columns: Columns) -> list[int]:
    """Returns the size of each example in bytes of UTF-8, summed over all its text inputs.

    Args:
        columns: An array for each input: [B], or [B, N] for the endings of multiple choice.
    """
    count = len(next(iter(columns.values())))
    texts = [value.reshape(count, -1).tolist() for value in columns.values() if value.dtype == object]
    rows = zip(*texts, strict=True) if texts else [()] * count
    return [sum(count_text_bytes(text) for row in each for text in row) for each in rows]


def count_text_bytes(text: str) -> int:
    """Returns the number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _pad_answers(name: str, column: Sequence[Any], dtype: Any) -> Any:
    """Converts one output of all texts to an array, [B, ...].

    Args:
        name: Name of the output, which determines the padding.
        column: The value for each text. If the values are lists, such as tags of words, they are padded to the longest.
        dtype: NumPy dtype of the array.
    """
    if not (column and isinstance(column[0], list)):
        return np.array(column, dtype)
    return exports.join_rows([{name: np.array([elements], dtype)} for elements in column])[name]
