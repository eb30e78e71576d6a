"""A task: what fine-tuning needs to know of it, the examples as the model reads them, and the losses.

R rows (what the model reads at once), N sequences in a row, T tokens of all sequences, C classes, S sequence
"""

import abc
import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.modeling import task_models
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils.bad_rows import BadRows

Array = npt.NDArray[Any]

TRAIN, DEV, TEST = "train", "dev", "test"
LABELS = "labels"  # the name of the targets of models with one output
EXAMPLE = "example"  # in Features.details: the number of the example that a row was made of
NO_LABEL = -1  # the tag of a token that is neither learned nor scored


@dataclasses.dataclass(frozen=True)
class Features:
    """Examples as the model reads them, unpadded: the rows lie one after the other.

    Attributes:
        input_ids: int32 [T].
        segment_ids: int32 [T].
        splits: int64 [R * N + 1]; sequence i is input_ids[splits[i] : splits[i + 1]].
        targets: what the model should give, by output; empty where the examples have no labels. Models with one output
            have LABELS: int32 [R] for classification and multiple choice, float32 [R, C] of 0 and 1 for multi_label,
            float32 [R] for regression, int32 [T] for tagging, with NO_LABEL where there is none. question_answering has
            start_logits and end_logits, int32 [R], positions within the sequence.
        details: further arrays, of any shape, that the task's `decode` needs, such as EXAMPLE, int64 [R].
        choices: N, 1 for all but multiple choice.
    """

    input_ids: Array
    segment_ids: Array
    splits: Array
    targets: dict[str, Array]
    details: dict[str, Array]
    choices: int = 1

    def __len__(self) -> int:
        return (len(self.splits) - 1) // self.choices


# The model's outputs for all rows, in order and without padding: a list of R arrays ([C], [], [S, C], [N]), or a dict
# of such lists where the model has several outputs.
Outputs = Any


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An example, what was expected and what was predicted, for a person to read.

    Attributes:
        text: the example.
        expected: the label or answer that is right.
        predicted: the model's.
        correct: whether they agree.
        certainty: the probability that the model gave to what it predicted; None where it gives none.
    """

    text: str
    expected: str
    predicted: str
    correct: bool
    certainty: float | None = None


class Task(abc.ABC):
    """How to read, featurize, score and write a task; a subclass a task, made from the task's options.

    Attributes:
        name: as --task names it.
        kind: one of task_models.KINDS.
        labels: the classes' names in the order of the logits; None where there are none.
        pair: whether an example has two texts.
        best_metric: which of the scores says which checkpoint is best; the greater the better.
        perfect: what that is at the best: 1, or 100 where scores are in percent.
        train_split: the part to train on.
        eval_splits: the parts with labels to evaluate on; the first one's best_metric decides.
        test_splits: the parts without labels to predict.
        num_choices: of multiple choice.
        settings: of featurize and decode, as JSON can hold them; they come into task.json.
        title: what a reader of the report calls it.
    """

    name: str
    kind: str
    labels: tuple[str, ...] | None = None
    pair: bool = False
    best_metric: str
    perfect: float = 1.0
    train_split: str = TRAIN
    eval_splits: tuple[str, ...] = (DEV,)
    test_splits: tuple[str, ...] = (TEST,)
    num_choices: int | None = None
    settings: Mapping[str, Any] = types.MappingProxyType({})

    @abc.abstractmethod
    def read(self, split: str, bad_rows: BadRows) -> list[Any]:
        """Returns the examples of a part, in its order.

        Args:
            split: one of `train_split`, `eval_splits` and `test_splits`.
            bad_rows: gets the rows that cannot be read, with file and line.

        Raises:
            UserError: a file is missing or has another layout.
        """

    @abc.abstractmethod
    def featurize(self, examples: Sequence[Any], tokenizer: FastTokenizer, max_seq_length: int) -> Features:
        """Returns the examples as the model reads them, with targets if all of them have labels."""

    @abc.abstractmethod
    def decode(self, outputs: Outputs, features: Features, examples: Sequence[Any]) -> Any:
        """Returns a prediction for each example, of any type, from the model's outputs for the features."""

    @abc.abstractmethod
    def metrics(self, predictions: Any, examples: Sequence[Any]) -> dict[str, float]:
        """Returns scores by name, as the official script computes them; the examples must have labels."""

    @abc.abstractmethod
    def write_predictions(self, folder: str, split: str, predictions: Any, examples: Sequence[Any]) -> list[str]:
        """Writes predictions for people and leaderboards into the folder, and returns the files' paths."""

    @abc.abstractmethod
    def outcomes(self, predictions: Any, examples: Sequence[Any]) -> list[Outcome]:
        """Returns an Outcome for each example; the examples must have labels."""

    @property
    def title(self) -> str:
        return self.name

    def notes(self) -> list[str]:
        """Returns what the user should know of how the task is understood."""
        return []

    def build_model(self, encoder: keras.Model, seed: int | None = None) -> keras.Model:
        """Returns the encoder with the task's head (see task_models)."""
        head = {name: self.settings[name] for name in ("head", "lstm_units") if name in self.settings}
        number = len(self.labels or ())
        return task_models.build(self.kind, encoder, number, self.num_choices or 0, seed, **head)

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        """Returns what task.json holds (see finetuned.save)."""
        return {
            "task": self.name,
            "kind": self.kind,
            "pair": self.pair,
            "labels": None if self.labels is None else list(self.labels),
            "num_choices": self.num_choices,
            "max_seq_length": max_seq_length,
            **self.settings,
        }


@keras.saving.register_keras_serializable(package="official_bert")
class TaggingLoss(keras.losses.Loss):
    """The cross-entropy of tags, averaged over the tokens that have one.

    Keras averages what `call` returns over all tokens, and then over the replicas. Each token's loss is therefore
    divided by the share of tokens that have a tag, over all replicas: after both averages what remains is the mean over
    the tokens with a tag, whatever the number of replicas.

    y_true is [B, S] int32, with NO_LABEL where there is no tag; y_pred is logits, [B, S, C]; `call` returns [B, S].
    Weights are those of rows, [B] or [B, 1], or of tokens, [B, S].
    """

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        # Keras would multiply weights [B] with losses [B, S] along the wrong axis.
        return super().__call__(y_true, y_pred, None if sample_weight is None else by_token(sample_weight))

    def token_losses(self, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
        """Returns the loss of each token, 0 where it has no tag, and 1 where it has one: both float32 [B, S]."""
        has_tag = keras.ops.cast(keras.ops.not_equal(y_true, NO_LABEL), "float32")
        tags = keras.ops.maximum(keras.ops.cast(y_true, "int32"), 0)
        losses = keras.losses.sparse_categorical_crossentropy(tags, y_pred, from_logits=True)  # [B, S]
        return losses * has_tag, has_tag

    def call(self, y_true: Any, y_pred: Any) -> Any:
        losses, has_tag = self.token_losses(y_true, y_pred)
        tagged_share = keras.ops.mean(has_tag)
        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            tagged_share = context.all_reduce(tf.distribute.ReduceOp.MEAN, tagged_share)
        return losses / keras.ops.maximum(tagged_share, 1e-9)


def by_token(weights: Any) -> Any:
    """Returns weights of rows, [B], as weights of their tokens, float32 [B, 1]; others stay as they are."""
    weights = tf.cast(weights, tf.float32)
    if weights.shape.rank is None:  # as where Keras has met both
        return tf.reshape(weights, [tf.shape(weights)[0], -1])
    return weights[:, None] if weights.shape.rank == 1 else weights


@keras.saving.register_keras_serializable(package="official_bert")
class SquaredError(keras.losses.Loss):
    """The squared errors of values, [B] and [B], one by one: Keras' own loss averages them before it weighs rows."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.square(y_pred - keras.ops.cast(y_true, y_pred.dtype))


def loss_of(kind: str) -> Any:
    """Returns the Keras loss, or losses by output, of a kind of task; for logits, as the original's."""
    if kind in (task_models.CLASSIFICATION, task_models.MULTIPLE_CHOICE):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if kind == task_models.MULTI_LABEL:
        return keras.losses.BinaryCrossentropy(from_logits=True)
    if kind == task_models.REGRESSION:
        return SquaredError()
    if kind == task_models.TAGGING:
        return TaggingLoss()
    return {
        name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in ("start_logits", "end_logits")
    }


def loss_weights_of(kind: str) -> dict[str, float] | None:
    """Returns the weights of several losses: the original takes the mean of the starts' and the ends'."""
    return {"start_logits": 0.5, "end_logits": 0.5} if kind == task_models.QUESTION_ANSWERING else None


def from_rows(
    ids: Sequence[Array],
    segment_ids: Sequence[Array],
    targets: dict[str, Array],
    details: dict[str, Array],
    choices: int = 1,
) -> Features:
    """Returns Features of a list of sequences; tagging's targets must be flat already."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    empty = [np.empty(0, np.int32)]
    return Features(
        np.concatenate([*ids, *empty]).astype(np.int32),
        np.concatenate([*segment_ids, *empty]).astype(np.int32),
        splits,
        targets,
        details,
        choices,
    )


def check_length(max_seq_length: int, least: int) -> None:
    """Raises a UserError if a sequence of that length has no room for a token beside the special ones."""
    if max_seq_length < least:
        raise UserError(
            f"max_seq_length is {max_seq_length}; expected at least {least}: the special tokens and one more"
        )
