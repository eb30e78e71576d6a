"""The base class of the specs of all kinds.

Other packages use specs instead of branching on the name of a kind. Specs do not import TensorFlow or Keras. The model,
loss and metrics of a kind are in its model.py.

R rows, C classes
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
from official_bert.modeling.head_input import ENCODER_ITSELF, HeadInput
from official_bert.tokenization.exact import FullTokenizer


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An example with its expected and its predicted answer, as text for the model card."""

    text: str
    expected: str
    predicted: str
    correct: bool
    certainty: float | None = None  # the probability of the prediction, or None if the kind has no probabilities


class Decisions(NamedTuple):
    """The settings to choose after training."""

    calibrate: bool = False  # whether to choose the temperature
    thresholds: str | None = None  # the measure that chooses thresholds, or None to keep them
    min_confidence: float | None = None  # the new min_confidence, or None to keep it


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindSpec(abc.ABC):
    """A kind with its settings: its examples, features, predictions and scores.

    Models without fine-tuning, such as masked LMs, have no scores.

    Attributes:
        kind: Name of the kind in task.json and exports.
        decoding: How the settings in task.json turn logits into answers, for programs without this package.
        head_input: Input of the head: the encoder, or a BiLSTM on it.
        labels: Names of the classes in the order of the logits. None for kinds without classes.
        num_choices: Number of choices per example. None for kinds without choices.
        discrete_outputs: Outputs chosen by comparing numbers (such as labels), which rounding may flip.
        pair: Whether an example has two texts.
        supports_sample_weight: Whether training supports sample weights.
        has_tokens: Whether each token has its own outputs and targets.
        best_possible_score: 1.0, or 100.0 for scores in percent.
        is_single_label: Whether each example has exactly one label.
        has_head: Whether the kind has weights on top of the encoder.
        answer_dtypes: NumPy dtypes of the outputs of `named_answers`, object for strings.
        required_settings: Keys of task.json that may not be null.
        default_max_seq_length: Tokens of a sequence if the user does not set a length.
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
    default_max_seq_length: ClassVar[int] = 128

    labels: tuple[str, ...] | None = None
    num_choices: int | None = None
    pair: bool = False
    head_input: HeadInput = ENCODER_ITSELF

    @classmethod
    def model_module(cls) -> str:
        """Returns the module whose class `Model` is the KindModel of this kind (see kinds.model.create_model)."""
        return f"official_bert.kinds.{cls.kind}.model"

    @property
    def best_metric(self) -> str:
        """The name of the score that selects the best model by default. Higher is better."""
        raise NotImplementedError

    @property
    def score_names(self) -> tuple[str, ...]:
        """The names of the scores that can select the best model. Higher is better, except for LOWER_IS_BETTER."""
        return ()

    @property
    def needs_labels(self) -> bool:
        """Whether training needs labels in addition to the texts."""
        return True

    @property
    def is_value(self) -> bool:
        """Whether a prediction is a number, which can be close to the right one."""
        return False

    @property
    def has_own_scores(self) -> bool:
        """Whether `scores` computes figures that no Keras metric of the logits can compute."""
        return False

    @property
    def reads_windows(self) -> bool:
        """Whether long texts are read in windows instead of being truncated."""
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """The keys of task.json that only this kind has."""
        return {}

    def task_spec(self, task: str | None, max_seq_length: int) -> dict[str, Any]:
        """Returns the contents of task.json, which exports store too (see checkpoints.finetuned.save)."""
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
        """The names of the texts of an example."""
        return ("text", "text_pair") if self.pair else ("text",)

    def build_examples(self, texts: Mapping[str, Sequence[Any]], tokenizer: FullTokenizer) -> list[Any]:
        """Returns examples without labels, given a column of texts for each of `text_inputs`."""
        columns = tuple(list(texts[name]) for name in self.text_inputs)
        return self.examples(columns if len(columns) > 1 else columns[0], None)

    def synthetic_texts(self, texts: SyntheticTexts, max_seq_length: int) -> dict[str, list[Any]]:
        """Returns texts on which implementations could differ, a column for each of `text_inputs`."""
        if not self.pair:
            return {"text": texts.single(max_seq_length - 2)}
        return dict(zip(self.text_inputs, map(list, zip(*texts.pairs(max_seq_length - 3), strict=True)), strict=True))

    @property
    def pooling_settings(self) -> dict[str, Any]:
        """The arguments of `pooling.build_vector_model`, for models that return pooled vectors."""
        return {}

    def collect_texts(self, examples: Sequence[Any]) -> dict[str, list[Any]]:
        """Returns the texts of examples, a column for each of `text_inputs`."""
        raise NotImplementedError

    def named_answers(self, predictions: Any, examples: Sequence[Any]) -> dict[str, list[Any]]:
        """Returns predictions in the format of exports: by output, a list with an element per example."""
        raise NotImplementedError

    def margins(self, outputs: Outputs, features: Features, examples: Sequence[Any]) -> list[float]:
        """Returns the margin, as a probability, of the `discrete_outputs` of each example (see `decode`)."""
        return [math.inf] * len(examples)

    # Learning.

    @abc.abstractmethod
    def examples(self, x: Any, y: Any) -> list[Any]:
        """Returns the examples in the x and y that users pass to Keras models. If y is None, they have no labels.

        Raises:
            UserError: If a text or a label has the wrong form.
        """

    def training_examples(self, x: Any, y: Any) -> list[Any]:
        """Returns the examples for training and evaluation, if they differ from the examples for prediction."""
        return self.examples(x, y)

    @abc.abstractmethod
    def featurize(self, examples: Sequence[Any], tokenizer: FullTokenizer, max_seq_length: int) -> Features:
        """Returns the inputs of the model, with targets if all examples have labels."""

    def randomize_batch(self, batch: tuple[Any, ...], keys: Sequence[int]) -> tuple[Any, ...]:
        """Returns a padded batch with the random changes of an epoch, such as masks. Each row has its own key."""
        return batch

    def describe_truncation(self, num_truncated: int, num_examples: int, max_seq_length: int) -> str | None:
        """Returns a line on the number of examples that `featurize` truncated, or None if it truncated nothing."""
        return describe_truncation(num_truncated, num_examples, "text", max_seq_length, "max_seq_length")

    def loss_weights(self) -> dict[str, float] | None:
        """Returns the weight of each output in the loss. None for models with one output."""
        return None

    def blank_targets(self, tokens: int) -> dict[str, Array]:
        """Returns targets of 0 for a row of `tokens` tokens, in the format of `featurize`."""
        return {LABELS: np.zeros(1, np.int32)}

    def weights_by_class(self, class_weight: Any) -> Array:
        """Returns the weight of each class, float32 [C]. The default weight is 1.

        Args:
            class_weight: Weights by the name or index of a class.

        Raises:
            UserError: If examples do not have exactly one label.
        """
        raise UserError(f"{self.kind.replace('_', ' ')} has no classes to weigh; leave out class_weight")

    def weigh_classes(self, class_weights: Sequence[str], features: Features) -> tuple[Self, Array | None]:
        """Returns the spec for training, and the weight of each row, float32 [R], or None for equal weights.

        Args:
            class_weights: The values of --class_weights: a number for each label, in the order of `labels`, or
                `balanced`.
            features: The rows to train on, with targets.

        Raises:
            UserError: If the kind has no classes, or the weights are invalid.
        """
        if class_weights:
            raise UserError(f"--class_weights is for classification with labels; the task is {self.kind}")
        return self, None

    # Decisions that are chosen after training (see probabilities.py).

    def uncalibrated(self) -> Self:
        """Returns the spec with a temperature of 1."""
        return self

    def calibrate(self, predictions: Any) -> Any:
        """Converts predictions of `uncalibrated` to predictions of this spec."""
        return predictions

    def check_decisions(self, wanted: Decisions) -> None:
        """Raises a UserError if the kind does not have a wanted setting, so that it can be reported before training."""
        if wanted != Decisions():
            raise UserError(f"--calibrate, --thresholds and --min_confidence are for classes; the task is {self.kind}")

    def decide(self, predictions: Any, examples: Sequence[Any], wanted: Decisions) -> Self:
        """Returns the spec with settings that are chosen on labelled examples.

        Args:
            predictions: Predictions of `uncalibrated`.
            examples: Labelled examples that the model was not trained on.
            wanted: The settings to choose, for which `check_decisions` raised no error.
        """
        return self

    def label_scores(self, predictions: Any, examples: Sequence[Any]) -> dict[str, dict[str, float]] | None:
        """Returns precision, recall, F1 and the number of examples of each label. None for single-label kinds."""
        return None

    def calibration_report(self, predictions: Any, examples: Sequence[Any]) -> dict[str, Any] | None:
        """Returns `probabilities.calibration_report` of labelled examples. None for kinds without classes."""
        return None

    # Predictions.

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[Any]) -> Any:
        """Returns a prediction for each example from the model's outputs for the features."""
        raise NotImplementedError

    def answers(self, predictions: Any) -> Any:
        """Returns predictions in the form that `predict` of the Keras models returns."""
        return predictions

    def scores(self, predictions: Any, examples: Sequence[Any]) -> dict[str, float]:
        """Returns the scores of labelled examples by name."""
        raise NotImplementedError

    def outcomes(self, predictions: Any, examples: Sequence[Any]) -> list[Outcome]:
        """Returns an Outcome for each labelled example."""
        raise NotImplementedError
