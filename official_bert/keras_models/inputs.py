"""Converts everything that users pass to fit and evaluate to tf.data.Datasets of token ids.

B batch size, E examples, R rows of the model's input (texts, or windows of long texts), C classes
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.finetuning import batches
from official_bert.keras_models import data_sets
from official_bert.keras_models.fit_arguments import NO_EXAMPLES, count_kept
from official_bert.keras_models.losses_and_metrics import reads_one_hot
from official_bert.keras_models.steps import add_axis, uses_own_loop
from official_bert.keras_models.text_model import TextModel
from official_bert.kinds import class_labels, input_adapters
from official_bert.kinds.features import EXAMPLE, LABELS, MULTIPLE, TEXTS, Array, Features, row_lengths
from official_bert.kinds.text_spec import LabelSpec, TextSpec, average_windows
from official_bert.training.replicas import get_static_lengths

_NO_LABELS = (
    "the examples have no labels; pass texts and labels as x and y (lists, NumPy arrays or pandas columns), or a "
    "tf.data.Dataset of (texts, labels)"
)
_NOT_COUNTED = (
    f"class_weight={class_labels.BALANCED!r} needs the counts of all labels; pass lists of texts and labels, or a dict "
    "of weights by class"
)

ClassWeight = Mapping[Any, float] | Sequence[float] | Array | str | None


@dataclasses.dataclass(frozen=True)
class Examples:
    """Labelled examples and their sample weights."""

    items: list[Any]
    weights: Array | None = None  # float32 [E], or [E, 1] for tags; None if all are 1

    def __getitem__(self, part: slice) -> "Examples":
        return Examples(self.items[part], None if self.weights is None else self.weights[part])


class Inputs:
    """Converts texts and labels in any form to batches of token ids and targets, for one call of fit or evaluate.

    Args:
        model: The model.
        prints_notes: Whether to print how many texts are truncated or left out.
        class_weight: The class_weight of fit: weights by class name or index, or "balanced".

    Raises:
        UserError: If there is a class_weight, but the model is not a classifier with one label per text.

    Attributes:
        epoch: The current epoch, which determines the order of the examples and random masks. fit sets it.
        spec: The spec of the model's task, which parses examples and labels.
    """

    def __init__(self, model: TextModel, prints_notes: bool = True, class_weight: ClassWeight = None) -> None:
        self.epoch, self.spec = 0, model.spec
        self._model, self._prints_notes, self._class_weight = model, prints_notes, class_weight
        if class_weight is not None and not self._has_class_labels:
            kind = self.spec.kind.replace("_", " ")
            raise UserError(f"class_weight is for models with one label per text, not for {kind}; remove it")
        # Whether class labels are converted to one-hot rows (True) or to indices (False), or not converted (None).
        self._has_one_hot = reads_one_hot(model.loss, model.spec)
        # The texts that were read from a data set, in all epochs.
        self._num_texts = self._num_truncated = 0

    # Arguments for keras.Model.fit and evaluate.

    def prepare_fit(
        self,
        x: Any,
        y: Any,
        sample_weight: Any,
        *,
        batch_size: int,
        validation_split: float,
        shuffle: bool,
        group_by_length: bool,
    ) -> tuple[dict[str, Any], Examples | None]:
        """Returns the data arguments for keras.Model.fit, and the held-out validation examples or None.

        Token ids are passed on unchanged, because Keras splits and shuffles them. All other data become a data set of
        batches.

        Args:
            x: Argument of fit.
            y: Argument of fit.
            sample_weight: Argument of fit.
            batch_size: Number of texts per batch.
            validation_split: Fraction of the texts to hold out.
            shuffle: Whether to shuffle the texts in each epoch.
            group_by_length: Whether to put texts of similar length into the same batch.

        Raises:
            UserError: If texts, labels or weights have the wrong form or length.
        """
        is_data_set, class_weight = isinstance(x, tf.data.Dataset), self._class_weight
        data_sets.check_no_other_data(x, y=y, sample_weight=sample_weight, validation_split=validation_split or None)
        if class_labels.is_balanced(class_weight) and (is_data_set or input_adapters.are_ids(x)):
            raise UserError(_NOT_COUNTED)
        if input_adapters.are_ids(x):
            for weights in sample_weight.values() if isinstance(sample_weight, Mapping) else [sample_weight]:
                if weights is not None:
                    input_adapters.check_weights(np.ravel(weights), "sample_weight")
            if class_weight is not None:
                by_class = class_labels.weights_by_class(class_weight, self.spec.labels or ())
                class_weight = dict(enumerate(by_class.tolist()))
            ids = {"x": x, "y": self.convert_labels(x, y), "sample_weight": sample_weight, "class_weight": class_weight}
            split = {"batch_size": batch_size, "validation_split": validation_split}
            return {**ids, **split, "shuffle": shuffle and not is_data_set}, None
        if is_data_set:
            return {"x": self.convert_data_set(x, batch_size), "shuffle": False}, None
        examples, held_out = self.make_examples(x, y, sample_weight), None
        if y is not None and not self.spec.needs_labels:
            raise UserError("fit uses scores in y only if the model has objective='cosine'; set it, or remove y")
        if validation_split:
            kept = count_kept(len(examples.items), validation_split)
            examples, held_out = examples[:kept], examples[kept:]
            self._print_single_class(held_out)
        data = self.training(examples, batch_size, shuffle, group_by_length)
        return {"x": data, "shuffle": False}, held_out

    def _print_single_class(self, held_out: Examples) -> None:
        """Prints a note if all texts that validation_split holds out have the same class, as in sorted data."""
        labels = {example.label for example in held_out.items} if self._has_class_labels else set()
        if len(labels) == 1 < len(held_out.items) and self._prints_notes:
            label = (self.spec.labels or ())[labels.pop()]
            print(f"note: validation_split: all {len(held_out.items)} texts have the label {label}; shuffle x and y")

    def read_evaluation(self, data: Any, batch_size: int, steps: int | None) -> Any:
        """Parses validation data to Examples. Returns None, token ids, data sets and Examples unchanged.

        A data set of texts that may have several windows is read, too, if all of it is used.

        Args:
            data: A tuple of texts, labels and optional sample weights, or only texts if the task needs no labels.
            batch_size: Number of texts per batch.
            steps: Number of batches to evaluate. None means all.
        """
        first = data[0] if isinstance(data, tuple) and data else data
        if data is None or isinstance(data, Examples) or input_adapters.are_ids(first):
            return data
        if isinstance(data, tf.data.Dataset):
            return self.collect_examples(data, batch_size) if steps is None and self.averages_windows else data
        if not self.spec.needs_labels and not (isinstance(data, tuple) and any(part is None for part in data)):
            data = (data, None)  # Only texts.
        if len(data) not in (2, 3):
            raise UserError(
                f"validation_data has {len(data)} parts; expected (texts, labels) or (texts, labels, weights)"
            )
        return self.make_examples(*data)

    def prepare_evaluation(self, data: Any, batch_size: int) -> Any:
        """Converts evaluation data to batches for keras.Model.evaluate. None and token ids are returned unchanged.

        Args:
            data: The result of `read_evaluation`.
            batch_size: Number of texts per batch.
        """
        if isinstance(data, Examples):
            dataset = self.evaluation(data, batch_size)
            dataset.examples = data  # for `evaluate`, to which Keras' fit passes the data set
            return dataset
        if isinstance(data, tf.data.Dataset) and not input_adapters.are_ids(data):
            return self.convert_data_set(data, batch_size)
        return data

    def convert_labels(self, x: Any, y: Any) -> Any:
        """Converts the labels that belong to token ids to numbers. Labels that are numbers already are only checked.

        Args:
            x: A dict of token ids, or a data set. The labels in a data set are not converted.
            y: The labels.

        Raises:
            UserError: If labels are missing or invalid, or their number differs from the number of rows.
        """
        if isinstance(x, tf.data.Dataset):
            return y  # The data set contains the labels.
        if y is None and self.spec.needs_labels:
            raise UserError(_NO_LABELS)
        are_names = isinstance(y, list) or (isinstance(y, np.ndarray) and y.dtype.kind in "OSU")
        are_class_rows = self._has_class_labels and isinstance(y, np.ndarray) and y.ndim == 2
        if isinstance(self.spec, TextSpec) and (are_names or are_class_rows):
            # Labels with a number for each class (such as one-hot) keep this form.
            rows, labels = self.spec.parse_rows(y), self.spec.parse_labels(y)
            y = self.spec.targets(labels) if rows is None else rows
        if isinstance(y, np.ndarray):
            y = self._convert_label_form(y)
            input_adapters.check_same_length(len(x["input_ids"]), y, "y")
            if y.dtype.kind == "f":
                for wrong in y[~(np.abs(y) <= input_adapters.MAX_MAGNITUDE)]:
                    input_adapters.check_number(wrong, "a value in y")
        return y

    @property
    def _has_class_labels(self) -> bool:
        return isinstance(self.spec, LabelSpec) and self.spec.is_single_label

    def _convert_label_form(self, targets: Array) -> Array:
        if not self._has_class_labels:
            return targets
        return class_labels.convert_label_form(targets, self._has_one_hot, len(self.spec.labels or ()))

    # Lists, arrays and columns.

    def make_examples(self, x: Any, y: Any, sample_weight: Any = None) -> Examples:
        """Parses texts, labels and weights to Examples.

        Args:
            x: Texts, in any form except a data set.
            y: Labels, or None if the task needs none.
            sample_weight: Weight of each text.

        Raises:
            UserError: If one of the arguments has the wrong form or length.
        """
        if x is None:
            raise UserError("x is missing; pass the texts")
        if y is None and self.spec.needs_labels:
            raise UserError(_NO_LABELS)
        if not self.spec.supports_sample_weight and sample_weight is not None:
            raise UserError(f"{self.spec.kind} does not support sample_weight; remove it")
        examples = self.spec.make_training_examples(x, y)
        weights = None
        if sample_weight is not None:
            weights = input_adapters.check_weights(sample_weight, "sample_weight")
            input_adapters.check_same_length(len(examples), weights, "sample_weight")
        if weights is not None and self.spec.has_tokens:
            weights = weights[:, None]  # The weight of a sentence applies to each of its tokens, for any loss.
        return Examples(examples, weights)

    def training(
        self, examples: Examples, batch_size: int, shuffle: bool, group_by_length: bool = False
    ) -> tf.data.Dataset:
        """Returns a data set of training batches: padded token ids, targets and optional sample weights.

        Args:
            examples: The labelled examples.
            batch_size: Number of texts per batch.
            shuffle: Whether to shuffle the examples, in another order in each epoch.
            group_by_length: Whether to put texts of similar length into the same batch.

        Raises:
            UserError: If all texts are empty.
        """

        def draw_batches(features: Features) -> Array:
            lengths = row_lengths(features)
            if lengths.max() <= 2:  # [CLS] and [SEP]
                raise UserError("all texts in x are empty")
            if not shuffle:
                return batches.split_into_batches(np.arange(len(features)), batch_size)
            return batches.draw_batches(
                lengths,
                batch_size,
                self._model.seed,
                self.epoch,
                texts=features.details.get(TEXTS),
                group_by_length=group_by_length,
                prints_note=self._prints_notes,
            )

        return self._make_dataset(examples, batch_size, draw_batches)

    def evaluation(self, examples: Examples, batch_size: int) -> tf.data.Dataset:
        """Returns a data set of evaluation batches, like `training`. Texts are sorted by length."""

        def sort_rows(features: Features) -> Array:
            return batches.split_into_batches(np.argsort(row_lengths(features), kind="stable"), batch_size)

        return self._make_dataset(examples, batch_size, sort_rows)

    def compute_text_metrics(self, examples: Examples, batch_size: int) -> dict[str, Any]:
        """Returns the loss and the metrics of the mean logits of each text, if texts are read in several windows.

        Returns an empty dict if no text has several windows. Keras' own figures count each window as a text.

        Args:
            examples: The labelled examples.
            batch_size: Number of rows per batch.
        """
        model: Any = self._model
        if not self.averages_windows or len(features := self._featurize(examples.items)) == len(examples.items):
            return {}
        outputs = model._compute_outputs(features, batch_size, verbose=0)
        logits = average_windows(outputs, features).astype(np.float32)
        first_rows = np.unique(features.details[EXAMPLE], return_index=True)[1]
        targets, logits = add_axis(tf.constant(features.targets[LABELS][first_rows]), tf.constant(logits))
        model.reset_metrics()
        loss = model.compute_loss(None, targets, logits, examples.weights, training=False)
        metrics = model.compute_metrics(None, targets, logits, examples.weights if model._weighs_metrics else None)
        return {name: float(value) for name, value in {**metrics, "loss": loss}.items()}

    def _make_dataset(
        self, examples: Examples, batch_size: int, draw_batches: Callable[[Features], Array]
    ) -> tf.data.Dataset:
        features = self._featurize(examples.items)
        self._print_truncation(features.num_truncated, len(examples.items))
        weights = self._row_weights(features, examples)

        def iterate_batches() -> Iterator[tuple[Any, ...]]:
            for rows in self._list_batch_rows(draw_batches(features)):
                yield self._make_batch(features, rows, weights)

        num_batches = -(-len(features) // batch_size)
        # An epoch that leaves out rows with equal texts may have smaller batches.
        have_equal_sizes = (num_batches == 1 or len(features) % batch_size == 0) and TEXTS not in features.details
        return batches.make_dataset(iterate_batches, num_batches, have_equal_sizes)

    def _list_batch_rows(self, batch_indices: Array) -> list[Array]:
        """Returns the indices in Features of the texts or windows of each batch.

        With several replicas, indices of -1 (rows of padding) make the size of each batch a multiple of their number.
        """
        strategy = self._model.distribute_strategy
        if uses_own_loop(strategy):
            return list(batches.pad_batches(batch_indices, strategy.num_replicas_in_sync))
        return [rows[rows >= 0] for rows in batch_indices]

    def _featurize(self, examples: Sequence[Any]) -> Features:
        if not examples:
            raise UserError(NO_EXAMPLES)
        features = self.spec.featurize(examples, self._model._tokenizer, self._model.max_seq_length)
        if self.spec.needs_labels and not features.targets:
            raise UserError(_NO_LABELS)
        if LABELS not in features.targets:
            return features
        targets = {LABELS: self._convert_label_form(features.targets[LABELS])}
        return dataclasses.replace(features, targets=features.targets | targets)

    def print_data_set_truncation(self, steps: int | None, *parts: str) -> None:
        """Prints how many of the texts that fit or evaluate read from a data set were truncated, if any were.

        Args:
            steps: Number of steps after which Keras stops reading, or None. TensorFlow has then read ahead.
            parts: Prefixes of the note, such as "validation". Empty strings are ignored.
        """
        read_ahead = "with batches read ahead" if steps else ""
        self._print_truncation(self._num_truncated, self._num_texts, *parts, read_ahead)

    def _print_truncation(self, num_truncated: int, num_texts: int, *parts: str) -> None:
        line = self.spec.describe_truncation(num_truncated, num_texts, self._model.max_seq_length)
        if line and self._prints_notes:
            print(": ".join(filter(None, ["note", ", ".join(filter(None, parts)), line])))

    def _row_weights(self, features: Features, examples: Examples) -> Array | None:
        """Returns the weight of each text or window in the loss, float32 [R], or [R, 1] for tagging.

        None if all weights are 1.
        """
        weights = None if examples.weights is None else examples.weights[features.details[EXAMPLE]]
        if self._class_weight is None:
            return weights
        labels = self.spec.labels or ()
        classes = np.array([example.label for example in examples.items])[features.details[EXAMPLE]]
        if class_labels.is_balanced(self._class_weight):
            by_class = class_labels.balanced_weights(classes, len(labels)).astype(np.float32)
        else:
            by_class = class_labels.weights_by_class(self._class_weight, labels)
        return by_class[classes] if weights is None else weights * by_class[classes]

    def _make_batch(self, features: Features, rows: Array, weights: Array | None, first: int = 0) -> tuple[Any, ...]:
        """Returns the padded inputs, targets and optional sample weights of a batch.

        Args:
            features: Features with targets.
            rows: Indices of the batch's rows in `features`. -1 gives a row of padding.
            weights: Sample weights of all rows of `features`. None if all weights are 1.
            first: Index within the epoch of the first row of `features`.
        """
        model = self._model
        buckets = get_static_lengths(model.distribute_strategy, model.max_seq_length)
        multiple = batches.COMPILED_MULTIPLE if model.jit_compile else MULTIPLE
        batch = batches.pad_batch(features, rows, model.max_seq_length, weights, multiple, buckets)
        # The epoch and the row seed random targets (masked tokens).
        return self.spec.randomize_batch(batch, [hash((model.seed, self.epoch, first + int(row))) for row in rows])

    # Data sets.

    def convert_data_set(self, data: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
        """Converts a data set of texts (and labels) to batches of token ids (and targets). Counts truncated texts.

        Args:
            data: The data set, batched or not.
            batch_size: Number of texts per batch, if the data set is not batched.
        """
        data_sets.check_texts(data, self.spec)
        data = data_sets.make_batches(data, batch_size)

        def iterate_id_batches() -> Iterator[tuple[Any, ...]]:
            first = 0
            for examples in self._iterate_examples(data):
                features = self._featurize(examples.items)
                (rows,) = self._list_batch_rows(np.arange(len(features))[None])
                # Counted before yield, because nothing may be requested after the last batch.
                self._num_texts += len(examples.items)
                self._num_truncated += features.num_truncated
                yield self._make_batch(features, rows, self._row_weights(features, examples), first)
                first += len(features)

        dataset = batches.make_dataset(iterate_id_batches, int(data.cardinality()))
        self._num_texts = self._num_truncated = 0  # make_dataset read a first batch for its shapes
        return dataset

    @property
    def averages_windows(self) -> bool:
        """Whether the model may read a text in several windows and average their logits."""
        return isinstance(self.spec, TextSpec) and self.spec.reads_windows

    def collect_examples(self, data: tf.data.Dataset | Examples, batch_size: int) -> Examples:
        """Returns the labelled examples of a data set, in its order. Returns Examples unchanged."""
        if isinstance(data, Examples):
            return data
        parts = list(self._iterate_examples(data_sets.make_batches(data, batch_size)))
        weights = [part.weights for part in parts if part.weights is not None]
        return Examples([item for part in parts for item in part.items], np.concatenate(weights) if weights else None)

    def _iterate_examples(self, data: tf.data.Dataset) -> Iterator[Examples]:
        """Yields the Examples of each batch of a batched data set."""
        for number, (x, y, weights) in enumerate(data_sets.read_batches(data, self.spec)):
            try:
                examples = self.make_examples(x, y, weights)
            except UserError as error:
                raise UserError(f"in batch {number} of the data set, {error}") from error
            yield examples
