"""The base class KindSpec: everything about a kind of task that needs no TensorFlow or Keras.

Other packages use attributes and methods of the spec instead of branching on the name of a kind. The Keras layers, loss
and metrics of a kind are in its model.py.

E examples, R rows of the model's input (texts, or windows of long texts), C classes
"""

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds.features import LABELS, Array, Features, Outputs, describe_truncation
from official_bert.kinds.synthetic_texts import SyntheticTexts
from official_bert.modeling.head_input import HeadInput
from official_bert.tokenization.exact import FullTokenizer

UNSTORED = {"stored": False}  # the metadata of a spec's fields that task.json does not contain


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An example with its expected and its predicted answer, as text for the model card."""

    text: str
    expected: str
    predicted: str
    correct: bool
    certainty: float | None = None  # the probability of the prediction, or None if the kind has no probabilities


class DecisionOptions(NamedTuple):
    """Which decision settings to choose after training, on evaluation data."""

    calibrate: bool = False  # whether to choose the temperature
    thresholds: str | None = None  # the measure that chooses thresholds, or None to keep them
    min_confidence: float | None = None  # the new min_confidence, or None to keep it


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindSpec(abc.ABC):
    """A kind of task (such as classification) with its settings.

    The methods build examples and features, decode the outputs of the model to predictions, and score them.

    Each kind has a subclass. The specs of models without fine-tuning, such as masked LMs, have no scores.

    Attributes:
        kind: Name of the kind in task.json and exports.
        decoding: Description of how logits become answers, which task.json contains for other programs.
        head_input: Input of the head: the encoder, or a BiLSTM on top of it.
        labels: Names of the classes in the order of the logits. None if the kind has no classes.
        num_choices: Number of choices per example. None if the kind has no choices.
        discrete_outputs: Outputs chosen by comparing numbers (such as labels), which rounding may flip.
        pair: Whether an example has two texts.
        supports_sample_weight: Whether training supports sample weights.
        has_tokens: Whether each token has its own outputs and targets.
        best_possible_score: 1.0, or 100.0 for scores in percent.
        is_single_label: Whether each example has exactly one label.
        has_head: Whether the kind has weights on top of the encoder.
        answer_dtypes: NumPy dtypes of the outputs of `named_answers`, object for strings.
        required_settings: Keys of task.json that may not be null.
        decision_settings: Settings that may change after training, because neither weights nor features depend on them.
        default_max_seq_length: Maximum number of tokens of a sequence if the user does not set it.
        length_limit: Name of the setting that longer texts are truncated to.
        target_dtype: NumPy dtype of the targets of the loss.
        stores_defaults: Whether task.json contains also those settings of the kind that have their default values.
    """

    kind: ClassVar[str]
    decoding: ClassVar[str]
    supports_sample_weight: ClassVar[bool] = True
    has_tokens: ClassVar[bool] = False
    best_possible_score: ClassVar[float] = 1.0
    is_single_label: ClassVar[bool] = False
    has_head: ClassVar[bool] = True
    answer_dtypes: ClassVar[Mapping[str, Any]] = {}
    discrete_outputs: ClassVar[tuple[str, ...]] = ()
    required_settings: ClassVar[tuple[str, ...]] = ()
    decision_settings: ClassVar[tuple[str, ...]] = ()
    default_max_seq_length: ClassVar[int] = 128
    length_limit: ClassVar[str] = "max_seq_length"
    target_dtype: ClassVar[Any] = np.int32
    stores_defaults: ClassVar[bool] = False

    labels: tuple[str, ...] | None = None
    num_choices: int | None = None
    pair: bool = False
    head_input: HeadInput = dataclasses.field(default_factory=HeadInput)

    @classmethod
    def model_module(cls) -> str:
        """Returns the name of the Python module with the kind's KindModel subclass, `Model`."""
        return f"official_bert.kinds.{cls.kind}.model"

    @property
    def score_names(self) -> tuple[str, ...]:
        """The names of the scores that can be used to select the best model.

        The first one is the default. Higher is better, except for LOWER_IS_BETTER.
        """
        return ()

    @property
    def needs_labels(self) -> bool:
        """Whether training needs labels in addition to the texts."""
        return True

    @property
    def is_value(self) -> bool:
        """Whether predictions are numbers (as in regression), so that they can be nearly correct."""
        return False

    @property
    def has_own_scores(self) -> bool:
        """Whether `scores` computes scores that no Keras metric can compute from the logits, such as SQuAD's F1."""
        return False

    @property
    def reads_windows(self) -> bool:
        """Whether long texts are split into windows instead of being truncated."""
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """The entries of task.json that only this kind has, by key: the fields of the subclass except UNSTORED ones."""
        common = {field.name for field in dataclasses.fields(KindSpec)}
        values = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_changed = self.stores_defaults or value != field.default
            if field.name not in common and is_changed and field.metadata != UNSTORED:
                values[field.name] = list(value) if isinstance(value, tuple) else value
        return values

    def task_spec(self, task: str | None, max_seq_length: int) -> dict[str, Any]:
        """Returns the contents of task.json, which describes the task of a fine-tuned model or an export.

        Args:
            task: Name of the task, such as "mnli", or None.
            max_seq_length: Maximum number of tokens of a sequence.
        """
        return {
            "task": task,
            "kind": self.kind,
            "pair": self.pair,
            "labels": None if self.labels is None else list(self.labels),
            "num_choices": self.num_choices,
            "max_seq_length": max_seq_length,
            **self.settings,
            **self.head_input.to_dict(),
        }

    # Texts and answers, by their names in exports.

    @property
    def text_inputs(self) -> tuple[str, ...]:
        """The names of the texts of an example, such as text and text_pair."""
        return ("text", "text_pair") if self.pair else ("text",)

    def make_prediction_examples(self, texts: Mapping[str, Sequence[Any]], tokenizer: FullTokenizer) -> list[Any]:
        """Creates examples without labels, for prediction.

        Args:
            texts: For each name in `text_inputs`, the texts of all examples.
            tokenizer: The model's tokenizer. Only the tagging kind uses it, to split texts into words.
        """
        columns = tuple(list(texts[name]) for name in self.text_inputs)
        return self.make_examples(columns if len(columns) > 1 else columns[0], None)

    def synthetic_texts(self, texts: SyntheticTexts, max_seq_length: int) -> dict[str, list[Any]]:
        """Returns test inputs for comparing an export with the model: unusual texts and texts of many lengths.

        Args:
            texts: The generator of texts.
            max_seq_length: Maximum number of tokens of a sequence. Some texts are about as long.

        Returns:
            For each name in `text_inputs`, the texts of all examples.
        """
        if not self.pair:
            return {"text": texts.single(max_seq_length - 2)}
        return dict(zip(self.text_inputs, map(list, zip(*texts.pairs(max_seq_length - 3), strict=True)), strict=True))

    def collect_texts(self, examples: Sequence[Any]) -> dict[str, list[Any]]:
        """Returns the texts of examples: for each name in `text_inputs`, a list with one element per example."""
        raise NotImplementedError

    def named_answers(self, predictions: Any, examples: Sequence[Any]) -> dict[str, list[Any]]:
        """Converts predictions to the outputs of an export: for each output name, a list with one element per example.

        Args:
            predictions: The result of `decode`.
            examples: The examples.
        """
        raise NotImplementedError

    def margins(self, outputs: Outputs, features: Features, examples: Sequence[Any]) -> list[float]:
        """Returns how far each example is from a different answer, in probability.

        Infinity for kinds without discrete outputs.

        An export and the model may give different answers to an example with a tiny margin, because of rounding.

        Args:
            outputs: Outputs of the model for the features.
            features: The features of the examples.
            examples: The examples.
        """
        return [math.inf] * len(examples)

    # Learning.

    @abc.abstractmethod
    def make_examples(self, x: Any, y: Any) -> list[Any]:
        """Creates examples from the `x` and `y` that users pass to the Keras models.

        Args:
            x: Texts, in any container that `fit` accepts.
            y: Labels, or None to create examples without labels.

        Raises:
            UserError: If a text or a label has the wrong form.
        """

    def make_training_examples(self, x: Any, y: Any) -> list[Any]:
        """Creates examples for training and evaluation from `x` and `y`. Only the vectors kind overrides this."""
        return self.make_examples(x, y)

    @abc.abstractmethod
    def featurize(self, examples: Sequence[Any], tokenizer: FullTokenizer, max_seq_length: int) -> Features:
        """Tokenizes examples to the model's inputs. They have targets only if all examples have labels."""

    def randomize_batch(self, batch: tuple[Any, ...], keys: Sequence[int]) -> tuple[Any, ...]:
        """Applies the random changes of an epoch, such as masks, to a batch. Most kinds return it unchanged.

        Args:
            batch: The padded inputs, targets and sample weights.
            keys: The random seed of each row.
        """
        return batch

    def describe_truncation(self, num_truncated: int, num_examples: int, max_seq_length: int) -> str | None:
        """Returns a line for the log on how many examples `featurize` truncated, or None if it truncated no example."""
        return describe_truncation(num_truncated, num_examples, "text", max_seq_length, self.length_limit)

    def loss_weights(self) -> dict[str, float] | None:
        """Returns the weight of each output in the loss, by output name, or None if the model has one output."""
        return None

    def blank_targets(self, tokens: int) -> dict[str, Array]:
        """Returns targets of zeros for one row (a row of padding), by output name.

        Args:
            tokens: Number of tokens of the row, for targets of tokens.
        """
        return {LABELS: np.zeros(tokens if self.has_tokens else 1, self.target_dtype)}

    def apply_class_weights(self, class_weights: Sequence[str], features: Features) -> tuple[Self, Array | None]:
        """Applies --class_weights to the training data.

        Args:
            class_weights: The values of the flag: a number for each label, in the order of `labels`, or "balanced".
                Empty for no weights.
            features: The training data, with targets.

        Returns:
            The spec for training, and the sample weight of each row, float32 [R], or None if all rows weigh the same.

        Raises:
            UserError: If the kind has no classes, or the weights are invalid.
        """
        if class_weights:
            raise UserError(f"--class_weights requires a classification task; the task is {self.kind}")
        return self, None

    # Decision settings, which are chosen after training (see probabilities.py).

    def uncalibrated(self) -> Self:
        """Returns a copy of the spec with a temperature of 1, whose predictions are not calibrated."""
        return self

    def calibrate(self, predictions: Any) -> Any:
        """Applies this spec's temperature to predictions of `uncalibrated()`."""
        return predictions

    def select_decision_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the decision settings among the entries of a task.json."""
        return {name: settings[name] for name in self.decision_settings if name in settings}

    def check_decision_options(self, options: DecisionOptions) -> None:
        """Raises a UserError if this kind does not have a setting that is to be chosen.

        Called before training starts.
        """
        if options != DecisionOptions():
            raise UserError(
                f"--calibrate, --thresholds and --min_confidence require a task with classes; the task is {self.kind}"
            )

    def choose_settings(self, predictions: Any, examples: Sequence[Any], options: DecisionOptions) -> Self:
        """Chooses temperature, thresholds and minimum confidence on labelled examples.

        Args:
            predictions: Predictions of `uncalibrated()`.
            examples: Labelled examples that the model was not trained on.
            options: The settings to choose. They must have passed `check_decision_options`.

        Returns:
            A copy of the spec with the chosen settings.
        """
        return self

    def label_scores(self, predictions: Any, examples: Sequence[Any]) -> dict[str, dict[str, float]] | None:
        """Returns precision, recall, F1 and the number of examples of each label.

        Only multi_label has these scores. Other kinds return None.
        """
        return None

    def calibration_report(self, predictions: Any, examples: Sequence[Any]) -> dict[str, Any] | None:
        """Returns the errors of the probabilities on labelled examples, or None if the kind has no classes.

        Returns:
            A dict with the keys temperature, before (the calibration error with a temperature of 1), after (the error
            with the spec's temperature) and coverage (see `probabilities.compute_coverage`; empty for multi_label).
        """
        return None

    # Predictions.

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[Any]) -> Any:
        """Converts outputs of the model (such as logits) to a prediction for each example.

        Args:
            outputs: Outputs of the model for the features.
            features: The features of the examples, from `featurize`.
            examples: The examples.
        """
        raise NotImplementedError

    def answers(self, predictions: Any) -> Any:
        """Converts predictions to what `predict` of the Keras models returns."""
        return predictions

    def scores(self, predictions: Any, examples: Sequence[Any]) -> dict[str, float]:
        """Returns the scores of predictions on labelled examples, by name."""
        raise NotImplementedError

    def undefined_scores(self, examples: Sequence[Any]) -> Sequence[str]:
        """Returns the names of the `score_names` that `scores` leaves out, because all examples have the same class."""
        return ()

    def check_best_metric(self, name: str, examples: Sequence[Any]) -> None:
        """Raises a UserError if the score that selects the best model is undefined for the evaluation examples."""
        if name in self.undefined_scores(examples):
            raise UserError(
                f"metric_for_best_model is {name}, which is undefined because all {len(examples):,} evaluation "
                f"examples have the same class; add examples of the other class, or pass {self.score_names[0]}"
            )

    def outcomes(self, predictions: Any, examples: Sequence[Any]) -> list[Outcome]:
        """Returns an Outcome for each labelled example."""
        raise NotImplementedError
