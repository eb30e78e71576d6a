"""A task: all that the fine-tuning runner wants to know of it.

R rows (what the model reads at once), N sequences in a row, T tokens of all sequences, C classes, S sequence
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_bert import task_models
from official_bert.errors import UserError
from official_bert.fast_tokenization import FastTokenizer
from official_bert.tasks.bad_rows import BadRows

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
            start_logits and end_logits, int32 [R], places within the sequence.
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
class Defaults:
    """Settings for training where the user gives none: those of the original's scripts."""

    train_batch_size: int = 32
    learning_rate: float = 5e-5
    num_train_epochs: float = 3.0
    max_seq_length: int = 128


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An example, what was expected and what was predicted, for a person to read; `correct` where they agree."""

    text: str
    expected: str
    predicted: str
    correct: bool


@dataclasses.dataclass(frozen=True)
class Task:
    """How to read, featurize, score and write a task.

    Attributes:
        name: as --task names it.
        kind: one of task_models.KINDS.
        labels: the classes' names in the order of the logits; None where there are none.
        pair: whether an example has two texts.
        read: (data_dir, split, bad_rows) -> examples, a list of anything; split is one of `train_split`, `eval_splits`,
            `test_splits`. Rows that cannot be read are told to `bad_rows`, with file and line; a missing file is a
            UserError.
        featurize: (examples, tokenizer, max_seq_length) -> Features.
        decode: (outputs, features, examples) -> predictions, one for each example, of any type.
        metrics: (predictions, examples) -> scores by name, as the official script computes them.
        best_metric: which of the scores says which checkpoint is best; the greater the better.
        perfect: what that is at the best: 1, or 100 where scores are in percent.
        write_predictions: (folder, split, predictions, examples) -> paths of what it has written for people and
            leaderboards.
        outcomes: (predictions, examples) -> an Outcome for each example; they must have labels.
        read_tfds: as `read`, from TensorFlow Datasets, with its folder (or None) as data_dir; None where it has no set.
        train_split: what `read` calls it.
        eval_splits: the first one's best_metric decides.
        test_splits: splits without labels to predict.
        num_choices: of multiple choice.
        defaults: for training.
        settings: of featurize and decode, as JSON can hold them; they come into task.json.
    """

    name: str
    kind: str
    labels: tuple[str, ...] | None
    pair: bool
    read: Callable[[str, str, BadRows], list[Any]]
    featurize: Callable[[Sequence[Any], FastTokenizer, int], Features]
    decode: Callable[[Outputs, Features, Sequence[Any]], Any]
    metrics: Callable[[Any, Sequence[Any]], dict[str, float]]
    best_metric: str
    write_predictions: Callable[[str, str, Any, Sequence[Any]], list[str]]
    outcomes: Callable[[Any, Sequence[Any]], list[Outcome]]
    read_tfds: Callable[[str | None, str, BadRows], list[Any]] | None = None
    train_split: str = TRAIN
    eval_splits: tuple[str, ...] = (DEV,)
    test_splits: tuple[str, ...] = (TEST,)
    num_choices: int | None = None
    perfect: float = 1.0
    defaults: Defaults = Defaults()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def build_model(self, encoder: keras.Model, seed: int | None = None) -> keras.Model:
        """Returns the encoder with the task's head (see task_models)."""
        return task_models.build(self.kind, encoder, len(self.labels or ()), self.num_choices or 0, seed)

    def description(self, max_seq_length: int) -> dict[str, Any]:
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
    """The mean cross-entropy of the tokens that have a tag: [B, S] int32, NO_LABEL for none, and logits [B, S, C].

    `call` returns each token's share, [B, S], whose mean that is; over several replicas, whose mean of means that is.
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        has_tag = keras.ops.cast(keras.ops.not_equal(y_true, NO_LABEL), "float32")
        tags = keras.ops.maximum(keras.ops.cast(y_true, "int32"), 0)
        losses = keras.losses.sparse_categorical_crossentropy(tags, y_pred, from_logits=True)  # [B, S]
        share = keras.ops.mean(has_tag)
        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            share = context.all_reduce(tf.distribute.ReduceOp.MEAN, share)
        return losses * has_tag / keras.ops.maximum(share, 1e-9)


@keras.saving.register_keras_serializable(package="official_bert")
class SquaredError(keras.losses.Loss):
    """The squared errors of values, [B]; Keras' own loss takes their mean before it weighs the rows."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.square(y_pred - keras.ops.cast(y_true, y_pred.dtype))


def loss_of(kind: str) -> Any:
    """Returns the Keras loss, or losses by output, of a kind of task; for logits, as the original's."""

    def choice() -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    if kind in (task_models.CLASSIFICATION, task_models.MULTIPLE_CHOICE):
        return choice()
    if kind == task_models.MULTI_LABEL:
        return keras.losses.BinaryCrossentropy(from_logits=True)
    if kind == task_models.REGRESSION:
        return SquaredError()
    if kind == task_models.TAGGING:
        return TaggingLoss()
    return {"start_logits": choice(), "end_logits": choice()}


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
    """Returns Features of sequences given one by one; tagging's targets must be flat already."""
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
    """Raises a UserError if no token would have a place beside the special ones."""
    if max_seq_length < least:
        raise UserError(
            f"max_seq_length is {max_seq_length}; expected at least {least}: the special tokens and one more"
        )
