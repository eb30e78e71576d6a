"""The path from texts to answers, whatever computes them: columns of texts go in, columns of answers come out.

A backend is a subclass of `Predictor`: a SavedModel (saved_model.py), a graph in ONNX Runtime (onnx_model.py), or a
Keras model (keras_model.py). This module imports neither TensorFlow nor Keras.

Texts are Python strings in arrays of objects. Only the SavedModel backend converts them to bytes and back.

B texts, R rows (a text, or one window of a long text)
"""

import abc
import dataclasses
import functools
import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from official_bert.inference import exports, replays
from official_bert.inference.exports import Columns
from official_bert.kinds.features import Features, Outputs, gather_rows, row_lengths
from official_bert.kinds.names import DEFAULT_SIGNATURE, IS_TRUNCATED
from official_bert.kinds.spec import KindSpec
from official_bert.tokenization.exact import FullTokenizer

STRING, BOOL = "string", "bool"  # TensorFlow's names

# Maximum number of batches that a server computes at a time, over all models.
PARALLEL_BATCHES = 2


@dataclasses.dataclass(frozen=True)
class Tensor:
    """The type and shape of an input or output. The first dimension is for the instances.

    Attributes:
        dtype: TensorFlow's name of the type, such as "string" or "int32".
        shape: Sizes of the dimensions (None: any size), or None if the number of dimensions is unknown.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def is_integer(self) -> bool:
        """Whether it contains integers of a type that NumPy has too."""
        return self._kind in ("i", "u")

    @property
    def is_floating(self) -> bool:
        """Whether it contains floating-point numbers."""
        return self._kind == "f" or self.dtype == "bfloat16"

    @property
    def numpy_type(self) -> Any:
        """NumPy's type, which is float32 for bfloat16."""
        return object if self.dtype == STRING else np.dtype("float32" if self.dtype == "bfloat16" else self.dtype)

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest integer."""
        limits = np.iinfo(self.numpy_type)
        return int(limits.min), int(limits.max)

    def describe(self, name: str) -> dict[str, Any]:
        """Returns TensorFlow Serving's JSON of a tensor with this name."""
        sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in self.shape or ()]
        dtype = {"float16": "HALF", "float32": "FLOAT", "float64": "DOUBLE"}.get(self.dtype, self.dtype.upper())
        shape = {"dim": sizes, "unknown_rank": self.shape is None}
        return {"dtype": f"DT_{dtype}", "tensor_shape": shape, "name": name}

    @property
    def _kind(self) -> str:
        try:
            return np.dtype(self.dtype).kind
        except TypeError:  # a type that only TensorFlow has
            return ""


@dataclasses.dataclass(frozen=True)
class Signature:
    """Inputs and outputs by name."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def takes_rows(self) -> bool:
        """Whether every input has a dimension for instances."""
        return bool(self.inputs) and all(tensor.shape for tensor in self.inputs.values())

    def describe(self) -> dict[str, Any]:
        """Returns TensorFlow Serving's JSON of the signature."""
        description: dict[str, Any] = {
            part: {name: tensor.describe(name) for name, tensor in tensors.items()}
            for part, tensors in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        return {**description, "method_name": "tensorflow/serving/predict", "defaults": {}}

    @property
    def takes_only_texts(self) -> bool:
        """Whether all inputs are strings."""
        return all(tensor.dtype == STRING for tensor in self.inputs.values())


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """Texts of one request that are ready to be computed, row by row.

    Attributes:
        signature: Name of the signature.
        instances: Number of texts.
        content: What the backend computes.
        tokens: Number of tokens of each row.
        group: Rows with equal groups may share a batch. None if a row needs a batch of its own.
    """

    signature: str
    instances: int
    content: Any
    tokens: list[int]
    group: Hashable


Row = tuple[Prepared, int]  # and the index of the row in it


class Predictor(abc.ABC):
    """Answers texts. All methods may be called from several threads.

    `run` answers a batch of texts. A server, which puts rows of several requests into one batch, calls `prepare`,
    `compute` and `finish` instead.

    Attributes:
        folder: The folder of the export's version. Empty for a model that is not exported.
        metadata: The export's metadata. Empty for a SavedModel of another tool, and for a model that is not exported.
        has_even_speed: Whether texts of equal length always take about the same time. TensorFlow needs longer for
            shapes that are new.
        quick_bytes: Number of bytes of text that `prepare` and `finish` process in a negligible time.
        parallel_batches: Number of batches to compute at a time for the highest speed, at most PARALLEL_BATCHES.
    """

    folder: str = ""
    metadata: Mapping[str, Any] = {}
    has_even_speed: ClassVar[bool] = False
    quick_bytes = sys.maxsize
    parallel_batches = PARALLEL_BATCHES

    @property
    @abc.abstractmethod
    def signatures(self) -> Mapping[str, Signature]:
        """The inputs and outputs by signature."""

    @property
    def inputs(self) -> list[str]:
        """The names of the columns that `run` takes."""
        return list(self.signatures[DEFAULT_SIGNATURE].inputs)

    @property
    def kind(self) -> str:
        """The kind of model, such as "classification", or "other" if it is unknown."""
        return str(self.metadata.get("kind", "other"))

    @abc.abstractmethod
    def run(self, columns: Columns, batch_size: int | None = None) -> Columns:
        """Returns the answers to texts, [B, ...] each.

        Args:
            columns: A column for each of `inputs`, [B], or [B, N] for the endings of multiple choice.
            batch_size: Maximum number of rows per batch. Texts are sorted by length. Defaults to one batch, or to what
                the backend computes fastest.

        Raises:
            RefusedTextsError: If the model cannot answer a text.
        """

    def can_divide(self, signature: str) -> bool:
        """Returns whether the texts of one request may be split, and batched with texts of other requests."""
        return True

    @abc.abstractmethod
    def prepare(self, signature: str, columns: Columns) -> list[Prepared]:
        """Returns the inputs of a signature, [B, ...] each, ready to be computed."""

    @abc.abstractmethod
    def compute(self, some_rows: Sequence[Row]) -> list[Any]:
        """Returns the output of each row. All rows belong to one group.

        Raises:
            RefusedTextsError: If the model cannot answer one of them.
        """

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> Columns:
        """Returns the answers to texts, [B, ...] each, given the outputs of their rows."""
        (answer,) = outputs
        return dict(answer)

    def warm_up(self) -> None:
        """Answers a few requests, so that the first one is not slow, and replays the export's reference inputs.

        Raises:
            UserError: If the model cannot answer them, or answers differently from when it was exported.
        """
        if self.folder:
            replays.check(self.folder, self)


class SpecPredictor(Predictor):
    """A predictor that tokenizes and decodes in Python, with the spec of the model's kind.

    Args:
        spec: The model's kind.
        tokenizer: The model's tokenizer.
        max_seq_length: Maximum number of tokens of a row.
    """

    def __init__(self, spec: KindSpec, tokenizer: FullTokenizer, max_seq_length: int) -> None:
        self.spec, self.max_seq_length, self._tokenizer = spec, max_seq_length, tokenizer

    @abc.abstractmethod
    def compute_outputs(self, features: Features, batch_size: int | None = None) -> Outputs:
        """Returns the model's outputs for all rows, in order and without padding (see features.Outputs)."""

    @property
    def kind(self) -> str:
        """The kind of model."""
        return self.spec.kind

    @functools.cached_property
    def signatures(self) -> Mapping[str, Signature]:
        """The inputs and outputs of the only signature. Answering an example determines the outputs."""
        choices = self.spec.num_choices
        inputs = {
            name: Tensor(STRING, (None, choices) if name == "endings" else (None,))
            for name in sorted(self.spec.text_inputs)
        }
        example = {
            name: np.full([size or 1 for size in each.shape or ()], "a", object) for name, each in inputs.items()
        }
        outputs = {
            name: Tensor(STRING if value.dtype == object else value.dtype.name, (None,) * value.ndim)
            for name, value in self.run(example).items()
        }
        return {DEFAULT_SIGNATURE: Signature(inputs, outputs)}

    def run(self, columns: Columns, batch_size: int | None = None) -> Columns:
        examples, features = self._featurize(columns)
        return self._to_columns(self._decode(examples, features, self.compute_outputs(features, batch_size)))

    def answer(self, columns: Columns, batch_size: int | None = None) -> tuple[dict[str, list[Any]], list[float]]:
        """Returns the answers to texts as lists, and the margin of each decision (see KindSpec.margins)."""
        examples, features = self._featurize(columns)
        outputs = self.compute_outputs(features, batch_size)
        return self._decode(examples, features, outputs), self.spec.margins(outputs, features, examples)

    def prepare(self, signature: str, columns: Columns) -> list[Prepared]:
        num_bytes = count_row_bytes(columns)
        if sum(num_bytes) <= self.quick_bytes:
            # Short texts are tokenized and decoded by `compute`: for a batch that costs hardly more than for one text.
            return split_texts(signature, columns, bound_tokens(columns, num_bytes, self.max_seq_length))
        examples, features = self._featurize(columns)
        tokens = row_lengths(features) * features.choices
        return [Prepared(signature, len(examples), (examples, features), tokens.tolist(), signature)]

    def compute(self, some_rows: Sequence[Row]) -> list[Any]:
        if isinstance(some_rows[0][0].content, dict):
            return exports.split_rows(self.run(join_texts(some_rows)))
        features = gather_rows([(prepared.content[1], number) for prepared, number in some_rows])
        outputs = self.compute_outputs(features)
        if isinstance(outputs, dict):
            return [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]
        return list(outputs)

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> Columns:
        if isinstance(prepared.content, dict):
            return super().finish(prepared, outputs)
        examples, features = prepared.content
        is_structured = isinstance(outputs[0], dict)
        joined = {name: [row[name] for row in outputs] for name in outputs[0]} if is_structured else outputs
        return self._to_columns(self._decode(examples, features, joined))

    def _featurize(self, columns: Columns) -> tuple[Sequence[Any], Features]:
        texts = {name: values.tolist() for name, values in columns.items()}
        examples = self.spec.build_examples(texts, self._tokenizer)
        return examples, self.spec.featurize(examples, self._tokenizer, self.max_seq_length)

    def _decode(self, examples: Sequence[Any], features: Features, outputs: Outputs) -> dict[str, list[Any]]:
        answers = self.spec.named_answers(self.spec.decode(outputs, features, examples), examples)
        return {**answers, IS_TRUNCATED: features.is_truncated.tolist()}

    def _to_columns(self, answers: Mapping[str, list[Any]]) -> Columns:
        dtypes = {**self.spec.answer_dtypes, IS_TRUNCATED: np.bool_}
        return {name: _pad_answers(name, answers[name], dtypes[name]) for name in sorted(answers)}


def split_texts(signature: str, columns: Columns, tokens: Sequence[int]) -> list[Prepared]:
    """Returns each text of a signature's inputs as a row that may share a batch with other texts.

    Args:
        signature: Name of the signature.
        columns: The texts, [B, ...] each.
        tokens: Number of tokens of each text.
    """
    group = (signature, *(value.shape[1:] for value in columns.values()))
    rows = [{name: value[i : i + 1] for name, value in columns.items()} for i in range(len(tokens))]
    return [Prepared(signature, 1, row, [count], group) for row, count in zip(rows, tokens, strict=True)]


def join_texts(some_rows: Sequence[Row]) -> Columns:
    """Returns the texts of rows that `split_texts` returned, [B, ...] each."""
    contents = [prepared.content for prepared, _ in some_rows]
    return {name: np.concatenate([content[name] for content in contents]) for name in contents[0]}


def bound_tokens(columns: Columns, num_bytes: Sequence[int], max_seq_length: int) -> list[int]:
    """Returns the maximum number of tokens of each text, which cannot have more tokens than bytes."""
    choices = max(value.size for value in columns.values()) // len(num_bytes)
    return [min(count, max_seq_length) * choices for count in num_bytes]


def count_row_bytes(columns: Columns) -> list[int]:
    """Returns the number of bytes in UTF-8 of the texts of each row, given columns [B] or [B, N]."""
    count = len(next(iter(columns.values())))
    texts = [value.reshape(count, -1).tolist() for value in columns.values() if value.dtype == object]
    return [sum(count_text_bytes(text) for row in rows for text in row) for rows in zip(*texts, strict=True)] or [
        0
    ] * count


def count_text_bytes(text: str | bytes) -> int:
    """Returns the number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() or isinstance(text, bytes) else len(text.encode())


def _pad_answers(name: str, column: Sequence[Any], dtype: Any) -> Any:
    """Returns answers as an array, [B, ...], padded if a text has several (see `exports.join_rows`)."""
    if not (column and isinstance(column[0], list)):
        return np.array(column, dtype)
    return exports.join_rows([{name: np.array([elements], dtype)} for elements in column])[name]
