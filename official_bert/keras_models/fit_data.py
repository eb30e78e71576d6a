"""Text as batches for Keras' fit and evaluate: from lists, arrays or a data set.

B batch, E examples, R rows
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.data.dataset_options import dataset_options
from official_bert.errors import UserError
from official_bert.keras_models import data_sets
from official_bert.keras_models.cut_texts import CutTexts
from official_bert.keras_models.preprocessor import Preprocessor
from official_bert.keras_models.steps import takes_own_steps
from official_bert.kinds import class_labels, input_adapters
from official_bert.kinds.features import EXAMPLE, LABELS, TEXTS, Array, Features
from official_bert.kinds.model import check_values, model_for
from official_bert.kinds.spec import KindSpec
from official_bert.kinds.text_spec import TextSpec
from official_bert.learning import batches
from official_bert.learning.replicas import static_lengths
from official_bert.tokenization.fast import FastTokenizer

_NOT_COUNTED = (
    f"class_weight is {class_labels.BALANCED!r}, for which all labels are counted, and they come in a data set; give a "
    "dict of weights by class"
)


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples of fit or evaluate, and how much each weighs."""

    items: list[Any]
    weights: Array | None = None  # float32 [E], of tags [E, 1]; None for 1
    is_balanced: bool = False  # whether the rows of each class also weigh as much as those of any other altogether

    def __getitem__(self, part: slice) -> "Examples":
        weights = None if self.weights is None else self.weights[part]
        return dataclasses.replace(self, items=self.items[part], weights=weights)


class EpochCounter(keras.callbacks.Callback):
    """Knows the epoch, which decides the order of the examples; also where a callback resumes training."""

    epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitData:
    """Makes batches of what a user gives."""

    head: KindSpec  # says what examples look like
    tokenizer: FastTokenizer  # for their texts
    max_seq_length: int  # the longest sequence in tokens
    seed: int  # of the order of the examples
    preprocessor: Callable[[], Preprocessor]  # returns the layer for texts of data sets, which makes tables of its own
    strategy: tf.distribute.Strategy  # that of the model
    is_compiled: bool  # whether XLA compiles each length

    def examples(
        self, x: Any, y: Any, sample_weight: Any = None, class_weight: Mapping[Any, float] | str | None = None
    ) -> Examples:
        """Returns examples with labels and weights.

        Raises:
            UserError: one of them has another form, or there is another number of one.
        """
        if x is None:
            raise UserError("there are no texts; give them as x")
        if y is None and self.head.needs_labels:
            raise UserError("there are no labels; give them as y")
        if not self.head.weighs_examples and (sample_weight is not None or class_weight is not None):
            raise UserError(f"{self.head.kind} has no classes, and weighs all texts alike; leave out the weights")
        examples = self.head.training_examples(x, y)
        weights = None
        if sample_weight is not None:
            weights = input_adapters.check_weights(sample_weight, "sample_weight")
            input_adapters.check_same_length(len(examples), weights, "sample_weight")
        is_balanced = class_labels.is_balanced(class_weight)
        if is_balanced:
            self.head.weights_by_class({})  # an error where an example is not of one class
        elif class_weight is not None:
            by_class = self.head.weights_by_class(class_weight)[[example.label for example in examples]]
            weights = by_class if weights is None else weights * by_class
        if weights is not None and self.head.has_tokens:
            weights = weights[:, None]  # a sentence's weight is that of its tokens, whatever loss they are given to
        return Examples(examples, weights, is_balanced)

    def weights_by_class(self, class_weight: Mapping[Any, float] | str, y: Any) -> Array:
        """Returns the weight of each class, [C], where the network's own inputs have the labels y; None in a data set.

        Raises:
            UserError: a weight cannot be, or all labels are to be counted, and y is None.
        """
        if not class_labels.is_balanced(class_weight):
            return self.head.weights_by_class(class_weight)
        if y is None:
            raise UserError(_NOT_COUNTED)
        self.head.weights_by_class({})  # an error where an example is not of one class
        labels = self.head.labels or ()
        return class_labels.balanced_weights(
            np.array(class_labels.class_numbers(input_adapters.as_list(y, "y"), labels)), len(labels)
        )

    def labels_of_ids(self, x: Any, y: Any) -> Any:
        """Returns labels that come with ids: a list, and names, as numbers; others as they are.

        Raises:
            UserError: there are none, another number of them, or one cannot be.
        """
        if isinstance(x, tf.data.Dataset):
            return y  # the data set has its labels
        if y is None and self.head.needs_labels:
            raise UserError("there are no labels; give them as y")
        if isinstance(y, list) or (isinstance(y, np.ndarray) and y.dtype.kind in "OSU"):
            if not isinstance(self.head, TextSpec):
                return y
            y = self.head.targets(self.head.labels_from(y))
        if isinstance(y, np.ndarray):
            input_adapters.check_same_length(len(x["input_ids"]), y, "y")
            if y.dtype.kind == "f" and not np.all(is_right := np.abs(y) <= input_adapters.LARGEST):
                wrong = input_adapters.shown(y[~is_right][0])
                raise UserError(f"y has {wrong}; expected finite numbers, at most {input_adapters.LARGEST:g}")
        return y

    def training(
        self, examples: Examples, batch_size: int, shuffle: bool, counter: EpochCounter, group_by_length: bool = False
    ) -> tf.data.Dataset:
        """Returns batches of rows in another order each epoch."""
        features = self._labelled(examples.items)
        self._say_what_was_cut(features, len(examples.items))
        lengths, weights = batches.row_lengths(features), self._row_weights(features, examples)

        def plan() -> list[Array]:
            if not shuffle:
                return self._rows_of(batches.cut(np.arange(len(features)), batch_size))
            texts = features.details.get(TEXTS)
            return self._rows_of(
                batches.training_batch_indices(
                    lengths, batch_size, self.seed, counter.epoch, texts=texts, group_by_length=group_by_length
                )
            )

        return batches.as_dataset(lambda rows: self._batch(features, rows, weights, counter.epoch), plan)

    def evaluation(self, examples: Examples, batch_size: int) -> tf.data.Dataset:
        """Returns batches in the order of length."""
        features = self._labelled(examples.items)
        self._say_what_was_cut(features, len(examples.items))
        rows = self._rows_of(batches.prediction_batch_indices(batches.row_lengths(features), batch_size))
        weights = self._row_weights(features, examples)
        return batches.as_dataset(lambda each: self._batch(features, each, weights, 0), rows)

    def _rows_of(self, batch_indices: Array) -> list[Array]:
        """The rows of each batch: a multiple of the replicas, with -1 for padding; else fewer in the last batch."""
        if takes_own_steps(self.strategy):
            return list(batches.filled_up(batch_indices, self.strategy.num_replicas_in_sync))
        return [rows[rows >= 0] for rows in batch_indices]

    def _labelled(self, examples: Sequence[Any]) -> Features:
        if not examples:
            raise UserError("there are no examples")
        features = self.head.featurize(examples, self.tokenizer, self.max_seq_length)
        if self.head.needs_labels and not features.targets:
            raise UserError("there are no labels; give them as y")
        return features

    def _say_what_was_cut(self, features: Features, examples: int) -> None:
        if note := self.head.cut_note(features.cut, examples, self.max_seq_length):
            print(f"note: {note}")

    def _row_weights(self, features: Features, examples: Examples) -> Array | None:
        """How much each row weighs, float32 [R], of tags [R, 1]; None for 1."""
        weights = None if examples.weights is None else examples.weights[features.details[EXAMPLE]]
        if not examples.is_balanced:
            return weights
        labels = features.targets[LABELS]
        balanced = class_labels.balanced_weights(labels, len(self.head.labels or ()))[labels].astype(np.float32)
        return balanced if weights is None else weights * balanced

    def _batch(
        self, features: Features, rows: Array, weights: Array | None, epoch: int, first: int = 0
    ) -> tuple[Any, ...]:
        """Inputs, targets and maybe weights of some rows; `first` is what the features' first row is of the epoch's."""
        buckets = static_lengths(self.strategy, self.max_seq_length)
        multiple = batches.COMPILED_MULTIPLE if self.is_compiled else batches.MULTIPLE
        batch = batches.padded_batch(features, rows, self.max_seq_length, weights, multiple, buckets)
        return self.head.drawn(batch, [hash((self.seed, epoch, first + int(row))) for row in rows])

    # Data sets.

    def of_data_set(
        self,
        data: tf.data.Dataset,
        batch_size: int,
        counter: EpochCounter,
        class_weight: Mapping[Any, float] | str | None = None,
        cut_texts: CutTexts | None = None,
    ) -> tf.data.Dataset:
        """Returns a data set of texts, or of texts and labels, as one of ids and numbers, batch by batch.

        TensorFlow does that where a text is one row and its label one number. Otherwise Python does, as for lists.
        `cut_texts` counts what is taken of it.
        """
        self._check_data_set(data.element_spec)
        if not int(data.cardinality()):
            raise UserError("there are no examples: the data set is empty")
        if class_labels.is_balanced(class_weight):
            raise UserError(_NOT_COUNTED)
        spec = data.element_spec
        is_batched = data_sets.is_batched(spec[0] if isinstance(spec, tuple) else spec)
        numbers = model_for(self.head).graph_labels(spec[1], is_batched) if self.head.needs_labels else None
        if numbers is not None:
            counted = self._in_graph(data if is_batched else data.batch(batch_size), numbers, class_weight)
        else:
            counted = self._in_python(data if is_batched else data.ragged_batch(batch_size), counter, class_weight)
        return (cut_texts or CutTexts()).counting(counted)

    def _in_graph(
        self, data: tf.data.Dataset, numbers: Any, class_weight: Mapping[Any, float] | str | None
    ) -> tf.data.Dataset:
        """As `CutTexts.counting` takes it; likewise `_in_python`."""
        by_class = None if class_weight is None else self.head.weights_by_class(class_weight)
        preprocessor = self.preprocessor()

        def ids(x: Any, y: Any, *weights: Any) -> tuple[Any, ...]:
            labels = numbers(y)
            if weights:
                weight = tf.reshape(tf.cast(weights[0], tf.float32), [-1])  # also of a column [B, 1]
                is_right, most = (weight >= 0) & (weight <= input_adapters.LARGEST), f"{input_adapters.LARGEST:g}"
                expected = f"a finite number, 0 or more, at most {most}"
                weights = (check_values(weight, weight, is_right, "weight", expected),)
            if by_class is not None:
                of_classes = tf.gather(by_class, tf.cast(labels, tf.int32))
                weights = (of_classes * weights[0] if weights else of_classes,)
            inputs, are_cut = preprocessor.ids_and_cuts(x)
            counts = tf.stack([tf.size(are_cut, tf.int64), tf.math.count_nonzero(are_cut)])
            return counts, inputs, labels, *weights

        data = data.map(ids, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
        return data.with_options(dataset_options())

    def _in_python(
        self, data: tf.data.Dataset, counter: EpochCounter, class_weight: Mapping[Any, float] | str | None
    ) -> tf.data.Dataset:
        def batches_of_ids() -> Iterator[tuple[Any, ...]]:
            first = 0
            for examples in self._examples_of(data, class_weight):
                features = self._labelled(examples.items)
                (rows,) = self._rows_of(np.arange(len(features))[None])
                batch = self._batch(features, rows, self._row_weights(features, examples), counter.epoch, first)
                yield np.array([len(examples.items), features.cut]), *batch
                first += len(features)

        return batches.streamed(batches_of_ids, int(data.cardinality()))

    def examples_in(self, data: tf.data.Dataset, batch_size: int) -> list[Any]:
        """Returns the labelled examples of a data set, batched or not, in order; weights are left out."""
        spec = data.element_spec
        is_batched = data_sets.is_batched(spec[0] if isinstance(spec, tuple) else spec)
        batches = self._examples_of(data if is_batched else data.ragged_batch(batch_size))
        return [item for examples in batches for item in examples.items]

    def _examples_of(
        self, data: tf.data.Dataset, class_weight: Mapping[Any, float] | str | None = None
    ) -> Iterator[Examples]:
        """Yields the examples of each batch."""
        for element in data.with_options(dataset_options()):
            columns = data_sets.as_values(element if self.head.needs_labels else (element,))
            x, y, weights = (*columns, None, None)[:3]
            if isinstance(y, tuple):
                y = list(zip(*y, strict=True))
            yield self.examples(x, y, weights, class_weight)

    def _check_data_set(self, spec: Any) -> None:
        """Raises a UserError if elements of a data set are not such that fit can take them."""
        needs_labels = self.head.needs_labels
        if needs_labels and (not isinstance(spec, tuple) or len(spec) not in (2, 3)):
            raise UserError("the data set holds texts alone; expected tuples of (texts, labels), maybe with weights")
        if not needs_labels and isinstance(spec, tuple):
            raise UserError(f"the data set holds {len(spec)} things; expected texts alone")
        x = spec[0] if isinstance(spec, tuple) else spec
        texts = tf.nest.flatten(x)
        if any(each.dtype != tf.string for each in texts) or len(texts) != 1 + self.head.pair:
            expected = "two strings, as (first, second)" if self.head.pair else "a string"
            raise UserError(f"the data set's first part is {x}; expected {expected}")

    def texts_in(self, data: tf.data.Dataset) -> Any:
        """Returns the texts of a data set, batched or not, in order; labels are left out."""
        spec = data.element_spec
        if isinstance(spec, tuple) and not (self.head.pair and _are_texts(spec)):
            data = data.map(lambda x, *_: x)
            spec = data.element_spec
        if data_sets.is_batched(spec):
            data = data.unbatch()
        rows = list(data.with_options(dataset_options()).as_numpy_iterator())
        if isinstance(spec, Mapping):
            return {name: [row[name] for row in rows] for name in spec}
        if isinstance(spec, tuple):
            return tuple([row[number] for row in rows] for number in range(len(spec)))
        return rows


def _are_texts(spec: Any) -> bool:
    """Whether a tuple of specifications is a pair of texts, rather than texts and labels of numbers."""
    return len(spec) == 2 and all(isinstance(each, tf.TensorSpec) and each.dtype == tf.string for each in spec)
