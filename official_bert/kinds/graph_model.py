"""A trained model as TensorFlow functions from strings to answers: the base classes of kinds/<kind>/graph.py.

export/saved_model.py writes the signatures.

B texts, S sequence, C classes, R rows of the model's input
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from official_bert.kinds import graph_inputs
from official_bert.kinds.graph_inputs import Rows, TokenSpans, span_texts
from official_bert.kinds.names import DEFAULT_SIGNATURE, IDS_SIGNATURE, IS_TRUNCATED, TOKENIZE_SIGNATURE
from official_bert.modeling import layer_names
from official_bert.modeling.fast.flat_blocks import flatten_blocks
from official_bert.tokenization.exact import CLS, SEP, FullTokenizer
from official_bert.tokenization.in_graph import GraphTokenizer

# The maximum number of windows that the model reads at once, so that memory does not grow with the text.
_MAX_WINDOWS_PER_CALL = 32


class GraphModel(abc.ABC):
    """The functions of a model that takes text.

    Args:
        model: A functional model with a dict of inputs: an encoder with or without a head, or one that returns
            masked-LM logits.
        tokenizer: The model's tokenizer.
        task_spec: The content of task.json (see KindSpec.task_spec). Only max_seq_length and the settings of the kind
            are used.
    """

    def __init__(self, model: keras.Model, tokenizer: FullTokenizer, task_spec: Mapping[str, Any]) -> None:
        self.call_model, self._variables = flatten_blocks(model), model.variables
        self.vocab, self.task_spec = tokenizer.vocab, dict(task_spec)
        self.tokenizer = GraphTokenizer(tokenizer)
        self.max_seq_length = int(task_spec["max_seq_length"])

    @property
    @abc.abstractmethod
    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The specifications of the text inputs by name: string [B], or [B, N] for endings."""

    @abc.abstractmethod
    def read_texts(self, texts: Mapping[str, Any]) -> Rows:
        """Returns the model's inputs for a batch of texts, one tensor for each of `inputs`."""

    def signatures(self) -> dict[str, Any]:
        """Returns the traced functions by name: serving_default, serving_ids and tokenize."""
        features = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), self.ids_spec())
        return {
            DEFAULT_SIGNATURE: _trace(self.answer, self.inputs),
            IDS_SIGNATURE: _trace(self._answer_client_ids, features),
            TOKENIZE_SIGNATURE: _trace(self.tokenize, self.inputs),
        }

    def ids_spec(self) -> tf.TensorSpec:
        """Returns the specification of each of the model's inputs."""
        return tf.TensorSpec([None, None], tf.int32)

    def tokenize(self, **texts: Any) -> dict[str, Any]:
        """Returns input_ids, input_mask and segment_ids, int32 [B, S]; [B, N, S] for multiple choice.

        If long texts are read in windows, each window has a row, and text_index, int32 [R], is the index of its text.
        """
        rows = self.read_texts(texts)
        return rows.features if rows.windows is None else {**rows.features, "text_index": rows.windows.texts}

    def answer(self, **texts: Any) -> dict[str, Any]:
        """Returns the kind's outputs by name, and is_truncated: whether the end of a text was left out, bool [B]."""
        rows = self.read_texts(texts)
        return {**self.answer_rows(rows, texts), IS_TRUNCATED: rows.is_truncated}

    def answer_rows(self, rows: Rows, texts: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the outputs for texts, given the model's inputs for them."""
        return _drop_logits(self.answer_ids(**rows.features))

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        """Returns the outputs that need no text, and the outputs of the model itself."""
        outputs = self.call_model(features)
        return dict(outputs) if isinstance(outputs, dict) else {"logits": outputs}

    def _answer_client_ids(self, **features: Any) -> dict[str, Any]:
        rows = {variable.path.split("/")[-2]: variable.shape[0] for variable in self._variables}
        # How many values an input may have, from 0 on.
        value_counts = {
            "input_ids": rows[layer_names.WORD_EMBEDDINGS],
            "input_mask": 2,
            "segment_ids": rows[layer_names.TOKEN_TYPE_EMBEDDINGS],
        }
        return self.answer_ids(**graph_inputs.check_ranges(features, value_counts))

    def pack(self, first: TokenSpans, second: TokenSpans | None, drop_empty: bool = False) -> dict[str, Any]:
        """Returns the model's inputs for texts or pairs (see graph_inputs.pack)."""
        return graph_inputs.pack(first, second, self.vocab[CLS], self.vocab[SEP], drop_empty)

    def compute_logits(self, features: Mapping[str, Any]) -> Any:
        """Returns the model's logits as one tensor, [R, ...]."""
        return self.call_model(dict(features))

    def compute_window_logits(self, features: dict[str, Any], shape: list[int | None]) -> Any:
        """Returns `compute_logits` for many rows, a limited number at a time; `shape` is one row's."""
        chunks = -tf.math.floordiv(-tf.shape(features["input_ids"])[0], _MAX_WINDOWS_PER_CALL)

        def step(number: Any, logits: Any) -> tuple[Any, Any]:
            rows = slice(number * _MAX_WINDOWS_PER_CALL, (number + 1) * _MAX_WINDOWS_PER_CALL)
            chunk = self.compute_logits({name: value[rows] for name, value in features.items()})
            return number + 1, logits.write(number, chunk)

        empty = tf.TensorArray(tf.float32, chunks, infer_shape=False, element_shape=[None, *shape])
        _, logits = tf.while_loop(lambda number, _: number < chunks, step, (0, empty), parallel_iterations=1)
        return logits.concat()


class TextGraph(GraphModel):
    """A model of texts or pairs, which are truncated if they are too long."""

    reads_special_tokens = False  # whether [MASK] in a text is that token

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        text = tf.TensorSpec([None], tf.string)
        return {"text": text, "text_pair": text} if self.task_spec.get("pair") else {"text": text}

    def span_tokens(self, texts: Mapping[str, Any]) -> tuple[TokenSpans, TokenSpans | None]:
        """Returns the tokens of texts, and of the second texts of pairs."""
        first = span_texts(self.tokenizer.tokenize(texts["text"], special_tokens=self.reads_special_tokens).ids)
        return first, span_texts(self.tokenizer.tokenize(texts["text_pair"]).ids) if "text_pair" in texts else None

    def read_texts(self, texts: Mapping[str, Any]) -> Rows:
        complete = self.span_tokens(texts)
        spans = graph_inputs.truncate(*complete, self.max_seq_length, drop_empty=True)
        return Rows(self.pack(*spans, drop_empty=True), graph_inputs.have_lost_tokens(spans, complete))


class LabelGraph(TextGraph):
    """A model with one answer per text.

    With doc_stride, a long text is read in windows whose logits are averaged, as TextSpec does it. `answer_ids` returns
    an answer for each row.
    """

    row_shape: ClassVar[list[int | None]] = [None]  # the shape of a row's logits

    @abc.abstractmethod
    def answer_logits(self, logits: Any) -> dict[str, Any]:
        """Returns the outputs of `answer_ids`."""

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        return self.answer_logits(self.compute_logits(features))

    def answer_rows(self, rows: Rows, texts: Mapping[str, Any]) -> dict[str, Any]:
        if rows.windows is None:
            return super().answer_rows(rows, texts)
        logits = tf.cast(self.compute_window_logits(rows.features, self.row_shape), tf.float64)
        means = tf.cast(tf.math.segment_mean(logits, rows.windows.texts), tf.float32)
        return _drop_logits(self.answer_logits(means))

    def scale_logits(self, logits: Any) -> Any:
        """Divides logits by the temperature that makes their probabilities agree with how often they are right."""
        return logits / float(self.task_spec.get("temperature", 1.0))

    def read_texts(self, texts: Mapping[str, Any]) -> Rows:
        if not self.task_spec.get("doc_stride"):
            return super().read_texts(texts)
        stride, (first, second) = int(self.task_spec["doc_stride"]), self.span_tokens(texts)
        if second is None:
            room = tf.fill(tf.shape(first.lengths), self.max_seq_length - 2)
            windows = graph_inputs.build_windows(first.lengths, room, stride)
            features = self.pack(first.gather_windows(windows), None)
            return Rows(features, tf.zeros_like(first.lengths, tf.bool), windows)
        room = self.max_seq_length - tf.where(second.lengths > 0, 3, 2)
        kept = first._replace(lengths=tf.minimum(first.lengths, room // 2))
        windows = graph_inputs.build_windows(second.lengths, room - kept.lengths, stride)
        features = self.pack(kept.gather_rows(windows.texts), second.gather_windows(windows), drop_empty=True)
        return Rows(features, kept.lengths < first.lengths, windows)


def _drop_logits(answers: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answers.items() if name != "logits"}


def _trace(function: Callable[..., dict[str, Any]], inputs: Mapping[str, Any]) -> Any:
    """Traces the function once for inputs of these names."""
    specs = {name: tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in inputs.items()}
    return tf.function(lambda **tensors: function(**tensors)).get_concrete_function(**specs)
