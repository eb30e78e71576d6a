"""The base class of the specs of all kinds.

Tasks, Keras models, exports and distillation use it without a branch on the name of a kind. Specs need neither
TensorFlow nor Keras. The model, loss and metrics of a kind are in its model.py.

R rows, C classes
"""

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from official_bert.errors import UserError
from official_bert.kinds.features import Array, Features, Outputs, cut_note
from official_bert.kinds.synthetic_texts import SyntheticTexts
from official_bert.modeling.head_input import ENCODER_ITSELF, HeadInput
from official_bert.tokenization.exact import FullTokenizer
from official_bert.tokenization.fast import Tokenizer


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An example, what was expected and what was predicted, for a person to read."""

    text: str  # the example
    expected: str  # the label or answer that is right
    predicted: str  # the model's
    correct: bool  # whether they agree
    certainty: float | None = None  # the probability that the model gave to what it predicted; None where it gives none


class Decisions(NamedTuple):
    """The decisions to choose after training."""

    calibrate: bool = False  # whether to choose the temperature
    thresholds: str | None = None  # the measure to choose thresholds by, or None to keep them
    min_confidence: float | None = None  # the new min_confidence, or None to keep it


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindSpec(abc.ABC):
    """A kind with its settings: its examples, features, predictions and scores.

    Models that are not fine-tuned, such as those that fill in masks, have no scores.

    Attributes:
        kind: as task.json and exports name it.
        head_input: What the head's own layer reads.
        labels: the classes' names in the order of the logits; None where there are none.
        num_choices: Number of choices, or None for kinds without choices.
        decisions: the named answers that are chosen by a number, so that rounding may change them.
        pair: whether an example has two texts.
        weighs_examples: whether examples may weigh differently in training.
        has_tokens: whether every token has outputs and targets of its own.
        perfect: the best score: 1, or 100 where scores are in percent.
        has_one_class: whether an example is of one of the classes.
        has_head: Whether the kind has weights on top of the encoder.
        answer_dtypes: NumPy dtypes of the outputs of `named_answers`, object for strings.
        required_settings: Keys of task.json that may not be null.
        default_max_seq_length: Tokens of a sequence if the user does not set a length.
    """

    kind: ClassVar[str]
    weighs_examples: ClassVar[bool] = True
    has_tokens: ClassVar[bool] = False
    perfect: ClassVar[float] = 1.0
    has_one_class: ClassVar[bool] = False
    has_head: ClassVar[bool] = True
    answer_dtypes: ClassVar[Mapping[str, Any]] = {}
    decisions: ClassVar[tuple[str, ...]] = ()
    required_settings: ClassVar[tuple[str, ...]] = ()
    default_max_seq_length: ClassVar[int] = 128

    labels: tuple[str, ...] | None = None
    num_choices: int | None = None
    pair: bool = False
    head_input: HeadInput = ENCODER_ITSELF

    @classmethod
    def model_module(cls) -> str:
        """Returns the module whose class `Model` is the KindModel of this kind (see kinds.model.model_for)."""
        return f"official_bert.kinds.{cls.kind}.model"

    @property
    def best_metric(self) -> str:
        """Which of `scores` says which model is best; the greater the better."""
        raise NotImplementedError

    @property
    def needs_labels(self) -> bool:
        """Whether training needs labels beside the texts."""
        return True

    @property
    def is_value(self) -> bool:
        """Whether a prediction is a number, which is near the right one or not."""
        return False

    @property
    def has_own_scores(self) -> bool:
        """Whether `scores` says of its answers what no metric of logits does."""
        return False

    @property
    def reads_windows(self) -> bool:
        """Whether a text that is too long is read in windows, and not cut."""
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """What task.json holds beside what every kind has there."""
        return {}

    def task_spec(self, task: str | None, max_seq_length: int) -> dict[str, Any]:
        """Returns what task.json and exports hold (see checkpoints.finetuned.save)."""
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

    # Texts by the names that exports know them by.

    @property
    def text_inputs(self) -> tuple[str, ...]:
        """Returns the names of an example's texts."""
        return ("text", "text_pair") if self.pair else ("text",)

    def examples_of(self, texts: Mapping[str, Sequence[Any]], tokenizer: FullTokenizer) -> list[Any]:
        """Returns examples without labels of texts, a column for each of `text_inputs`."""
        columns = tuple(list(texts[name]) for name in self.text_inputs)
        return self.examples(columns if len(columns) > 1 else columns[0], None)

    def synthetic_texts(self, texts: SyntheticTexts, max_seq_length: int) -> dict[str, list[Any]]:
        """Returns texts on which implementations could differ, a column for each of `text_inputs`."""
        if not self.pair:
            return {"text": texts.single(max_seq_length - 2)}
        return dict(zip(self.text_inputs, map(list, zip(*texts.pairs(max_seq_length - 3), strict=True)), strict=True))

    @property
    def pooling_settings(self) -> dict[str, Any]:
        """The arguments of `pooling.build_vector_model` for models whose answers are pooled vectors."""
        return {}

    def texts_of(self, examples: Sequence[Any]) -> dict[str, list[Any]]:
        """Returns the texts of examples, a column for each of `text_inputs`."""
        raise NotImplementedError

    def named_answers(self, predictions: Any, examples: Sequence[Any]) -> dict[str, list[Any]]:
        """Returns predictions as exports answer them: a list with an element for each example by output."""
        raise NotImplementedError

    def margins(self, outputs: Outputs, features: Features, examples: Sequence[Any]) -> list[float]:
        """Returns for each example by how much probability what `decisions` name was decided; see `decode`."""
        return [math.inf] * len(examples)

    # Learning.

    @abc.abstractmethod
    def examples(self, x: Any, y: Any) -> list[Any]:
        """Returns the examples of what a user of the Keras models gave, without labels where y is None.

        Raises:
            UserError: a text or a label has another form.
        """

    def training_examples(self, x: Any, y: Any) -> list[Any]:
        """Returns what is learned from or scored, where that has another form than what is answered."""
        return self.examples(x, y)

    @abc.abstractmethod
    def featurize(self, examples: Sequence[Any], tokenizer: Tokenizer, max_seq_length: int) -> Features:
        """Returns the examples as the model reads them, with targets if all of them have labels."""

    def drawn(self, batch: tuple[Any, ...], keys: Sequence[int]) -> tuple[Any, ...]:
        """Returns a padded batch with what is drawn at random in each epoch, by a key for each row."""
        return batch

    def cut_note(self, cut: int, examples: int, max_seq_length: int) -> str | None:
        """Returns a line on how many of so many examples `featurize` has cut; None where it is none."""
        return cut_note(cut, examples, "text", max_seq_length, "max_seq_length")

    def loss_weights(self) -> dict[str, float] | None:
        """Returns the weights of several losses."""
        return None

    def blank_targets(self, tokens: int) -> dict[str, Array]:
        """Returns targets of one row of so many tokens, all 0, as `featurize` makes them."""
        raise NotImplementedError

    def weights_by_class(self, class_weight: Mapping[Any, float] | str) -> Array:
        """Returns the weight of each class, float32 [C]; classes that are not named weigh 1.

        Args:
            class_weight: by name or by number.

        Raises:
            UserError: an example is not of one class.
        """
        raise UserError(f"{self.kind.replace('_', ' ')} has no classes to weigh; leave out class_weight")

    def weigh_classes(self, class_weights: Sequence[str], features: Features) -> tuple[Self, Array | None]:
        """Returns the spec to train with, and the weight of each row, float32 [R], or None if all weigh the same.

        Args:
            class_weights: The values of --class_weights: a number for each label, in their order, or `balanced`.
            features: The rows to train on, with targets.

        Raises:
            UserError: If the kind has no classes, or the weights are invalid.
        """
        if class_weights:
            raise UserError(f"--class_weights is for classification with labels; the task is {self.kind}")
        return self, None

    # Decisions that are chosen after training (see calibration).

    def uncalibrated(self) -> Self:
        """Returns the spec with the temperature of the trained model, 1."""
        return self

    def calibrate(self, predictions: Any) -> Any:
        """Returns the predictions of `uncalibrated` as predictions of this spec."""
        return predictions

    def decide(self, predictions: Any, examples: Sequence[Any], wanted: Decisions) -> Self:
        """Returns the spec with decisions that are chosen on labelled examples.

        Args:
            predictions: Predictions of `uncalibrated`.
            examples: Labelled examples that the model was not trained on.
            wanted: The decisions to choose.

        Raises:
            UserError: If the kind has no such decision.
        """
        raise UserError(f"--calibrate, --thresholds and --min_confidence are for classes; the task is {self.kind}")

    def label_scores(self, predictions: Any, examples: Sequence[Any]) -> dict[str, dict[str, float]] | None:
        """Returns precision, recall, F1 and the number of examples of each label, or None for other kinds."""
        return None

    def calibration_figures(self, predictions: Any, examples: Sequence[Any]) -> dict[str, Any] | None:
        """Returns the result of `calibration.figures` for labelled examples, or None for other kinds."""
        return None

    # Predictions.

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[Any]) -> Any:
        """Returns a prediction for each example from the model's outputs for the features."""
        raise NotImplementedError

    def answers(self, predictions: Any) -> Any:
        """Returns predictions in the form that `predict` of the Keras models gives."""
        return predictions

    def scores(self, predictions: Any, examples: Sequence[Any]) -> dict[str, float]:
        """Returns scores by name; the examples must have labels."""
        raise NotImplementedError

    def outcomes(self, predictions: Any, examples: Sequence[Any]) -> list[Outcome]:
        """Returns an Outcome for each example; the examples must have labels."""
        raise NotImplementedError
