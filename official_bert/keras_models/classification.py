"""Texts or pairs of texts to classes, or to a number.

B texts, C classes
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.keras_models import inputs
from official_bert.keras_models.base import BaseTextModel
from official_bert.modeling.config import BertConfig
from official_bert.modeling.task_models import (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    build_classifier,
    build_regressor,
)
from official_bert.tasks import sequences
from official_bert.tasks.sequences import TextExample
from official_bert.tasks.task import Features


@keras.saving.register_keras_serializable(package="official_bert")
class AbsoluteError(keras.metrics.Mean):
    """The mean of absolute errors over all rows: Keras' own metric takes that of the batches', however small."""

    def __init__(self, name: str = "mean_absolute_error", **settings: Any) -> None:
        super().__init__(name=name, **settings)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        errors = keras.ops.abs(y_pred - keras.ops.cast(y_true, y_pred.dtype))
        super().update_state(errors, sample_weight)


class _SequenceModel(BaseTextModel):
    """What classifiers and regressors share: texts or pairs of texts.

    Args:
        config: as of BaseTextModel, as is `vocab`.
        pair: whether an example is two texts.
        doc_stride: None cuts texts that are too long; a number reads them in windows, each that many tokens after the
            one before, and averages their logits.
        settings: as of BaseTextModel.
    """

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        pair: bool = False,
        doc_stride: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(config, vocab, **settings)
        self.pair, self.doc_stride = pair, doc_stride

    def _own_config(self) -> dict[str, Any]:
        return {"pair": self.pair, "doc_stride": self.doc_stride}

    def _task_spec(self) -> dict[str, Any]:
        windows = {"doc_stride": self.doc_stride} if self.doc_stride else {}
        return {**super()._task_spec(), "kind": self._export_kind(), "pair": self.pair, **windows}

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        return {**super()._settings_of(spec), "pair": spec["pair"], "doc_stride": spec.get("doc_stride")}

    def _label_names(self) -> tuple[str, ...]:
        return ()

    def _label_values(self, y: Any) -> list[Any]:
        raise NotImplementedError

    def _examples(self, x: Any, y: Any) -> list[TextExample]:
        first, second = inputs.as_pairs(x) if self.pair else (inputs.as_texts(x), None)
        labels = [None] * len(first) if y is None else self._label_values(y)
        inputs.check_same_length(len(first), labels, "y")
        return [
            TextExample(str(number), text, None if second is None else second[number], labels[number])
            for number, text in enumerate(first)
        ]

    def _featurize(self, examples: Sequence[TextExample]) -> Features:
        return sequences.featurize(
            examples, self._tokenizer, self.max_seq_length, kind=self._export_kind(),
            num_labels=len(self._label_names()), doc_stride=self.doc_stride,
        )  # fmt: skip

    def _decode(self, outputs: Any, features: Features, examples: Sequence[TextExample]) -> Any:
        return sequences.decode(outputs, features, examples, kind=self._export_kind())

    def _dataset_of_features(
        self, data: tf.data.Dataset, batch_size: int, counter: Any, class_weight: Mapping[Any, float] | None
    ) -> tf.data.Dataset:
        self._check_data_set(data.element_spec)
        is_batched = inputs.is_batched(data.element_spec[0])
        if self.doc_stride or not self._has_simple_labels(data.element_spec[1], is_batched):
            return super()._dataset_of_features(data, batch_size, counter, class_weight)
        if not is_batched:
            data = data.batch(batch_size)
        number = self._numbers_in_graph(data.element_spec[1])
        preprocessor = self.preprocessor
        by_class = self._weights_by_class(class_weight) if class_weight else None

        def ids(x: Any, y: Any, *weights: Any) -> tuple[Any, ...]:
            numbers = number(y)
            if by_class is not None:
                of_classes = tf.gather(by_class, tf.cast(numbers, tf.int32))
                weights = (of_classes * tf.cast(weights[0], tf.float32) if weights else of_classes,)
            return preprocessor(x), numbers, *weights

        return data.map(ids, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def _has_simple_labels(self, spec: Any, is_batched: bool) -> bool:
        """Whether a data set's labels can be made numbers within TensorFlow."""
        return isinstance(spec, tf.TensorSpec) and spec.shape.rank == int(is_batched)

    def _numbers_in_graph(self, spec: tf.TensorSpec) -> Callable[[Any], Any]:
        """What turns a data set's labels into numbers, as TensorFlow operations."""
        if spec.dtype != tf.string:
            return lambda y: y
        names = self._label_names()
        if not names:
            raise UserError("the data set's labels are strings; expected numbers")
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant(names), tf.range(len(names))), default_value=-1
        )

        def lookup(y: Any) -> Any:
            numbers = table.lookup(y)
            known = f"a label of the data set is none of {', '.join(names)}"
            with tf.control_dependencies([tf.debugging.assert_non_negative(numbers, known)]):
                return tf.identity(numbers)

        return lookup


@keras.saving.register_keras_serializable(package="official_bert")
class TextClassifier(_SequenceModel):
    """Classes of texts or of pairs of texts (paper, section 4.1).

    x is texts, or for pairs a tuple of two columns or rows of two texts; y is class names or numbers, and with
    multi_label lists of those. predict returns probabilities, float64 [B, C]; classify returns names.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        labels: the classes' names, in the order of the logits.
        multi_label: whether a text may have several classes, or none.
        settings: pair, doc_stride, and as of BaseTextModel.
    """

    kind = CLASSIFICATION
    default_name = "text_classifier"

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        labels: Sequence[Any],
        multi_label: bool = False,
        **settings: Any,
    ) -> None:
        self.labels = tuple(map(str, labels))
        if len(self.labels) < (1 if multi_label else 2) or len(set(self.labels)) < len(self.labels):
            raise UserError(f"labels are {', '.join(self.labels)}; expected two or more different names")
        self.multi_label = multi_label
        super().__init__(config, vocab, **settings)

    def _build_core(self, encoder: keras.Model, seed: int) -> keras.Model:
        return build_classifier(encoder, len(self.labels), seed=seed)

    def _own_config(self) -> dict[str, Any]:
        return {**super()._own_config(), "labels": list(self.labels), "multi_label": self.multi_label}

    def _task_spec(self) -> dict[str, Any]:
        return {**super()._task_spec(), "labels": list(self.labels)}

    @classmethod
    def _kinds(cls) -> tuple[str, ...]:
        return CLASSIFICATION, MULTI_LABEL

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        return {**super()._settings_of(spec), "labels": spec["labels"], "multi_label": spec["kind"] == MULTI_LABEL}

    def _export_kind(self) -> str:
        return MULTI_LABEL if self.multi_label else CLASSIFICATION

    def _label_names(self) -> tuple[str, ...]:
        return self.labels

    def _label_values(self, y: Any) -> list[Any]:
        if not self.multi_label:
            return inputs.numbers_of(inputs.as_list(y), self.labels)
        return [self._several_labels(row, f"y[{number}]") for number, row in enumerate(inputs.as_list(y))]

    def _several_labels(self, row: Any, name: str) -> tuple[int, ...]:
        """The numbers of a text's classes, from names or numbers, or from an array of 0 and 1 for each class."""
        is_array = isinstance(row, np.ndarray) and row.dtype.kind in "biuf"
        is_list = isinstance(row, Iterable) and not isinstance(row, str | bytes)
        if not is_list or (is_array and row.shape != (len(self.labels),)):
            raise UserError(
                f"{name} is {row!r}; expected a list of names or numbers, or an array of 0 and 1 for each of "
                f"{', '.join(self.labels)}"
            )
        return tuple(np.flatnonzero(row).tolist() if is_array else inputs.numbers_of(row, self.labels, name))

    def _has_simple_labels(self, spec: Any, is_batched: bool) -> bool:
        if not self.multi_label:
            return super()._has_simple_labels(spec, is_batched)
        is_array = isinstance(spec, tf.TensorSpec) and spec.dtype != tf.string
        return is_array and spec.shape[int(is_batched) :] == (len(self.labels),)

    def _weights_by_class(self, class_weight: Mapping[Any, float]) -> Any:
        if self.multi_label:
            raise UserError("with multi_label a text has no one class to weigh; leave out class_weight")
        return inputs.weights_by_class(class_weight, self.labels)

    def _task_metrics(self) -> Any:
        if self.multi_label:
            return [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)]
        return super()._task_metrics()

    def classify(self, x: Any, batch_size: int | None = None) -> list[Any]:
        """Returns the name of each text's likeliest class; with multi_label the names of all that are likely."""
        labels = sequences.predicted_labels(self._export_kind(), self.predict(x, batch_size))
        if self.multi_label:
            return [[self.labels[number] for number in row] for row in labels]
        return [self.labels[number] for number in labels]


@keras.saving.register_keras_serializable(package="official_bert")
class TextRegressor(_SequenceModel):
    """A number for each text or pair of texts, as STS-B wants it.

    x is as of TextClassifier, y is numbers; predict returns numbers, float64 [B].

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        settings: pair, doc_stride, and as of BaseTextModel.
    """

    kind = REGRESSION
    default_name = "text_regressor"

    def _build_core(self, encoder: keras.Model, seed: int) -> keras.Model:
        return build_regressor(encoder, seed=seed)

    def _label_values(self, y: Any) -> list[float]:
        values = [float(value) for value in inputs.as_list(y)]
        wrong = next((number for number, value in enumerate(values) if not np.isfinite(value)), None)
        if wrong is not None:
            raise UserError(f"y[{wrong}] is {values[wrong]}; expected a finite number")
        return values

    def _task_metrics(self) -> Any:
        return [AbsoluteError()]
