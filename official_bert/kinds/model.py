"""The base classes of the models of all kinds, and the layers that they share.

B batch, S sequence, H hidden size, C classes
"""

import abc
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import keras
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.spec import KindSpec
from official_bert.kinds.text_spec import TextSpec
from official_bert.modeling import bilstm, layer_names
from official_bert.modeling.dropout import Dropout
from official_bert.modeling.initialization import seeded_normal

DROPOUT_RATE = 0.1  # before every head except question answering, as in the original

Spec = TypeVar("Spec", bound=KindSpec)
AnyTextSpec = TypeVar("AnyTextSpec", bound=TextSpec)

# Names of Keras' losses and metrics of the difference between two numbers.
ERROR_LOSSES = ("MeanSquaredError", "MeanAbsoluteError", "Huber", "LogCosh")
ERROR_METRICS = ("MeanSquaredError", "RootMeanSquaredError", "MeanAbsoluteError", "LogCoshError")
SPARSE_METRICS = ("SparseCategoricalAccuracy", "SparseTopKCategoricalAccuracy", "SparseCategoricalCrossentropy")


class KindModel(abc.ABC, Generic[Spec]):
    """The layers, loss and Keras metrics of a kind.

    Args:
        spec: The spec of the kind.

    Attributes:
        keras_losses: Names of the classes of keras.losses that users may compile.
        keras_metrics: Names of the classes of keras.metrics that users may compile.
        keras_arguments: Arguments that these need, if they have them.
    """

    keras_losses: ClassVar[Sequence[str]] = ("SparseCategoricalCrossentropy",)
    keras_metrics: ClassVar[Sequence[str]] = SPARSE_METRICS
    keras_arguments: ClassVar[Mapping[str, Any]] = {"from_logits": True}

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def build(self, encoder: keras.Model, seed: int | None = None) -> keras.Model:
        """Returns the encoder with the head of the kind.

        Args:
            encoder: An encoder from `build_encoder`.
            seed: Seed of the new weights. None draws a random seed.
        """
        head_input = self.spec.head_input
        if not head_input.is_encoder:
            encoder = bilstm.extend_encoder(encoder, head_input.head, head_input.lstm_units, seed)
        return self.build_head(encoder, seed)

    @abc.abstractmethod
    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        """Returns the encoder, or the BiLSTM on it, with the head."""

    def answering_model(self, model: keras.Model) -> keras.Model:
        """Returns the model to train, whose outputs the spec decodes, from the result of `build`."""
        return model

    @abc.abstractmethod
    def loss(self) -> Any:
        """Returns the original's loss of logits, or a dict of losses by output."""

    def metrics(self) -> Any:
        """Returns the Keras metrics that `fit` shows next to the loss."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def graph_labels(self, element_spec: Any, is_batched: bool) -> Callable[[Any], Any] | None:
        """Returns a function from the labels of a tf.data.Dataset to targets, or None if that needs Python.

        Args:
            element_spec: The specification of the labels.
            is_batched: Whether the elements of the data set are batches.
        """
        return None


class TextKindModel(KindModel[AnyTextSpec]):
    """A model that answers a whole text or pair."""

    def has_simple_labels(self, element_spec: Any, is_batched: bool) -> bool:
        """Returns whether a text is one row, and its label in a data set one number or name."""
        is_tensor = isinstance(element_spec, tf.TensorSpec)
        return not self.spec.doc_stride and is_tensor and element_spec.shape.rank == int(is_batched)

    @abc.abstractmethod
    def soft_loss(self, targets: Any, logits: Any) -> Any:
        """Returns the loss of each row, [B], given probabilities or values [B, C] and logits [B, C]."""

    @abc.abstractmethod
    def soft_answers(self, logits: Any) -> Any:
        """Returns the probabilities or values, [B, C], of a teacher's logits, [B, C]."""


def create_model(spec: KindSpec) -> Any:
    """Creates the KindModel of a spec, an instance of the class `Model` in `spec.model_module()`."""
    return importlib.import_module(spec.model_module()).Model(spec)


def import_models() -> None:
    """Imports the models of all kinds, so that Keras finds their classes when it loads a .keras file."""
    for spec in SPECS.values():
        importlib.import_module(spec.model_module())


def add_pooled(encoder: keras.Model, dropout_rate: float) -> Any:
    """Returns the pooled output of an encoder after dropout, [B, H].

    Raises:
        UserError: If the encoder has no pooler.
    """
    if "pooled_output" not in encoder.output:
        raise UserError("the encoder has no pooled_output because its checkpoint has no pooler; use one with a pooler")
    return add_dropout(encoder, encoder.output["pooled_output"], dropout_rate)


def add_dropout(encoder: keras.Model, x: Any, rate: float) -> Any:
    """Returns `x` after the dropout of the head."""
    return Dropout(rate, name="head_dropout", dtype=_policy(encoder))(x)


def add_dense(encoder: keras.Model, x: Any, units: int, name: str, seed: int | None) -> Any:
    """Returns `x` after a dense layer that is initialized like the encoder, with biases of zero."""
    stddev = encoder.get_layer(layer_names.WORD_EMBEDDINGS).embeddings_initializer.stddev
    return keras.layers.Dense(
        units, kernel_initializer=seeded_normal(stddev, seed, name), name=name, dtype=_policy(encoder)
    )(x)


def add_float32(logits: Any) -> Any:
    """Returns logits as float32, whatever the dtype policy of the encoder is."""
    return keras.layers.Activation("linear", name="logits", dtype="float32")(logits)


def _policy(encoder: keras.Model) -> Any:
    return encoder.get_layer(layer_names.WORD_EMBEDDINGS).dtype_policy


def check_values(values: Any, received: Any, is_valid: Any, name: str, expected: str) -> Any:
    """Returns `values`, a tensor of a data set. The graph raises an error unless all of `is_valid` is true.

    Args:
        values: The tensor to return.
        received: The tensor that `values` was computed from.
        is_valid: Which elements of `received` are valid, bool of the same shape.
        name: The noun for an element, such as "label".
        expected: Description of valid elements.
    """
    first_wrong = tf.strings.format("{}", tf.boolean_mask(received, ~is_valid)[:1])
    first_wrong = tf.strings.regex_replace(first_wrong, r'^\["?|"?\]$', "")
    problem = tf.strings.join([f"a {name} of the data set is ", first_wrong, f"; expected {expected}"])
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(is_valid), [problem])]):
        return tf.identity(values)
