"""The base class of all kinds.

Tasks, Keras models, exports and distillation read it; none of them asks for a kind by its name.
Features and predictions need neither TensorFlow nor Keras; what is about models and learning imports them.

R rows, C classes
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from official_bert.errors import UserError
from official_bert.kinds.features import Array, Features, Outputs, cut_note
from official_bert.modeling.head_input import ENCODER_ITSELF, HeadInput
from official_bert.tokenization.exact import FullTokenizer
from official_bert.tokenization.fast import Tokenizer

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True)
class Outcome:
    """An example, what was expected and what was predicted, for a person to read."""

    text: str  # the example
    expected: str  # the label or answer that is right
    predicted: str  # the model's
    correct: bool  # whether they agree
    certainty: float | None = None  # the probability that the model gave to what it predicted; None where it gives none


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindSpec(abc.ABC):
    """A kind with its settings: its model, examples, features, loss, predictions and scores.

    Models that are not fine-tuned, such as those that fill in masks, have no scores.

    Attributes:
        kind: as task.json and exports name it.
        head_input: What the head's own layer reads.
        labels: the classes' names in the order of the logits; None where there are none.
        num_choices: of multiple choice.
        decisions: the named answers that are chosen by a number, so that rounding may change them.
        pair: whether an example has two texts.
        weighs_examples: whether examples may weigh differently in training.
        has_tokens: whether every token has outputs and targets of its own.
        perfect: the best score: 1, or 100 where scores are in percent.
        has_one_class: whether an example is of one of the classes.
    """

    kind: ClassVar[str]
    weighs_examples: ClassVar[bool] = True
    has_tokens: ClassVar[bool] = False
    perfect: ClassVar[float] = 1.0
    has_one_class: ClassVar[bool] = False
    num_choices: ClassVar[int | None] = None
    decisions: ClassVar[tuple[str, ...]] = ()

    labels: tuple[str, ...] | None = None
    pair: bool = False
    head_input: HeadInput = ENCODER_ITSELF

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

    def build_model(self, encoder: "keras.Model", seed: int | None = None) -> "keras.Model":
        """Returns the encoder with this head (see task_models)."""
        from official_bert.modeling import task_models

        number = len(self.labels or ())
        return task_models.build(self.kind, encoder, number, self.num_choices or 0, seed, self.head_input)

    def answering_model(self, model: "keras.Model") -> "keras.Model":
        """Returns what learns and gives the outputs that `decode` reads, given what `build_model` returns."""
        return model

    # Texts by the names that exports know them by.

    @property
    def text_inputs(self) -> tuple[str, ...]:
        """Returns the names of an example's texts."""
        return ("text", "text_pair") if self.pair else ("text",)

    def examples_of(self, texts: Mapping[str, Sequence[Any]], tokenizer: FullTokenizer) -> list[Any]:
        """Returns examples without labels of texts, a column for each of `text_inputs`."""
        columns = tuple(list(texts[name]) for name in self.text_inputs)
        return self.examples(columns if len(columns) > 1 else columns[0], None)

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

    def graph_labels(self, spec: Any, is_batched: bool) -> Callable[[Any], Any] | None:
        """Returns what makes targets of a data set's labels, as TensorFlow operations; None if that takes Python.

        Args:
            spec: of the labels.
            is_batched: whether the data set's elements are batches.
        """
        return None

    @abc.abstractmethod
    def loss(self) -> Any:
        """Returns the Keras loss of logits, or losses by output, as the original's."""

    def cut_note(self, cut: int, examples: int, max_seq_length: int) -> str | None:
        """Returns a line on how many of so many examples `featurize` has cut; None where it is none."""
        return cut_note(cut, examples, "text", max_seq_length, "max_seq_length")

    def loss_weights(self) -> dict[str, float] | None:
        """Returns the weights of several losses."""
        return None

    def keras_metrics(self) -> Any:
        """Returns what fit shows beside the loss."""
        import keras

        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

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
