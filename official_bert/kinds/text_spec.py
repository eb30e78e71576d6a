"""Base classes of the kinds with one answer per text or text pair (paper, section 4.1).

E examples, R rows of the model's input (texts, or windows of long texts), C classes
"""

import abc
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import class_labels, input_adapters, probabilities
from official_bert.kinds.class_labels import BALANCED
from official_bert.kinds.features import EXAMPLE, LABELS, Array, Features, Outputs, check_length, describe_truncation
from official_bert.kinds.spec import DecisionOptions, KindSpec, Outcome
from official_bert.tokenization.exact import CLS, SEP, FullTokenizer
from official_bert.tokenization.truncation import build_windows, concatenate_ranges, truncate_lengths


@dataclasses.dataclass(frozen=True)
class TextExample:
    """A text or text pair, with its label if it is known."""

    id: str  # the identifier in the file, or the index
    text_a: str
    text_b: str | None = None
    # The index of the class, a tuple of indices of classes, or a number. None if it is not known.
    label: Any = None
    row: Array | None = None  # the label as a number for each class, float32 [C], if it was given in this form


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSpec(KindSpec):
    """Base class of the kinds with one answer per text or text pair.

    A prediction is a float64 array: [C] probabilities, or a number. Labels are class indices, tuples of class indices
    or numbers, as in TextExample.label.

    Attributes:
        doc_stride: Number of tokens between the starts of two windows of a long text. None truncates long texts
            instead.
    """

    doc_stride: int | None = None

    @property
    def reads_windows(self) -> bool:
        return bool(self.doc_stride)

    def make_examples(self, x: Any, y: Any) -> list[TextExample]:
        first, second = input_adapters.to_pairs(x) if self.pair else (input_adapters.to_texts(x), None)
        labels = [None] * len(first) if y is None else self.parse_labels(y)
        input_adapters.check_same_length(len(first), labels, "y")
        rows = None if y is None else self.parse_rows(y)
        parts = (first, second or itertools.repeat(None), labels, itertools.repeat(None) if rows is None else rows)
        return [TextExample(str(index), *each) for index, each in enumerate(zip(*parts, strict=False))]

    def collect_texts(self, examples: Sequence[TextExample]) -> dict[str, list[Any]]:
        columns = {"text": [example.text_a for example in examples]}
        return columns | ({"text_pair": [example.text_b or "" for example in examples]} if self.pair else {})

    @abc.abstractmethod
    def parse_labels(self, y: Any) -> list[Any]:
        """Converts the `y` that a user passed to `fit` to a list of labels, one per example."""

    def parse_rows(self, y: Any) -> Array | None:
        """Returns labels that were given as a number for each class (such as one-hot), float32 [E, C].

        Returns None if the labels have another form.
        """
        return None

    def featurize(self, examples: Sequence[TextExample], tokenizer: FullTokenizer, max_seq_length: int) -> Features:
        features = featurize(examples, tokenizer, max_seq_length, self.doc_stride)
        if not examples or any(example.label is None for example in examples):
            return features
        return dataclasses.replace(
            features, targets={LABELS: self.example_targets(examples)[features.details[EXAMPLE]]}
        )

    def describe_truncation(self, num_truncated: int, num_examples: int, max_seq_length: int) -> str | None:
        if self.doc_stride is None:
            return super().describe_truncation(num_truncated, num_examples, max_seq_length)
        length, limit = (max_seq_length - 3) // 2, "half of a window of max_seq_length"
        return describe_truncation(num_truncated, num_examples, "first text", length, limit)

    def targets(self, labels: Sequence[Any]) -> Array:
        """Converts labels to the targets of the loss, [E, ...]."""
        return np.array(labels, self.target_dtype)

    def example_targets(self, examples: Sequence[TextExample]) -> Array:
        """Returns the targets of examples for the loss.

        Labels that were given as a number for each class stay in this form, float32 [E, C].
        """
        return self.targets([example.label for example in examples])

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[TextExample]) -> Array:
        """Averages the logits over the windows of each example, and converts the means to predictions."""
        return self.apply_activation(average_windows(outputs, features))

    @abc.abstractmethod
    def apply_activation(self, logits: Array) -> Array:
        """Converts logits of examples to predictions: softmax, sigmoid, or unchanged for regression."""

    @abc.abstractmethod
    def predicted_labels(self, predictions: Array) -> list[Any]:
        """Converts predictions to labels: class indices, tuples of class indices, or numbers."""

    @abc.abstractmethod
    def format_label(self, label: Any) -> str:
        """Returns the text of a label: the names of its classes, or the number."""

    def prediction_names(self, predictions: Array) -> list[str]:
        """Returns the text of the predicted label of each example, for prediction files and exports."""
        return [self.format_label(label) for label in self.predicted_labels(predictions)]

    def certainty(self, prediction: Any) -> float | None:
        """Returns the probability of the predicted label of one example, or None if the kind is regression."""
        return None

    def outcomes(self, predictions: Array, examples: Sequence[TextExample]) -> list[Outcome]:
        outcomes = []
        labels = self.predicted_labels(predictions)
        for label, prediction, example in zip(labels, predictions, examples, strict=True):
            text = example.text_a if example.text_b is None else f"{example.text_a} ||| {example.text_b}"
            expected, predicted = self.format_label(example.label), self.format_label(label)
            outcomes.append(Outcome(text, expected, predicted, expected == predicted, self.certainty(prediction)))
        return outcomes

    def soft_targets(self, targets: Array) -> Array:
        """Converts targets of the loss, [R, ...], to the form of a teacher's answers, [R, C], for distillation.

        These are probabilities, or values for regression (C = 1).
        """
        return targets if targets.ndim == 2 else targets[:, None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelSpec(TextSpec):
    """Base class of the kinds that predict one or more classes of a text. Predictions are probabilities, [E, C].

    Attributes:
        labels: Names of the classes, in the order of the logits.
        temperature: Logits are divided by this number before the softmax or sigmoid (see `fit_temperature`).
        thresholds: Probability threshold of each class. Empty if no thresholds were chosen.
    """

    required_settings: ClassVar[tuple[str, ...]] = ("labels",)
    decision_settings: ClassVar[tuple[str, ...]] = ("temperature", "thresholds")

    labels: tuple[str, ...] = ()
    temperature: float = 1.0
    thresholds: tuple[float, ...] = ()

    def parse_rows(self, y: Any) -> Array | None:
        values = input_adapters.to_list(class_labels.order_class_columns(y, self.labels), "y")
        other = next((number for number, value in enumerate(values) if not self.is_label_row(value)), None)
        if other is None:
            return np.array(values, np.float32) if values else None
        if other and input_adapters.is_row(values[other]) and len(values[other]) == len(self.labels):
            received = input_adapters.format_value(values[other])
            raise UserError(f"y[{other}] is {received}; expected {len(self.labels)} probabilities that add up to 1")
        return None

    @abc.abstractmethod
    def is_label_row(self, value: Any) -> bool:
        """Returns whether a label is given as a number for each class, such as a one-hot row."""

    def example_targets(self, examples: Sequence[TextExample]) -> Array:
        rows = [example.row for example in examples]
        return super().example_targets(examples) if any(row is None for row in rows) else np.array(rows)

    def named_answers(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, list[Any]]:
        return {
            "labels": [list(self.labels)] * len(predictions),
            "probabilities": [row.tolist() for row in predictions],
        }

    @staticmethod
    @abc.abstractmethod
    def rescale(probabilities: Array, temperature: float) -> Array:
        """Rescales probabilities as if their logits had been divided by `temperature`."""

    @abc.abstractmethod
    def certainties(self, predictions: Array, examples: Sequence[TextExample]) -> tuple[Array, Array]:
        """Returns the confidence of each decision and whether it is correct, in two arrays of the same shape.

        A decision is the choice of a class, [E], or for multi_label the choice of each label, [E, C].
        """

    def fit_temperature(self, predictions: Array, examples: Sequence[TextExample]) -> Self:
        """Returns a copy of the spec with the temperature that maximizes the likelihood of the labels.

        Args:
            predictions: Predictions of this spec, with its temperature.
            examples: Labelled examples that the model was not trained on.
        """
        expected = self.soft_targets(self.example_targets(examples))
        factor = probabilities.fit_temperature(predictions, expected, self.rescale)
        return dataclasses.replace(self, temperature=self.temperature * factor)

    def calibration_report(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, Any]:
        confidences, is_correct = self.certainties(predictions, examples)
        uncalibrated = self.certainties(self.rescale(predictions, 1.0 / self.temperature), examples)
        return {
            "temperature": self.temperature,
            "before": probabilities.calibration_error(*uncalibrated),
            "after": probabilities.calibration_error(confidences, is_correct),
            "coverage": probabilities.compute_coverage(confidences, is_correct) if self.is_single_label else [],
        }

    def uncalibrated(self) -> Self:
        return dataclasses.replace(self, temperature=1.0)

    def calibrate(self, predictions: Array) -> Array:
        return self.rescale(predictions, self.temperature)

    @abc.abstractmethod
    def choose_thresholds(self, predictions: Array, examples: Sequence[TextExample], measure: str) -> Self:
        """Returns a copy of the spec with the thresholds that maximize a measure.

        Args:
            predictions: Predictions of this spec.
            examples: Labelled examples that the model was not trained on.
            measure: The measure, such as "f1" or "precision=0.9" (see `names.parse_measure`).

        Raises:
            UserError: If a class has no example, if no threshold reaches the wanted precision, or if the kind is
                classification and has more than two classes.
        """

    def check_decision_options(self, options: DecisionOptions) -> None:
        pass

    def choose_settings(self, predictions: Array, examples: Sequence[TextExample], options: DecisionOptions) -> Self:
        spec = self.uncalibrated().fit_temperature(predictions, examples) if options.calibrate else self
        if options.thresholds is None:
            return spec
        return spec.choose_thresholds(spec.calibrate(predictions), examples, options.thresholds)

    def parse_class_weights(self, class_weights: Sequence[str]) -> Array:
        """Converts the values of --class_weights to numbers, [C].

        Raises:
            UserError: If there is not exactly one non-negative number for each label.
        """
        weights = np.array([input_adapters.to_number(weight) for weight in class_weights])
        if len(weights) != len(self.labels) or not ((weights >= 0) & (weights <= input_adapters.MAX_MAGNITUDE)).all():
            raise UserError(
                f"--class_weights is {','.join(class_weights)}; expected {BALANCED}, or {len(self.labels)} numbers, "
                f"one for each of {', '.join(self.labels)}"
            )
        return weights


def featurize(
    examples: Sequence[TextExample], tokenizer: FullTokenizer, max_seq_length: int, doc_stride: int | None = None
) -> Features:
    """Tokenizes texts to sequences [CLS] a [SEP], or pairs to [CLS] a [SEP] b [SEP]. The result has no targets.

    As in the original, a pair whose second text has no tokens becomes [CLS] a [SEP].

    Args:
        examples: Either texts or pairs, not a mixture.
        tokenizer: The model's tokenizer.
        max_seq_length: Maximum number of tokens of a sequence.
        doc_stride: None truncates long texts, as the original does. A number splits them into windows, and is the
            number of tokens between the starts of two windows. Pairs are split in the second text, and each window
            repeats the first text. If the first text leaves less room than the stride, the windows do not overlap.

    Raises:
        UserError: If a sequence has no room for a token of the text, or doc_stride is longer than a window.
    """
    pair = bool(examples) and examples[0].text_b is not None
    check_length(max_seq_length, 4 if pair else 3)
    ids_a, splits_a = tokenizer.encode([example.text_a for example in examples])
    ids_b, splits_b = np.empty(0, np.int32), np.zeros(len(examples) + 1, np.int64)
    if pair:
        ids_b, splits_b = tokenizer.encode([example.text_b or "" for example in examples])
    lengths_a, lengths_b = splits_a[1:] - splits_a[:-1], splits_b[1:] - splits_b[:-1]
    texts = np.arange(len(examples))  # [R], the index of the text of each row
    starts_a, starts_b = splits_a[:-1], splits_b[:-1]
    room = max_seq_length - np.where(lengths_b > 0, 3, 2)  # [E], without [CLS] and one or two [SEP]
    needed = lengths_a + lengths_b if doc_stride is None else lengths_a if pair else np.zeros_like(lengths_a)
    is_truncated = needed > (room if doc_stride is None else room // 2)
    most = max_seq_length - (3 if pair else 2)
    if doc_stride is not None and doc_stride > most:
        raise UserError(f"doc_stride is {doc_stride}, but only {most} tokens of the text fit in a window; lower it")
    if doc_stride is None:
        lengths_a, lengths_b = truncate_lengths(lengths_a, lengths_b, room)
    elif pair:
        lengths_a = np.minimum(lengths_a, room // 2)
        texts, offsets, lengths_b = build_windows(lengths_b, room - lengths_a, doc_stride)
        starts_a, lengths_a, starts_b = starts_a[texts], lengths_a[texts], starts_b[texts] + offsets
    else:
        texts, offsets, lengths_a = build_windows(lengths_a, room, doc_stride)
        starts_a, starts_b, lengths_b = starts_a[texts] + offsets, starts_b[texts], lengths_b[texts]
    cls, sep = tokenizer.convert_tokens_to_ids([CLS, SEP])
    ends_a = lengths_a + 2  # the end of [CLS] a [SEP]
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
    return Features(ids, segment_ids, splits, {}, {EXAMPLE: texts}, is_truncated=is_truncated)


def average_windows(outputs: Outputs, features: Features) -> Array:
    """Returns the mean of the logits over the windows of each example, float64 [E, C], or [E] for regression.

    Args:
        outputs: Logits of each row.
        features: Features whose details contain the example of each row, in ascending order.
    """
    if not len(outputs):
        return np.empty(0)
    logits = np.asarray(np.stack(outputs), np.float64)
    counts = np.bincount(features.details[EXAMPLE])
    sums = np.add.reduceat(logits, np.cumsum(counts) - counts)
    return np.asarray(sums / counts.reshape(-1, *[1] * (logits.ndim - 1)))
