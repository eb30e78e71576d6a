"""Tasks of whole texts and pairs: classification with one label or several, and regression.

E examples, R rows, C classes, T tokens
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.modeling import task_models
from official_bert.tasks.task import EXAMPLE, LABELS, Array, Features, Outcome, Outputs, Task, check_length
from official_bert.tokenization.exact import CLS, SEP
from official_bert.tokenization.fast import FastTokenizer
from official_bert.tokenization.pairs import lengths_truncated_at_the_end
from official_bert.utils import files


@dataclasses.dataclass(frozen=True)
class TextExample:
    """A text or a pair, and what is known of it.

    Attributes:
        id: what the file calls it, or its number.
        text_a: the text, or the first one.
        text_b: the second one, or None.
        label: the number of its class; a tuple of such numbers for multi_label; a number for regression; None where it
            is not known.
    """

    id: str
    text_a: str
    text_b: str | None = None
    label: Any = None


class SequenceTask(Task):
    """A task of whole texts or pairs.

    Args:
        name: as --task names it.
        kind: classification, multi_label or regression.
        labels: the classes' names; None for regression.
        pair: whether an example has two texts.
        doc_stride: see `featurize`.
    """

    def __init__(
        self, *, name: str, kind: str, labels: tuple[str, ...] | None, pair: bool, doc_stride: int | None
    ) -> None:
        self.name, self.kind, self.labels, self.pair, self.doc_stride = name, kind, labels, pair, doc_stride
        self.settings = {"doc_stride": doc_stride} if doc_stride else {}

    def featurize(self, examples: Sequence[TextExample], tokenizer: FastTokenizer, max_seq_length: int) -> Features:
        num_labels = len(self.labels or ())
        return featurize(
            examples, tokenizer, max_seq_length, kind=self.kind, num_labels=num_labels, doc_stride=self.doc_stride
        )

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[TextExample]) -> Array:
        return decode(outputs, features, examples, kind=self.kind)

    def outcomes(self, predictions: Array, examples: Sequence[TextExample]) -> list[Outcome]:
        outcomes = []
        labels = predicted_labels(self.kind, predictions)
        for label, prediction, example in zip(labels, predictions, examples, strict=True):
            text = example.text_a if example.text_b is None else f"{example.text_a} ||| {example.text_b}"
            expected, predicted = (names_of(self.kind, self.labels, each) for each in (example.label, label))
            outcomes.append(
                Outcome(text, expected, predicted, expected == predicted, _certainty(self.kind, prediction))
            )
        return outcomes

    def write_predictions(
        self, folder: str, split: str, predictions: Array, examples: Sequence[TextExample]
    ) -> list[str]:
        return [write_table(folder, split, self.kind, self.labels, predictions, examples)]


def _certainty(kind: str, prediction: Any) -> float | None:
    """The probability of the predicted class; of several labels, that of the least certain decision."""
    if kind == task_models.REGRESSION:
        return None
    probabilities = np.maximum(prediction, 1.0 - prediction) if kind == task_models.MULTI_LABEL else [max(prediction)]
    return float(min(probabilities))


def featurizer(
    kind: str, num_labels: int, doc_stride: int | None = None
) -> Callable[[Sequence[TextExample], FastTokenizer, int], Features]:
    """Returns `featurize` for a kind of task."""
    return functools.partial(featurize, kind=kind, num_labels=num_labels, doc_stride=doc_stride)


def featurize(
    examples: Sequence[TextExample],
    tokenizer: FastTokenizer,
    max_seq_length: int,
    *,
    kind: str,
    num_labels: int,
    doc_stride: int | None = None,
) -> Features:
    """Returns [CLS] a [SEP] or [CLS] a [SEP] b [SEP] of each example, cut as fine-tuning of the original cuts them.

    As in the original, a second text without tokens counts as none: [CLS] a [SEP].

    Args:
        examples: either all have two texts, or none.
        tokenizer: for their texts.
        max_seq_length: of a sequence, in tokens.
        kind: classification, multi_label or regression.
        num_labels: C.
        doc_stride: None cuts what is too long. A number makes windows of it, each that many tokens after the one
            before: windows over the text, or over the second text with the first one in each window.

    Raises:
        UserError: there is no room for a token, or the windows leave some out.
    """
    pair = bool(examples) and examples[0].text_b is not None
    check_length(max_seq_length, 4 if pair else 3)
    ids_a, splits_a = tokenizer.encode([example.text_a for example in examples])
    ids_b, splits_b = tokenizer.encode([example.text_b or "" for example in examples])
    lengths_a, lengths_b = np.diff(splits_a), np.diff(splits_b)
    numbers = np.arange(len(examples))
    starts_a, starts_b = splits_a[:-1], splits_b[:-1]
    room = max_seq_length - np.where(lengths_b > 0, 3, 2)  # [E], without [CLS] and one or two [SEP]
    if doc_stride is None:
        lengths_a, lengths_b = lengths_truncated_at_the_end(lengths_a, lengths_b, room)
    elif pair:
        lengths_a = np.minimum(lengths_a, room // 2)
        numbers, offsets, lengths_b = _windows(lengths_b, room - lengths_a, doc_stride)
        starts_a, lengths_a, starts_b = starts_a[numbers], lengths_a[numbers], starts_b[numbers] + offsets
    else:
        numbers, offsets, lengths_a = _windows(lengths_a, room, doc_stride)
        starts_a, starts_b, lengths_b = starts_a[numbers] + offsets, starts_b[numbers], lengths_b[numbers]
    cls, sep = tokenizer.exact.convert_tokens_to_ids([CLS, SEP])
    ends_a = lengths_a + 2  # of [CLS] a [SEP]
    has_b = lengths_b > 0
    lengths = ends_a + lengths_b + has_b
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    first, last = splits[:-1], splits[1:] - 1
    ids = np.empty(splits[-1], np.int32)
    ids[first] = cls
    ids[first + ends_a - 1] = sep
    ids[last] = sep
    ids[_ranges(first + 1, lengths_a)] = ids_a[_ranges(starts_a, lengths_a)]
    segment_ids = np.zeros_like(ids)
    if pair:
        ids[_ranges(first + ends_a, lengths_b)] = ids_b[_ranges(starts_b, lengths_b)]
        segment_ids[_ranges(first + ends_a, lengths_b + has_b)] = 1
    targets = _targets(examples, kind, num_labels)
    return Features(
        ids, segment_ids, splits, {name: each[numbers] for name, each in targets.items()}, {EXAMPLE: numbers}
    )


def _windows(lengths: Array, room: Array, stride: int) -> tuple[Array, Array, Array]:
    """Returns the text's number, the offset and the length of each window; every text has one, an empty one too."""
    if (room < stride).any():
        raise UserError(f"doc_stride is {stride}, but only {room.min()} tokens of the text fit in a window; lower it")
    counts = 1 + np.maximum(0, -(-(lengths - room) // stride))
    numbers = np.repeat(np.arange(len(lengths)), counts)
    offsets = stride * _ranges(np.zeros_like(counts), counts)
    return numbers, offsets, np.minimum(room[numbers], lengths[numbers] - offsets)


def _ranges(starts: Array, lengths: Array) -> Array:
    """Returns start, start + 1, ... of each range, one range after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)


def _targets(examples: Sequence[TextExample], kind: str, num_labels: int) -> dict[str, Array]:
    labels = [example.label for example in examples]
    if not labels or any(label is None for label in labels):
        return {}
    if kind == task_models.REGRESSION:
        return {LABELS: np.array(labels, np.float32)}
    if kind == task_models.CLASSIFICATION:
        return {LABELS: np.array(labels, np.int32)}
    return {LABELS: several_hot(labels, num_labels)}


def several_hot(labels: Sequence[Sequence[int]], num_labels: int) -> Array:
    """Returns rows of 0 and 1, float32 [E, C], from the numbers of the classes that each example has."""
    rows = np.zeros((len(labels), num_labels), np.float32)
    for row, chosen in zip(rows, labels, strict=True):
        row[list(chosen)] = 1.0
    return rows


def decoder(kind: str) -> Callable[[Outputs, Features, Sequence[TextExample]], Array]:
    """Returns `decode` for a kind of task."""
    return functools.partial(decode, kind=kind)


def decode(outputs: Outputs, features: Features, examples: Sequence[TextExample], *, kind: str) -> Array:
    """Returns predictions: the logits of each example's windows are averaged, and become probabilities.

    They are float64 [E, C] probabilities (of multi_label each by itself), or [E] values for regression.
    """
    means = pooled(outputs, features, len(examples))
    if kind == task_models.REGRESSION:
        return means
    if kind == task_models.MULTI_LABEL:
        return np.asarray(1.0 / (1.0 + np.exp(-means)))
    return softmax(means)


def pooled(outputs: Outputs, features: Features, examples: int) -> Array:
    """Returns the mean of the logits of each example's windows: float64 [E, C], or [E] for regression."""
    if not len(outputs):
        return np.empty(0)
    logits = np.asarray(np.stack(outputs), np.float64)
    numbers = features.details[EXAMPLE]
    sums = np.zeros((examples, *logits.shape[1:]))
    np.add.at(sums, numbers, logits)
    counts = np.bincount(numbers, minlength=examples)
    return np.asarray(sums / counts.reshape(-1, *[1] * (logits.ndim - 1)))


def softmax(logits: Array) -> Array:
    """Returns the probabilities of the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def classes(predictions: Array) -> Array:
    """Returns the number of the likeliest class of each example."""
    return np.asarray(np.argmax(predictions, axis=-1))


def names_of(kind: str, labels: Sequence[str] | None, label: Any) -> str:
    """Returns a label as people read it: the class's name, several names, or the number."""
    if kind == task_models.REGRESSION:
        return f"{label:.3f}"
    if kind == task_models.MULTI_LABEL:
        return ", ".join((labels or ())[number] for number in label) or "(none)"
    return (labels or ())[label]


def predicted_labels(kind: str, predictions: Array) -> list[Any]:
    """Returns the labels of predictions, as in TextExample."""
    if kind == task_models.REGRESSION:
        return [float(value) for value in predictions]
    if kind == task_models.MULTI_LABEL:
        return [tuple(np.flatnonzero(row > 0.5).tolist()) for row in predictions]
    return [int(number) for number in classes(predictions)]


def write_table(
    folder: str,
    split: str,
    kind: str,
    labels: Sequence[str] | None,
    predictions: Array,
    examples: Sequence[TextExample],
) -> str:
    """Writes predictions_<split>.tsv and returns its path: id, prediction, what was expected, probabilities."""
    columns = ["id", "prediction", "expected"]
    if kind != task_models.REGRESSION:
        columns += [f"probability of {name}" for name in labels or ()]
    rows = ["\t".join(columns)]
    for example, label, row in zip(examples, predicted_labels(kind, predictions), predictions, strict=True):
        expected = "" if example.label is None else names_of(kind, labels, example.label)
        numbers = [] if kind == task_models.REGRESSION else [f"{value:.6f}" for value in row]
        cells = [example.id, names_of(kind, labels, label), expected, *numbers]
        rows.append("\t".join(" ".join(cell.split()) for cell in cells))
    path = os.path.join(folder, f"predictions_{split}.tsv")
    files.write_text(path, "\n".join(rows) + "\n")
    return path
