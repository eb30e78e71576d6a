"""Encoders with a head for a task, as functional keras.Models that users compile and fit (paper, figure 4).

Each function takes an encoder, as official_bert.load or build_encoder returns it, and continues its graph, so that the
model shares the encoder's weights. Inputs are the encoder's: input_ids, input_mask and segment_ids, [B, S] int32.
Logits are float32, whatever the encoder's dtype policy.

B batch, S sequence, H hidden size, C classes, N choices
"""

from typing import Any

import keras
from keras import ops

from official_bert.errors import UserError
from official_bert.modeling import layer_names
from official_bert.modeling.choices import CLASSIFICATION as CLASSIFICATION
from official_bert.modeling.choices import KINDS as KINDS
from official_bert.modeling.choices import MULTI_LABEL as MULTI_LABEL
from official_bert.modeling.choices import MULTIPLE_CHOICE as MULTIPLE_CHOICE
from official_bert.modeling.choices import QUESTION_ANSWERING as QUESTION_ANSWERING
from official_bert.modeling.choices import REGRESSION as REGRESSION
from official_bert.modeling.choices import TAGGING as TAGGING
from official_bert.modeling.choices import VECTORS as VECTORS
from official_bert.modeling.dropout import Dropout
from official_bert.modeling.encoder import sequence_inputs
from official_bert.modeling.head_input import ENCODER_ITSELF, HeadInput
from official_bert.modeling.initialization import seeded_normal

DROPOUT_RATE = 0.1  # the original's, before every head but that of questions

_PADDING = -1e9  # the logit of a position without a token


@keras.saving.register_keras_serializable(package="official_bert")
class WithoutAxis(keras.layers.Layer):
    """Takes the last axis, of size 1, away: [..., 1] to [...]."""

    def call(self, inputs: Any) -> Any:
        return inputs[..., 0]


@keras.saving.register_keras_serializable(package="official_bert")
class SpanLogits(keras.layers.Layer):
    """Splits scores into those of starts and ends: [B, S, 2] and [B, S] int32 to two of [B, S] float32.

    Padding gets a logit of -1e9, so that it takes no part whatever length a batch is padded to. The original leaves
    padding in.
    """

    def call(self, inputs: Any) -> Any:
        scores, input_mask = inputs
        scores = ops.where(input_mask[..., None] > 0, ops.cast(scores, "float32"), _PADDING)  # [B, S, 2]
        return {"start_logits": scores[..., 0], "end_logits": scores[..., 1]}


@keras.saving.register_keras_serializable(package="official_bert")
class FoldChoices(keras.layers.Layer):
    """Makes a row of each choice: [B, N, S] to [B * N, S]."""

    def call(self, inputs: Any) -> Any:
        return ops.reshape(inputs, (-1, ops.shape(inputs)[-1]))

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor((None, inputs.shape[-1]), dtype=inputs.dtype)


@keras.saving.register_keras_serializable(package="official_bert")
class UnfoldChoices(keras.layers.Layer):
    """Puts the choices of an example beside each other: [B * N, 1] to [B, N]; N is `num_choices`."""

    def __init__(self, num_choices: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_choices = num_choices

    def call(self, scores: Any) -> Any:
        return ops.reshape(scores, (-1, self.num_choices))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_choices": self.num_choices}


def build_classifier(
    encoder: keras.Model, num_labels: int, dropout_rate: float = DROPOUT_RATE, seed: int | None = None
) -> keras.Model:
    """Returns a model of texts or pairs: dropout and a dense layer on the pooled output give logits, [B, C].

    For one class of many take the softmax of the logits, for any number of labels (multi-label) their sigmoid.

    Args:
        encoder: with pooled_output.
        num_labels: C.
        dropout_rate: of the pooled output while training.
        seed: of the new weights; None for any.
    """
    logits = _dense(encoder, _pooled(encoder, dropout_rate), num_labels, "sequence_classifier", seed)
    return keras.Model(encoder.input, _float32(logits), name="classifier")


def build_regressor(encoder: keras.Model, dropout_rate: float = DROPOUT_RATE, seed: int | None = None) -> keras.Model:
    """Returns a model of texts or pairs that gives a number, [B]; arguments as for `build_classifier`."""
    value = _dense(encoder, _pooled(encoder, dropout_rate), 1, "sequence_classifier", seed)
    value = WithoutAxis(name="value", dtype="float32")(_float32(value))
    return keras.Model(encoder.input, value, name="regressor")


def build_token_tagger(
    encoder: keras.Model, num_labels: int, dropout_rate: float = DROPOUT_RATE, seed: int | None = None
) -> keras.Model:
    """Returns a model that gives every position logits, [B, S, C]; arguments as for `build_classifier`."""
    x = Dropout(dropout_rate, name="head_dropout", dtype=_policy(encoder))(encoder.output["sequence_output"])
    logits = _dense(encoder, x, num_labels, "token_classifier", seed)
    return keras.Model(encoder.input, _float32(logits), name="token_tagger")


def build_span_predictor(encoder: keras.Model, seed: int | None = None) -> keras.Model:
    """Returns a model of questions and contexts: {"start_logits", "end_logits"}, each [B, S].

    As in the original there is no dropout before the head. `seed` is of the new weights; None for any.
    """
    scores = _dense(encoder, encoder.output["sequence_output"], 2, "question_answering", seed)
    logits = SpanLogits(name="span_logits", dtype="float32")([scores, encoder.input["input_mask"]])
    return keras.Model(encoder.input, logits, name="span_predictor")


def build_multiple_choice_model(
    encoder: keras.Model, num_choices: int, dropout_rate: float = DROPOUT_RATE, seed: int | None = None
) -> keras.Model:
    """Returns a model that scores the choices of an example: inputs [B, N, S] to logits [B, N].

    Each choice is a sequence by itself; a vector, the same for all, gives the score of its pooled output. num_choices
    is N; the other arguments are as for `build_classifier`.
    """
    shape = (num_choices, None)
    inputs = {name: keras.Input(shape, dtype="int32", name=name) for name in sequence_inputs()}  # [B, N, S]
    head = keras.Model(encoder.input, _pooled(encoder, dropout_rate), name=layer_names.CHOICE_ENCODER)
    pooled = head({name: FoldChoices(name=f"fold_{name}", dtype="int32")(each) for name, each in inputs.items()})
    scores = _dense(encoder, pooled, 1, layer_names.MULTIPLE_CHOICE, seed)  # [B * N, 1]
    logits = UnfoldChoices(num_choices, name="unfold_choices", dtype="float32")(_float32(scores))
    return keras.Model(inputs, logits, name="multiple_choice_model")


def build(
    kind: str,
    encoder: keras.Model,
    num_labels: int = 0,
    num_choices: int = 0,
    seed: int | None = None,
    head_input: HeadInput = ENCODER_ITSELF,
) -> keras.Model:
    """Returns the model for a kind of task.

    Args:
        kind: one of KINDS, or VECTORS.
        encoder: the encoder, with pooled_output where the kind needs it.
        num_labels: of classification, multi_label and tagging.
        num_choices: of multiple_choice.
        seed: of the new weights; None for any.
        head_input: What the task's layer reads.

    Raises:
        UserError: the kind is unknown.
    """
    encoder = head_input.extend(encoder, seed)
    if kind in (CLASSIFICATION, MULTI_LABEL):
        return build_classifier(encoder, num_labels, seed=seed)
    if kind == REGRESSION:
        return build_regressor(encoder, seed=seed)
    if kind == TAGGING:
        return build_token_tagger(encoder, num_labels, seed=seed)
    if kind == QUESTION_ANSWERING:
        return build_span_predictor(encoder, seed=seed)
    if kind == MULTIPLE_CHOICE:
        return build_multiple_choice_model(encoder, num_choices, seed=seed)
    if kind == VECTORS:  # which have no weights of their own: see pooling.build_vector_model
        return encoder
    raise UserError(f"unknown kind of task {kind!r}; expected one of {', '.join(KINDS)}")


def _policy(encoder: keras.Model) -> Any:
    return encoder.get_layer(layer_names.WORD_EMBEDDINGS).dtype_policy


def _pooled(encoder: keras.Model, dropout_rate: float) -> Any:
    if "pooled_output" not in encoder.output:
        raise UserError("the encoder has no pooled_output, since its checkpoint has no pooler; take one that has")
    return Dropout(dropout_rate, name="head_dropout", dtype=_policy(encoder))(encoder.output["pooled_output"])


def _dense(encoder: keras.Model, x: Any, units: int, name: str, seed: int | None) -> Any:
    """A dense layer that starts as the encoder's matrices do, with biases of zero."""
    stddev = encoder.get_layer(layer_names.WORD_EMBEDDINGS).embeddings_initializer.stddev
    return keras.layers.Dense(
        units, kernel_initializer=seeded_normal(stddev, seed, name), name=name, dtype=_policy(encoder)
    )(x)


def _float32(logits: Any) -> Any:
    return keras.layers.Activation("linear", name="logits", dtype="float32")(logits)
