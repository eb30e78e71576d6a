"""Base classes of the Keras models of all kinds of task, and the layers that several heads share.

B batch size, S sequence length, H hidden size, C classes
"""

import abc
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import keras

from official_bert.errors import UserError
from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.losses import TagAccuracy, TaggingLoss
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
    """Base class of the Keras head, loss and metrics of a kind of task. The subclasses are in kinds/<kind>/model.py.

    Args:
        spec: The settings of the kind, such as its class names.

    Attributes:
        keras_losses: Names of the classes in keras.losses that users may pass to `compile`.
        keras_metrics: Names of the classes in keras.metrics that users may pass to `compile`.
        keras_arguments: The arguments that these must have, such as from_logits=True, if their class has them.
    """

    keras_losses: ClassVar[Sequence[str]] = ("SparseCategoricalCrossentropy",)
    keras_metrics: ClassVar[Sequence[str]] = SPARSE_METRICS
    keras_arguments: ClassVar[Mapping[str, Any]] = {"from_logits": True}

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def build(self, encoder: keras.Model, seed: int | None = None) -> keras.Model:
        """Returns a Keras model of the encoder, a BiLSTM if `spec.head_input` has one, and the head.

        Args:
            encoder: An encoder from `build_encoder`.
            seed: Seed of the initial weights of the new layers. None draws a random seed.
        """
        head_input = self.spec.head_input
        if not head_input.is_encoder:
            encoder = bilstm.extend_encoder(encoder, head_input.head, head_input.lstm_units, seed)
        return self.build_head(encoder, seed)

    @abc.abstractmethod
    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        """Returns a Keras model of the encoder and the head.

        Args:
            encoder: An encoder, or an encoder with a BiLSTM on top.
            seed: Seed of the initial weights of the head. None draws a random seed.
        """

    def answering_model(self, model: keras.Model) -> keras.Model:
        """Returns the model that is trained and whose outputs the spec decodes.

        The vectors kind adds pooling to `model` here.

        Args:
            model: The result of `build`.
        """
        return model

    def loss(self) -> Any:
        """Returns the loss of this kind in the original: a Keras loss of logits, or a dict of losses by output name."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def metrics(self) -> Any:
        """Returns the Keras metrics that `fit` shows by default, as a list, or as a dict of lists by output name."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


class TokenKindModel(KindModel[Spec]):
    """Base class for kinds with a target for each token, or NO_LABEL. The loss is the mean over the other tokens."""

    keras_metrics = ("SparseCategoricalCrossentropy",)
    keras_arguments: ClassVar[Mapping[str, Any]] = {"from_logits": True, "ignore_class": NO_LABEL}

    def loss(self) -> TaggingLoss:
        return TaggingLoss()

    def metrics(self) -> Any:
        return [TagAccuracy(name="accuracy")]


class TextKindModel(KindModel[AnyTextSpec]):
    """Base class for kinds with one answer per text or text pair."""

    @abc.abstractmethod
    def soft_loss(self, targets: Any, logits: Any) -> Any:
        """Returns the distillation loss of each example, [B].

        Args:
            targets: The teacher's answers: probabilities, or values for regression, [B, C].
            logits: The student's logits, [B, C].
        """

    @abc.abstractmethod
    def soft_answers(self, logits: Any) -> Any:
        """Converts a teacher's logits to the targets of distillation: probabilities, or values for regression.

        Both are [B, C].
        """


def create_kind_model(spec: KindSpec) -> Any:
    """Creates the KindModel (head, loss and metrics) that belongs to a spec."""
    return importlib.import_module(spec.model_module()).Model(spec)


def import_models() -> None:
    """Imports the model.py of each kind, so that Keras finds the custom layers and losses of a .keras file."""
    for spec in SPECS.values():
        importlib.import_module(spec.model_module())


def get_pooled(encoder: keras.Model) -> Any:
    """Returns the pooled output of an encoder, [B, H].

    Raises:
        UserError: If the encoder has no pooler.
    """
    if "pooled_output" not in encoder.output:
        raise UserError("the encoder has no pooled_output because its checkpoint has no pooler; use one with a pooler")
    return encoder.output["pooled_output"]


def add_head(
    encoder: keras.Model, x: Any, units: int, layer: str, dropout_rate: float, seed: int | None, name: str | None
) -> Any:
    """Applies the layers of a head to `x`, and returns float32 logits.

    Args:
        encoder: The encoder.
        x: The input of the head.
        units: Size of the output.
        layer: Name of the dense layer.
        dropout_rate: Dropout rate of the input in training.
        seed: Seed of the initial weights. None draws a random seed.
        name: Prefix of the names of all layers. None means no prefix.
    """
    prefix = f"{name}_" if name else ""
    x = add_dropout(encoder, x, dropout_rate, prefix)
    return add_float32(add_dense(encoder, x, units, prefix + layer, seed), prefix)


def add_dropout(encoder: keras.Model, x: Any, rate: float, prefix: str = "") -> Any:
    """Applies the dropout layer of the head, named head_dropout, to `x`."""
    return Dropout(rate, name=f"{prefix}head_dropout", dtype=_policy(encoder))(x)


def add_dense(encoder: keras.Model, x: Any, units: int, name: str, seed: int | None) -> Any:
    """Applies a new dense layer to `x`. Its weights are initialized as the encoder's, and its biases are zero.

    Args:
        encoder: The encoder, for the initializer and the dtype policy.
        x: The input of the layer.
        units: Size of the output.
        name: Name of the layer.
        seed: Seed of the initial weights. None draws a random seed.
    """
    stddev = encoder.get_layer(layer_names.WORD_EMBEDDINGS).embeddings_initializer.stddev
    return keras.layers.Dense(
        units, kernel_initializer=seeded_normal(stddev, seed, name), name=name, dtype=_policy(encoder)
    )(x)


def add_float32(logits: Any, prefix: str = "") -> Any:
    """Converts logits to float32 with a layer, even if the encoder uses mixed precision."""
    return keras.layers.Activation("linear", name=f"{prefix}logits", dtype="float32")(logits)


def _policy(encoder: keras.Model) -> Any:
    return encoder.get_layer(layer_names.WORD_EMBEDDINGS).dtype_policy
