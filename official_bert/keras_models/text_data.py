"""How text becomes batches for Keras' fit, evaluate and predict: from lists, arrays or a data set.

B batch, S sequence, R rows
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.finetuning import batches
from official_bert.finetuning.replicas import static_lengths
from official_bert.keras_models import inputs
from official_bert.keras_models.steps import SeededModel
from official_bert.tasks.task import EXAMPLE, LABELS, Features


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples of fit or evaluate, and how much each weighs (float32, None for 1)."""

    items: list[Any]
    weights: Any = None

    def __getitem__(self, part: slice) -> "Examples":
        return Examples(self.items[part], None if self.weights is None else self.weights[part])


class EpochCounter(keras.callbacks.Callback):
    """Knows the epoch, which decides the order of the examples; also where a callback resumes training."""

    epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch


class TextData(SeededModel):
    """A functional model that makes its batches from text; its subclasses say what text.

    Attributes:
        max_seq_length: the longest sequence in tokens.
        seed: of the order of the examples.
    """

    max_seq_length: int
    seed: int
    needs_labels: ClassVar[bool] = True
    pair = False  # whether an example is two texts

    # What subclasses say.

    def _examples(self, x: Any, y: Any) -> list[Any]:
        """Returns the examples of what a user gave, with labels unless y is None."""
        raise NotImplementedError

    def _featurize(self, examples: Sequence[Any]) -> Features:
        """Returns the examples as the network reads them."""
        raise NotImplementedError

    # What they share.

    def _padded_inputs(self, features: Features, rows: Any) -> dict[str, Any]:
        """The inputs of some rows, padded to the longest of them, or, on a TPU, to one of a few lengths."""
        buckets = static_lengths(self.distribute_strategy, self.max_seq_length)
        multiple = batches.COMPILED_MULTIPLE if self.jit_compile else batches.MULTIPLE
        return batches.padded_inputs(features, rows, self.max_seq_length, multiple, buckets)

    def _batches_of(self, rows: Any, batch_size: int) -> list[Any]:
        """The rows (-1 for padding) of each batch: as many in each over several replicas, else fewer in the last."""
        starts = range(0, len(rows), batch_size)
        parts = [rows[start : start + batch_size] for start in starts]
        if not self.is_replicated:
            return [part[part >= 0] for part in parts]
        size = batch_size + -batch_size % self.distribute_strategy.num_replicas_in_sync
        return [np.pad(part, (0, size - len(part)), constant_values=-1) for part in parts]

    def _weighed(self, x: Any, y: Any, sample_weight: Any, class_weight: Mapping[Any, float] | None) -> Examples:
        if y is None and self.needs_labels:
            raise UserError("there are no labels; give them as y")
        examples = self._examples(x, y)
        weights = None
        if sample_weight is not None:
            values = inputs.as_list(sample_weight)
            inputs.check_same_length(len(examples), values, "sample_weight")
            weights = np.asarray(values, np.float32)
        if class_weight:
            by_class = self._weights_by_class(class_weight)[[example.label for example in examples]]
            weights = by_class if weights is None else weights * by_class
        return Examples(examples, weights)

    def _weights_by_class(self, class_weight: Mapping[Any, float]) -> Any:
        """The weight of each class, float32 [C]."""
        raise UserError(f"{type(self).__name__} has no classes to weigh; leave out class_weight")

    def _training_data(
        self, examples: Examples, batch_size: int, shuffle: bool, counter: EpochCounter
    ) -> tf.data.Dataset:
        features = self._labelled(examples.items)
        lengths = batches.row_lengths(features)

        def plan() -> list[Any]:
            order = np.arange(len(features))
            if shuffle:
                order = batches.training_batch_indices(lengths, batch_size, self.seed, counter.epoch).ravel()
            return self._batches_of(order, batch_size)

        return self._dataset(features, plan, examples.weights, counter)

    def _evaluation_data(self, data: Any, batch_size: int) -> Any:
        """Batches of validation data in any form; those of texts in the order of length."""
        if data is None or inputs.has_features(data) or inputs.is_features(_first(data)):
            return data
        if isinstance(data, tf.data.Dataset):
            return self.shared_out(self._dataset_of_features(data, batch_size, EpochCounter(), None))
        if not isinstance(data, Examples):
            if not self.needs_labels and not (isinstance(data, tuple) and any(part is None for part in data)):
                data = (data, None)  # texts alone
            if len(data) not in (2, 3):
                raise UserError(f"validation data are {len(data)} things; expected texts and labels, and maybe weights")
            data = self._weighed(data[0], data[1], data[2] if len(data) == 3 else None, None)
        features = self._labelled(data.items)
        order = np.argsort(batches.row_lengths(features), kind="stable")
        rows = self._batches_of(order, batch_size)
        return self.shared_out(self._dataset(features, lambda: rows, data.weights, EpochCounter()))

    def _labelled(self, examples: Sequence[Any]) -> Features:
        if not examples:
            raise UserError("there are no examples")
        features = self._featurize(examples)
        if not features.targets:
            raise UserError("there are no labels; give them as y")
        return features

    def _batch(self, features: Features, rows: Any, epoch: int, first: int = 0) -> tuple[dict[str, Any], Any]:
        """The inputs of some rows, padded to the longest of them, and their targets.

        Args:
            features: of the rows.
            rows: their numbers.
            epoch: which differs where targets are drawn at random, as does
            first: what the features' first row is of the epoch's.
        """
        ids = self._padded_inputs(features, rows)
        targets = batches.padded_targets(features, rows, ids["input_ids"].shape[-1])
        return ids, targets[LABELS] if list(targets) == [LABELS] else targets

    def _dataset(
        self, features: Features, plan: Callable[[], list[Any]], weights: Any, counter: EpochCounter
    ) -> tf.data.Dataset:
        """Batches of features as a data set: inputs, targets and, where examples weigh differently, weights."""
        return batches.as_dataset(lambda rows: self._weighed_batch(features, rows, weights, counter.epoch), plan)

    def _weighed_batch(
        self, features: Features, rows: Any, weights: Any, epoch: int, first: int = 0
    ) -> tuple[Any, ...]:
        ids, targets = self._batch(features, rows, epoch, first)
        if weights is None:
            return ids, targets
        of_rows = weights[features.details[EXAMPLE][rows] if EXAMPLE in features.details else rows]
        return ids, targets, dict.fromkeys(targets, of_rows) if isinstance(targets, dict) else of_rows

    def _dataset_of_features(
        self,
        data: tf.data.Dataset,
        batch_size: int,
        counter: EpochCounter,
        class_weight: Mapping[Any, float] | None,
    ) -> tf.data.Dataset:
        """A data set of texts, or of texts and labels, as one of ids and numbers, a batch of it for each of its own.

        Python does that, as for lists; it is how one text can become several rows.
        """
        self._check_data_set(data.element_spec)
        spec = data.element_spec
        if not inputs.is_batched(spec[0] if isinstance(spec, tuple) else spec):
            data = data.ragged_batch(batch_size)

        def batches_of_features() -> Iterator[tuple[Any, ...]]:
            first = 0
            for element in data:
                columns = inputs.as_values(element if self.needs_labels else (element,))
                x, y, weights = (*columns, None, None)[:3]
                if isinstance(y, tuple):
                    y = list(zip(*y, strict=True))
                examples = self._weighed(x, y, weights, class_weight)
                features = self._labelled(examples.items)
                (rows,) = self._batches_of(np.arange(len(features)), len(features))
                yield self._weighed_batch(features, rows, examples.weights, counter.epoch, first)
                first += len(features)

        return batches.streamed(batches_of_features, int(data.cardinality()))

    def _check_data_set(self, spec: Any) -> None:
        """Raises a UserError if elements of a data set are not such that fit can take them."""
        if self.needs_labels and (not isinstance(spec, tuple) or len(spec) not in (2, 3)):
            raise UserError("the data set holds texts alone; expected tuples of (texts, labels), maybe with weights")
        if not self.needs_labels and isinstance(spec, tuple):
            raise UserError(f"the data set holds {len(spec)} things; expected texts alone")
        x = spec[0] if isinstance(spec, tuple) else spec
        texts = tf.nest.flatten(x)
        if any(each.dtype != tf.string for each in texts) or len(texts) != 1 + self.pair:
            expected = "two strings, as (first, second)" if self.pair else "a string"
            raise UserError(f"the data set's first part is {x}; expected {expected}")

    def _texts_in(self, data: tf.data.Dataset) -> Any:
        """The texts of a data set, batched or not, in order; labels are left out."""
        spec = data.element_spec
        if isinstance(spec, tuple) and not (self.pair and _is_text(spec)):
            data = data.map(lambda x, *_: x)
            spec = data.element_spec
        if inputs.is_batched(spec):
            data = data.unbatch()
        rows = list(data.as_numpy_iterator())
        if isinstance(spec, Mapping):
            return {name: [row[name] for row in rows] for name in spec}
        if isinstance(spec, tuple):
            return tuple([row[number] for row in rows] for number in range(len(spec)))
        return rows


def _first(data: Any) -> Any:
    return data[0] if isinstance(data, tuple) and data else data


def _is_text(spec: Any) -> bool:
    """Whether a tuple of specifications is a pair of texts, rather than texts and labels of numbers."""
    return len(spec) == 2 and all(isinstance(each, tf.TensorSpec) and each.dtype == tf.string for each in spec)
