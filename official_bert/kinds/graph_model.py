"""Base classes of the TensorFlow functions from strings to answers that a SavedModel contains, one class for each kind.

The subclasses are in kinds/<kind>/graph.py. export/saved_model.py writes the functions as signatures.

B texts, S sequence length, C classes, R rows of the model's input (texts, or windows of long texts)
"""

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from official_bert.kinds import graph_inputs
from official_bert.kinds.graph_inputs import Rows, TokenSpans, span_texts
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.names import DEFAULT_SIGNATURE, IDS_SIGNATURE, IS_TRUNCATED, TOKENIZE_SIGNATURE
from official_bert.kinds.spec import KindSpec
from official_bert.kinds.text_spec import TextSpec
from official_bert.modeling import layer_names
from official_bert.modeling.fast.flat_blocks import flatten_blocks
from official_bert.tokenization import truncation
from official_bert.tokenization.exact import CLS, SEP, FullTokenizer
from official_bert.tokenization.in_graph import GraphTokenizer

# The maximum number of windows that the model reads at once, so that memory does not grow with the text.
_MAX_WINDOWS_PER_CALL = 32


class GraphModel(abc.ABC):
    """A trained model and its tokenizer as TensorFlow functions, from strings to answers.

    Args:
        model: A functional model with a dict of inputs: an encoder with or without a head, or a masked LM.
        tokenizer: The model's tokenizer.
        max_seq_length: Maximum number of tokens of a sequence.
        spec: The kind of task of a fine-tuned model, with its settings.
    """

    spec: Any  # subclasses for a kind state its KindSpec; None if the model was not fine-tuned

    def __init__(
        self, model: keras.Model, tokenizer: FullTokenizer, max_seq_length: int, spec: KindSpec | None = None
    ) -> None:
        self.spec, self.max_seq_length, self._variables = spec, max_seq_length, model.variables
        self.call_model = flatten_blocks(create_kind_model(spec).answering_model(model) if spec else model)
        self.vocab, self.tokenizer = tokenizer.vocab, GraphTokenizer(tokenizer)

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The TensorSpec of each text input by name: string [B], or [B, N] for the endings of multiple choice."""
        names = self.spec.text_inputs if self.spec else ("text",)
        return dict.fromkeys(names, tf.TensorSpec([None], tf.string))

    @abc.abstractmethod
    def read_texts(self, texts: Mapping[str, Any]) -> Rows:
        """Tokenizes texts, and truncates them or splits them into windows.

        Args:
            texts: A string tensor for each name in `inputs`.

        Returns:
            The model's inputs.
        """

    def signatures(self) -> dict[str, Any]:
        """Returns the traced functions of the SavedModel by name.

        serving_default maps strings to answers, serving_ids maps token ids to answers, and tokenize maps strings to
        token ids.
        """
        choices = [self.spec.num_choices] if self.spec and self.spec.num_choices else []
        ids = tf.TensorSpec([None, *choices, None], tf.int32)
        features = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), ids)
        return {
            DEFAULT_SIGNATURE: _trace(self.answer, self.inputs),
            IDS_SIGNATURE: _trace(self._answer_client_ids, features),
            TOKENIZE_SIGNATURE: _trace(self.tokenize, self.inputs),
        }

    def tokenize(self, **texts: Any) -> dict[str, Any]:
        """Converts texts to input_ids, input_mask and segment_ids, int32 [R, S] ([B, N, S] for multiple choice).

        If long texts are split into windows, each window is a row, and text_index, int32 [R], is the text that it
        belongs to. Otherwise each text is a row.

        Args:
            texts: A string tensor for each name in `inputs`.
        """
        rows = self.read_texts(texts)
        return rows.features if rows.windows is None else {**rows.features, "text_index": rows.windows.texts}

    def answer(self, **texts: Any) -> dict[str, Any]:
        """Returns the model's answers to texts by output name, and is_truncated, bool [B].

        is_truncated is true if the end of a text was left out.

        Args:
            texts: A string tensor for each name in `inputs`.
        """
        rows = self.read_texts(texts)
        return {**self.answer_rows(rows, texts), IS_TRUNCATED: rows.is_truncated}

    def answer_rows(self, rows: Rows, texts: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the model's answers to texts by output name.

        Args:
            rows: The model's inputs for the texts, from `read_texts`.
            texts: The strings. Answers to questions and the words of tags are copied from them.
        """
        return _drop_logits(self.answer_ids(**rows.features))

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        """Returns the logits, and the answers that can be computed from token ids without the texts.

        Args:
            features: input_ids, input_mask and segment_ids.
        """
        return self.answer_logits(self.call_model(features))

    def answer_logits(self, logits: Any) -> dict[str, Any]:
        """Converts the model's outputs, such as logits [R, C], to answers by output name, such as label."""
        return dict(logits) if isinstance(logits, dict) else {"logits": logits}

    def _answer_client_ids(self, **features: Any) -> dict[str, Any]:
        rows = {variable.path.split("/")[-2]: variable.shape[0] for variable in self._variables}
        # How many values an input may have, from 0 on.
        value_counts = {
            "input_ids": rows[layer_names.WORD_EMBEDDINGS],
            "input_mask": 2,
            "segment_ids": rows[layer_names.TOKEN_TYPE_EMBEDDINGS],
        }
        max_length = rows[layer_names.POSITION_EMBEDDINGS]
        return self.answer_ids(**graph_inputs.check_features(features, value_counts, max_length))

    def pack(self, first: TokenSpans, second: TokenSpans | None, drop_empty: bool = False) -> dict[str, Any]:
        """Adds special tokens and padding to texts or pairs and returns the model's inputs.

        `drop_empty` is explained at `graph_inputs.pack`.
        """
        return graph_inputs.pack(first, second, self.vocab[CLS], self.vocab[SEP], drop_empty)

    def compute_logits(self, features: Mapping[str, Any]) -> Any:
        """Returns the model's logits for input_ids, input_mask and segment_ids as one float tensor, [R, ...]."""
        return self.call_model(dict(features))

    def compute_window_logits(self, features: dict[str, Any], shape: list[int | None]) -> Any:
        """Returns the logits of many windows, [R, *shape], computed for at most 32 windows at a time to limit memory.

        Args:
            features: input_ids, input_mask and segment_ids of the windows.
            shape: Shape of the logits of one window. Unknown sizes are None.
        """
        # Without texts, the logits of a chunk without windows have the right shape.
        chunks = tf.maximum(1, -tf.math.floordiv(-tf.shape(features["input_ids"])[0], _MAX_WINDOWS_PER_CALL))

        def step(number: Any, logits: Any) -> tuple[Any, Any]:
            rows = slice(number * _MAX_WINDOWS_PER_CALL, (number + 1) * _MAX_WINDOWS_PER_CALL)
            chunk = self.compute_logits({name: value[rows] for name, value in features.items()})
            return number + 1, logits.write(number, chunk)

        empty = tf.TensorArray(tf.float32, chunks, infer_shape=False, element_shape=[None, *shape])
        _, logits = tf.while_loop(lambda number, _: number < chunks, step, (0, empty), parallel_iterations=1)
        return logits.concat()


class TextGraph(GraphModel):
    """Base class for models of texts or text pairs, which are truncated if they are too long."""

    reads_special_tokens = False  # whether the text "[MASK]" becomes the special token

    def span_tokens(self, texts: Mapping[str, Any]) -> tuple[TokenSpans, TokenSpans | None]:
        """Tokenizes texts.

        Returns the spans of the first texts, and of the second texts or None if the inputs are single texts.
        """
        first = span_texts(self.tokenizer.tokenize(texts["text"], special_tokens=self.reads_special_tokens).ids)
        return first, span_texts(self.tokenizer.tokenize(texts["text_pair"]).ids) if "text_pair" in texts else None

    def read_texts(self, texts: Mapping[str, Any]) -> Rows:
        complete = self.span_tokens(texts)
        spans = graph_inputs.truncate(*complete, self.max_seq_length)
        return Rows(self.pack(*spans, drop_empty=True), graph_inputs.have_lost_tokens(spans, complete))


class LabelGraph(TextGraph):
    """Base class for models with one answer per text, such as a class or a number.

    If the spec has a doc_stride, long texts are split into windows and the logits of the windows are averaged.
    `answer_ids` does not average: it returns an answer for each row of token ids.
    """

    spec: TextSpec
    row_shape: ClassVar[list[int | None]] = [None]  # the shape of a row's logits

    def answer_rows(self, rows: Rows, texts: Mapping[str, Any]) -> dict[str, Any]:
        if rows.windows is None:
            return super().answer_rows(rows, texts)
        logits = tf.cast(self.compute_window_logits(rows.features, self.row_shape), tf.float64)
        means = tf.cast(tf.math.segment_mean(logits, rows.windows.texts), tf.float32)
        return _drop_logits(self.answer_logits(means))

    def read_texts(self, texts: Mapping[str, Any]) -> Rows:
        if not self.spec.doc_stride:
            return super().read_texts(texts)
        stride, (first, second) = self.spec.doc_stride, self.span_tokens(texts)
        if second is None:
            room = tf.fill(tf.shape(first.lengths), self.max_seq_length - 2)
            windows = truncation.build_windows(first.lengths, room, stride, tf)
            features = self.pack(first.gather_windows(windows), None)
            return Rows(features, tf.zeros_like(first.lengths, tf.bool), windows)
        room = self.max_seq_length - tf.where(second.lengths > 0, 3, 2)
        kept = first._replace(lengths=tf.minimum(first.lengths, room // 2))
        windows = truncation.build_windows(second.lengths, room - kept.lengths, stride, tf)
        features = self.pack(kept.gather_rows(windows.texts), second.gather_windows(windows), drop_empty=True)
        return Rows(features, kept.lengths < first.lengths, windows)


def _drop_logits(answers: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answers.items() if name != "logits"}


def _trace(function: Callable[..., dict[str, Any]], inputs: Mapping[str, Any]) -> Any:
    """Returns the concrete function of `function` for the given TensorSpecs, whose keys become the input names."""
    specs = {name: tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in inputs.items()}
    return tf.function(lambda **tensors: function(**tensors), autograph=False).get_concrete_function(**specs)
