"""What the kinds that answer a whole text or pair share (paper, section 4.1).

E examples, R rows, C classes
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import input_adapters
from official_bert.kinds.features import EXAMPLE, LABELS, Array, Features, Outputs, check_length
from official_bert.kinds.spec import KindSpec, Outcome
from official_bert.tokenization.exact import CLS, SEP, FullTokenizer
from official_bert.tokenization.truncation import build_windows, concatenate_ranges, truncate_lengths

if TYPE_CHECKING:
    pass


@dataclasses.dataclass(frozen=True)
class TextExample:
    """A text or a pair, with its label if it is known."""

    id: str  # its name in the file, or its number
    text_a: str  # the text, or the first one
    text_b: str | None = None  # the second one, or None
    # The number of its class, a tuple of numbers of classes, or a value. None if it is not known.
    label: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSpec(KindSpec):
    """The base class of kinds that answer a whole text or pair.

    A prediction is float64, [C] or []; a label is as in TextExample.

    Attributes:
        doc_stride: Tokens from one window of a long text to the next, or None to truncate (see `featurize`).
    """

    doc_stride: int | None = None

    @property
    def reads_windows(self) -> bool:
        return bool(self.doc_stride)

    @property
    def settings(self) -> dict[str, Any]:
        return {"doc_stride": self.doc_stride} if self.doc_stride else {}

    def examples(self, x: Any, y: Any) -> list[TextExample]:
        first, second = input_adapters.as_pairs(x) if self.pair else (input_adapters.as_texts(x), None)
        labels = [None] * len(first) if y is None else self.labels_from(y)
        input_adapters.check_same_length(len(first), labels, "y")
        return [
            TextExample(str(number), text, None if second is None else second[number], labels[number])
            for number, text in enumerate(first)
        ]

    def texts_of(self, examples: Sequence[TextExample]) -> dict[str, list[Any]]:
        columns = {"text": [example.text_a for example in examples]}
        return columns | ({"text_pair": [example.text_b or "" for example in examples]} if self.pair else {})

    @abc.abstractmethod
    def labels_from(self, y: Any) -> list[Any]:
        """Returns the labels in the y that a user passed."""

    def featurize(self, examples: Sequence[TextExample], tokenizer: FullTokenizer, max_seq_length: int) -> Features:
        features = featurize(examples, tokenizer, max_seq_length, self.doc_stride)
        labels = [example.label for example in examples]
        if not labels or any(label is None for label in labels):
            return features
        return dataclasses.replace(features, targets={LABELS: self.targets(labels)[features.details[EXAMPLE]]})

    @abc.abstractmethod
    def targets(self, labels: Sequence[Any]) -> Array:
        """Returns labels in the format of the loss, [E, ...]."""

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[TextExample]) -> Array:
        """Returns predictions from the mean logits of the windows of each example."""
        return self.activated(pooled(outputs, features, len(examples)))

    @abc.abstractmethod
    def activated(self, logits: Array) -> Array:
        """Returns predictions from the logits of examples."""

    @abc.abstractmethod
    def predicted_labels(self, predictions: Array) -> list[Any]:
        """Returns the labels of predictions."""

    @abc.abstractmethod
    def name_of(self, label: Any) -> str:
        """Returns a label as text."""

    def prediction_names(self, predictions: Array) -> list[str]:
        """Returns the names of the predicted labels, for prediction files and exports."""
        return [self.name_of(label) for label in self.predicted_labels(predictions)]

    def certainty(self, prediction: Any) -> float | None:
        """Returns the probability of the predicted label, or None for numbers."""
        return float(max(prediction))

    def outcomes(self, predictions: Array, examples: Sequence[TextExample]) -> list[Outcome]:
        outcomes = []
        labels = self.predicted_labels(predictions)
        for label, prediction, example in zip(labels, predictions, examples, strict=True):
            text = example.text_a if example.text_b is None else f"{example.text_a} ||| {example.text_b}"
            expected, predicted = self.name_of(example.label), self.name_of(label)
            outcomes.append(Outcome(text, expected, predicted, expected == predicted, self.certainty(prediction)))
        return outcomes

    # Distillation.

    @abc.abstractmethod
    def soft_targets(self, targets: Array, classes: int) -> Array:
        """Returns the labels of rows in the format of a teacher: probabilities or values, [R, C]."""


def featurize(
    examples: Sequence[TextExample], tokenizer: FullTokenizer, max_seq_length: int, doc_stride: int | None = None
) -> Features:
    """Returns [CLS] a [SEP] or [CLS] a [SEP] b [SEP] of each example, without targets, cut as the original cuts them.

    As in the original, a second text without tokens counts as none: [CLS] a [SEP].

    Args:
        examples: either all have two texts, or none.
        tokenizer: for their texts.
        max_seq_length: of a sequence, in tokens.
        doc_stride: None cuts what is too long. A number makes windows of it, each that many tokens after the one
            before: windows over the text, or over the second text with the first one in each window. Where a first text
            leaves less room for the second one, its windows are that much nearer to each other.

    Raises:
        UserError: there is no room for a token, or all windows would leave some out.
    """
    pair = bool(examples) and examples[0].text_b is not None
    check_length(max_seq_length, 4 if pair else 3)
    ids_a, splits_a = tokenizer.encode([example.text_a for example in examples])
    ids_b, splits_b = np.empty(0, np.int32), np.zeros(len(examples) + 1, np.int64)
    if pair:
        ids_b, splits_b = tokenizer.encode([example.text_b or "" for example in examples])
    lengths_a, lengths_b = np.diff(splits_a), np.diff(splits_b)
    numbers = np.arange(len(examples))
    starts_a, starts_b = splits_a[:-1], splits_b[:-1]
    room = max_seq_length - np.where(lengths_b > 0, 3, 2)  # [E], without [CLS] and one or two [SEP]
    whole = lengths_a + lengths_b if doc_stride is None else lengths_a if pair else np.zeros_like(lengths_a)
    is_cut = whole > (room if doc_stride is None else room // 2)
    most = max_seq_length - (3 if pair else 2)
    if doc_stride is not None and doc_stride > most:
        raise UserError(f"doc_stride is {doc_stride}, but only {most} tokens of the text fit in a window; lower it")
    if doc_stride is None:
        lengths_a, lengths_b = truncate_lengths(lengths_a, lengths_b, room)
    elif pair:
        lengths_a = np.minimum(lengths_a, room // 2)
        numbers, offsets, lengths_b = build_windows(lengths_b, room - lengths_a, doc_stride)
        starts_a, lengths_a, starts_b = starts_a[numbers], lengths_a[numbers], starts_b[numbers] + offsets
    else:
        numbers, offsets, lengths_a = build_windows(lengths_a, room, doc_stride)
        starts_a, starts_b, lengths_b = starts_a[numbers] + offsets, starts_b[numbers], lengths_b[numbers]
    cls, sep = tokenizer.convert_tokens_to_ids([CLS, SEP])
    ends_a = lengths_a + 2  # of [CLS] a [SEP]
    has_b = lengths_b > 0
    lengths = ends_a + lengths_b + has_b
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    first, last = splits[:-1], splits[1:] - 1
    ids = np.empty(splits[-1], np.int32)
    ids[first] = cls
    ids[first + ends_a - 1] = sep
    ids[last] = sep
    ids[concatenate_ranges(first + 1, lengths_a)] = ids_a[concatenate_ranges(starts_a, lengths_a)]
    segment_ids = np.zeros_like(ids)
    if pair:
        ids[concatenate_ranges(first + ends_a, lengths_b)] = ids_b[concatenate_ranges(starts_b, lengths_b)]
        segment_ids[concatenate_ranges(first + ends_a, lengths_b + has_b)] = 1
    return Features(ids, segment_ids, splits, {}, {EXAMPLE: numbers}, is_cut=is_cut)


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
