"""Converts everything that users pass to fit and evaluate to tf.data.Datasets of token ids.

B batch size, E examples, R rows of the model's input (texts, or windows of long texts), C classes
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.data.dataset_options import make_dataset_options
from official_bert.errors import UserError
from official_bert.finetuning import batches
from official_bert.keras_models.fit_arguments import NO_EXAMPLES, count_kept
from official_bert.keras_models.steps import uses_own_loop
from official_bert.keras_models.truncation import TruncationCounter
from official_bert.kinds import class_labels, input_adapters
from official_bert.kinds.features import EXAMPLE, LABELS, TEXTS, Array, Features
from official_bert.kinds.input_adapters import format_value
from official_bert.kinds.spec import KindSpec
from official_bert.kinds.text_spec import LabelSpec, TextSpec
from official_bert.tokenization.fast import FastTokenizer
from official_bert.training.replicas import get_static_lengths

_NO_LABELS = "the examples have no labels; pass them as y"
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
    is_balanced: bool = False  # whether to weight rows so that all classes have the same total weight

    def __getitem__(self, part: slice) -> "Examples":
        weights = None if self.weights is None else self.weights[part]
        return dataclasses.replace(self, items=self.items[part], weights=weights)


class EpochCounter(keras.callbacks.Callback):
    """A callback that stores the current epoch.

    The order of the examples depends on it, also when training is resumed.
    """

    epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """Converts texts and labels in any form to batches of token ids and targets, for one model.

    Attributes:
        head: The spec of the model's task, which parses examples and labels.
        tokenizer: Tokenizer of the texts.
        max_seq_length: Maximum number of tokens in a sequence.
        seed: Random seed for shuffling.
        strategy: The distribution strategy of the model.
        is_compiled: Whether XLA compiles the training step, once for each sequence length.
        has_one_hot: Whether class labels are converted to one-hot rows (True) or to indices (False). None keeps the
            form in which the user passed them.
        prints_notes: Whether to print how many texts are truncated or left out.
    """

    head: KindSpec
    tokenizer: FastTokenizer
    max_seq_length: int
    seed: int
    strategy: tf.distribute.Strategy
    is_compiled: bool
    has_one_hot: bool | None
    prints_notes: bool = True

    # Arguments for keras.Model.fit and evaluate.

    def prepare_fit(
        self,
        x: Any,
        y: Any,
        sample_weight: Any,
        class_weight: ClassWeight,
        *,
        batch_size: int,
        validation_split: float,
        shuffle: bool,
        group_by_length: bool,
        counter: EpochCounter,
        truncation: TruncationCounter,
    ) -> tuple[dict[str, Any], Examples | None]:
        """Returns the data arguments for keras.Model.fit, and the held-out validation examples or None.

        Token ids are passed on unchanged, because Keras splits and shuffles them. All other data become a data set of
        batches.

        Args:
            x: Argument of fit.
            y: Argument of fit.
            sample_weight: Argument of fit.
            class_weight: Argument of fit.
            batch_size: Number of texts per batch.
            validation_split: Fraction of the texts to hold out.
            shuffle: Whether to shuffle the texts in each epoch.
            group_by_length: Whether to put texts of similar length into the same batch.
            counter: The callback that stores the current epoch.
            truncation: Counter for the truncated texts of data sets.

        Raises:
            UserError: If texts, labels or weights have the wrong form or length.
        """
        if input_adapters.are_ids(x):
            for weights in sample_weight.values() if isinstance(sample_weight, Mapping) else [sample_weight]:
                if weights is not None:
                    input_adapters.check_weights(np.ravel(weights), "sample_weight")
            if class_labels.is_balanced(class_weight):
                raise UserError(_NOT_COUNTED)
            if class_weight is not None:
                class_weight = dict(enumerate(self.head.weights_by_class(class_weight).tolist()))
            ids = {"x": x, "y": self.convert_labels(x, y), "sample_weight": sample_weight, "class_weight": class_weight}
            if isinstance(x, tf.data.Dataset):
                return {**ids, "shuffle": False}, None
            split = {"batch_size": batch_size, "validation_split": validation_split, "shuffle": shuffle}
            return {**ids, **split}, None
        if isinstance(x, tf.data.Dataset):
            if y is not None or sample_weight is not None or validation_split:
                raise UserError(
                    "x is a data set and must contain labels and weights; remove y, sample_weight and validation_split"
                )
            return {
                "x": self.convert_data_set(x, batch_size, counter, class_weight, truncation),
                "shuffle": False,
            }, None
        examples, held_out = self.examples(x, y, sample_weight, class_weight), None
        if validation_split:
            kept = count_kept(len(examples.items), validation_split)
            examples, held_out = examples[:kept], examples[kept:]
        data = self.training(examples, batch_size, shuffle, counter, group_by_length)
        return {"x": data, "shuffle": False}, held_out

    def prepare_evaluation(self, data: Any, batch_size: int, truncation: TruncationCounter | None = None) -> Any:
        """Converts evaluation data to batches for keras.Model.evaluate. Token ids are returned unchanged.

        Args:
            data: Examples, token ids, a data set, or a tuple of texts, labels and optional sample weights.
            batch_size: Number of texts per batch.
            truncation: Counter for the truncated texts of data sets.
        """
        first = data[0] if isinstance(data, tuple) and data else data
        if data is None or input_adapters.are_ids(first):
            return data
        if isinstance(data, tf.data.Dataset):
            return self.convert_data_set(data, batch_size, EpochCounter(), truncation=truncation)
        if not isinstance(data, Examples):
            if not self.head.needs_labels and not (isinstance(data, tuple) and any(part is None for part in data)):
                data = (data, None)  # Only texts.
            if len(data) not in (2, 3):
                raise UserError(
                    f"validation_data has {len(data)} parts; expected (texts, labels) or (texts, labels, weights)"
                )
            data = self.examples(*data)
        return self.evaluation(data, batch_size)

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
        if y is None and self.head.needs_labels:
            raise UserError(_NO_LABELS)
        if isinstance(y, list) or (isinstance(y, np.ndarray) and y.dtype.kind in "OSU"):
            if not isinstance(self.head, TextSpec):
                return y
            y = self._parse_targets(y)
        elif self._has_class_labels and isinstance(y, np.ndarray) and y.ndim == 2:
            y = self._parse_targets(y)
        if isinstance(y, np.ndarray):
            y = self._convert_label_form(y)
            input_adapters.check_same_length(len(x["input_ids"]), y, "y")
            if y.dtype.kind == "f" and not np.all(is_valid := np.abs(y) <= input_adapters.MAX_MAGNITUDE):
                wrong = format_value(y[~is_valid][0])
                raise UserError(
                    f"y contains {wrong}; expected finite numbers, at most {input_adapters.MAX_MAGNITUDE:g}"
                )
        return y

    @property
    def _has_class_labels(self) -> bool:
        return isinstance(self.head, LabelSpec) and self.head.is_single_label

    def _parse_targets(self, y: Any) -> Array:
        """Converts labels to targets of the loss.

        Labels with a number for each class (such as one-hot) keep this form.
        """
        assert isinstance(self.head, TextSpec)
        rows, labels = self.head.parse_rows(y), self.head.parse_labels(y)
        return self.head.targets(labels) if rows is None else rows

    def _convert_label_form(self, targets: Array) -> Array:
        if not self._has_class_labels:
            return targets
        return class_labels.convert_label_form(targets, self.has_one_hot, len(self.head.labels or ()))

    # Lists, arrays and columns.

    def examples(self, x: Any, y: Any, sample_weight: Any = None, class_weight: ClassWeight = None) -> Examples:
        """Parses texts, labels and weights to Examples.

        Args:
            x: Texts, in any form except a data set.
            y: Labels, or None if the task needs none.
            sample_weight: Weight of each text.
            class_weight: Weights by class name or index, or "balanced".

        Raises:
            UserError: If one of the arguments has the wrong form or length.
        """
        if x is None:
            raise UserError("x is missing; pass the texts")
        if y is None and self.head.needs_labels:
            raise UserError(_NO_LABELS)
        if not self.head.supports_sample_weight and (sample_weight is not None or class_weight is not None):
            raise UserError(f"{self.head.kind} does not support sample_weight and class_weight; remove them")
        examples = self.head.training_examples(x, y)
        weights = None
        if sample_weight is not None:
            weights = input_adapters.check_weights(sample_weight, "sample_weight")
            input_adapters.check_same_length(len(examples), weights, "sample_weight")
        is_balanced = class_labels.is_balanced(class_weight)
        if is_balanced:
            self.head.weights_by_class({})  # Raises an error if the kind has no single classes.
        elif class_weight is not None:
            by_class = self.head.weights_by_class(class_weight)[[example.label for example in examples]]
            weights = by_class if weights is None else weights * by_class
        if weights is not None and self.head.has_tokens:
            weights = weights[:, None]  # The weight of a sentence applies to each of its tokens, for any loss.
        return Examples(examples, weights, is_balanced)

    def training(
        self, examples: Examples, batch_size: int, shuffle: bool, counter: EpochCounter, group_by_length: bool = False
    ) -> tf.data.Dataset:
        """Returns a data set of training batches: padded token ids, targets and optional sample weights.

        Args:
            examples: The labelled examples.
            batch_size: Number of texts per batch.
            shuffle: Whether to shuffle the examples, in another order in each epoch.
            counter: The callback that stores the current epoch.
            group_by_length: Whether to put texts of similar length into the same batch.
        """
        features = self._featurize(examples.items)
        self._print_truncation(features, len(examples.items))
        lengths, weights = batches.row_lengths(features), self._row_weights(features, examples)
        texts = features.details.get(TEXTS)

        def batch_indices() -> list[Array]:
            if not shuffle:
                return self._list_batch_rows(batches.split_into_batches(np.arange(len(features)), batch_size))
            shuffled = batches.draw_batches(
                lengths,
                batch_size,
                self.seed,
                counter.epoch,
                texts=texts,
                group_by_length=group_by_length,
                prints_note=self.prints_notes,
            )
            return self._list_batch_rows(shuffled)

        return batches.make_dataset(lambda rows: self._batch(features, rows, weights, counter.epoch), batch_indices)

    def evaluation(self, examples: Examples, batch_size: int) -> tf.data.Dataset:
        """Returns a data set of evaluation batches, like `training`. Texts are sorted by length."""
        features = self._featurize(examples.items)
        self._print_truncation(features, len(examples.items))
        rows = self._list_batch_rows(batches.batch_by_length(batches.row_lengths(features), batch_size))
        weights = self._row_weights(features, examples)
        return batches.make_dataset(lambda each: self._batch(features, each, weights, 0), rows)

    def _list_batch_rows(self, batch_indices: Array) -> list[Array]:
        """Returns the indices in Features of the texts or windows of each batch.

        With several replicas, indices of -1 (rows of padding) make the size of each batch a multiple of their number.
        """
        if uses_own_loop(self.strategy):
            return list(batches.pad_batches(batch_indices, self.strategy.num_replicas_in_sync))
        return [rows[rows >= 0] for rows in batch_indices]

    def _featurize(self, examples: Sequence[Any]) -> Features:
        if not examples:
            raise UserError(NO_EXAMPLES)
        features = self.head.featurize(examples, self.tokenizer, self.max_seq_length)
        if self.head.needs_labels and not features.targets:
            raise UserError(_NO_LABELS)
        if LABELS not in features.targets:
            return features
        targets = {LABELS: self._convert_label_form(features.targets[LABELS])}
        return dataclasses.replace(features, targets=features.targets | targets)

    def _print_truncation(self, features: Features, examples: int) -> None:
        note = self.head.describe_truncation(features.num_truncated, examples, self.max_seq_length)
        if note and self.prints_notes:
            print(f"note: {note}")

    def _row_weights(self, features: Features, examples: Examples) -> Array | None:
        """Returns the sample weight of each text or window, float32 [R], or [R, 1] for tagging.

        None if all weights are 1.
        """
        weights = None if examples.weights is None else examples.weights[features.details[EXAMPLE]]
        if not examples.is_balanced:
            return weights
        labels = np.array([example.label for example in examples.items])[features.details[EXAMPLE]]
        balanced = class_labels.balanced_weights(labels, len(self.head.labels or ()))[labels].astype(np.float32)
        return balanced if weights is None else weights * balanced

    def _batch(
        self, features: Features, rows: Array, weights: Array | None, epoch: int, first: int = 0
    ) -> tuple[Any, ...]:
        """Returns the padded inputs, targets and optional sample weights of a batch.

        Args:
            features: Features with targets.
            rows: Indices of the batch's rows in `features`. -1 gives a row of padding.
            weights: Sample weights of all rows of `features`. None if all weights are 1.
            epoch: Current epoch, which seeds random targets (masked tokens).
            first: Index within the epoch of the first row of `features`.
        """
        buckets = get_static_lengths(self.strategy, self.max_seq_length)
        multiple = batches.COMPILED_MULTIPLE if self.is_compiled else batches.MULTIPLE
        batch = batches.pad_batch(features, rows, self.max_seq_length, weights, multiple, buckets)
        return self.head.randomize_batch(batch, [hash((self.seed, epoch, first + int(row))) for row in rows])

    # Data sets.

    def convert_data_set(
        self,
        data: tf.data.Dataset,
        batch_size: int,
        counter: EpochCounter,
        class_weight: ClassWeight = None,
        truncation: TruncationCounter | None = None,
    ) -> tf.data.Dataset:
        """Converts a data set of texts (and labels) to batches of token ids (and targets).

        Args:
            data: The data set, batched or not.
            batch_size: Number of texts per batch, if the data set is not batched.
            counter: The callback that stores the current epoch.
            class_weight: Weights by class name or index.
            truncation: Counter for the truncated texts.
        """
        self._check_data_set(data.element_spec)
        if not int(data.cardinality()):
            raise UserError("x is an empty data set")
        if class_labels.is_balanced(class_weight):
            raise UserError(_NOT_COUNTED)
        data = _batched(data, batch_size)

        def batches_of_ids() -> Iterator[tuple[Any, ...]]:
            first = 0
            for examples in self._iterate_examples(data, class_weight):
                features = self._featurize(examples.items)
                (rows,) = self._list_batch_rows(np.arange(len(features))[None])
                if truncation:  # before yield, because nothing may be requested after the last batch
                    truncation.texts += len(examples.items)
                    truncation.truncated += features.num_truncated
                yield self._batch(features, rows, self._row_weights(features, examples), counter.epoch, first)
                first += len(features)

        dataset = batches.make_streamed_dataset(batches_of_ids, int(data.cardinality()))
        if truncation:  # make_streamed_dataset read a first batch for its shapes
            truncation.texts = truncation.truncated = 0
        return dataset

    def examples_in(self, data: tf.data.Dataset, batch_size: int) -> list[Any]:
        """Returns the labelled examples of a data set, in its order, without sample weights."""
        return [item for examples in self._iterate_examples(_batched(data, batch_size)) for item in examples.items]

    def _iterate_examples(self, data: tf.data.Dataset, class_weight: ClassWeight = None) -> Iterator[Examples]:
        """Yields the Examples of each batch of a batched data set."""
        for number, element in enumerate(data.with_options(make_dataset_options())):
            x, y, weights = (*(element if self.head.needs_labels else (element,)), None, None)[:3]
            x, y, weights = tf.nest.map_structure(_to_array, (x, y, weights))
            if isinstance(y, tuple):
                y = list(zip(*y, strict=True))
            try:
                examples = self.examples(self._select_texts(x), y, weights, class_weight)
            except UserError as error:
                raise UserError(f"in batch {number} of the data set, {error}") from error
            yield examples

    def _check_data_set(self, spec: Any) -> None:
        """Raises a UserError if the elements of a data set are not texts, or (texts, labels) if the task needs labels.

        Args:
            spec: The element_spec of the data set.
        """
        needs_labels = self.head.needs_labels
        if needs_labels and (not isinstance(spec, tuple) or len(spec) not in (2, 3)):
            raise UserError(
                "the data set contains no labels; expected tuples (texts, labels) or (texts, labels, weights)"
            )
        if not needs_labels and isinstance(spec, tuple):
            raise UserError(f"the data set contains tuples of {len(spec)}; expected only texts")
        x = spec[0] if isinstance(spec, tuple) else spec
        self._check_keys(x)
        texts = tf.nest.flatten(x)
        if any(each.dtype != tf.string for each in texts) or len(texts) != 1 + self.head.pair:
            expected = "two strings, as (first, second)" if self.head.pair else "a string"
            expected += "; for pairs of texts, create the model with pair=True" if len(texts) == 2 else ""
            raise UserError(f"the data set's texts have the specification {x}; expected {expected}")

    def _check_keys(self, spec: Any) -> None:
        """Raises a UserError if texts are a dict (as in make_csv_dataset) whose keys are not the model's text inputs.

        Args:
            spec: The element_spec of the texts.
        """
        names = self.head.text_inputs
        if isinstance(spec, Mapping) and set(spec) != set(names):
            columns = ", ".join(f"columns[{key!r}]" for key in list(spec)[: len(names)])
            columns = f"({columns})" if len(names) > 1 else columns
            pairs = ". For pairs of texts, create the model with pair=True" if "text_pair" in spec else ""
            raise UserError(
                f"the data set has the keys {', '.join(map(str, spec))}; expected {' and '.join(names)}. "
                f"Select the texts: data.map(lambda columns, labels: ({columns}, labels)){pairs}"
            )

    def _select_texts(self, x: Any) -> Any:
        """Returns the only text column of a dict. Returns texts in another form unchanged."""
        is_single = isinstance(x, Mapping) and len(self.head.text_inputs) == 1
        return x[self.head.text_inputs[0]] if is_single else x

    def texts_in(self, data: Any) -> Any:
        """Returns the texts of a data set, in its order, without labels. Returns any other `data` unchanged."""
        if not isinstance(data, tf.data.Dataset):
            return data
        spec = data.element_spec
        if isinstance(spec, tuple) and not (self.head.pair and _are_texts(spec)):
            data = data.map(lambda x, *_: x)
            spec = data.element_spec
        self._check_keys(spec)
        if _is_batched(data, spec):
            data = data.unbatch()
        rows = list(data.with_options(make_dataset_options()).as_numpy_iterator())
        if isinstance(spec, Mapping):
            return self._select_texts({name: [row[name] for row in rows] for name in spec})
        if isinstance(spec, tuple):
            return tuple([row[number] for row in rows] for number in range(len(spec)))
        return rows


def _are_texts(spec: Any) -> bool:
    """Returns whether a tuple of TensorSpecs is a pair of texts, rather than texts with numeric labels."""
    return len(spec) == 2 and all(isinstance(each, tf.TensorSpec) and each.dtype == tf.string for each in spec)


def _is_batched(data: tf.data.Dataset, texts: Any = None) -> bool:
    """Returns whether the elements of a data set are batches of texts."""
    texts = texts or (data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec)
    rank = tf.nest.flatten(texts)[0].shape.rank
    if rank is None:
        raise UserError(
            f"the data set's texts have the specification {texts}; expected a known shape: [] or, in batches, [None]"
        )
    return bool(rank)


def _batched(data: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    return data if _is_batched(data) else data.ragged_batch(batch_size)


def _to_array(values: Any) -> Any:
    """Converts a tensor to a NumPy array, or a ragged tensor to a list. None stays None."""
    if values is None:
        return None
    return values.to_list() if isinstance(values, tf.RaggedTensor) else values.numpy()
