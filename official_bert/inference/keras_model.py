"""The Keras backend: computes a model's outputs for tokenized texts on all replicas of a distribution strategy.

B batch size, R rows (texts, or windows of long texts)
"""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.inference.predictor import SpecPredictor
from official_bert.kinds.features import (
    Array,
    Features,
    Outputs,
    batches_by_length,
    collect_outputs,
    padded_inputs,
    row_lengths,
)
from official_bert.kinds.spec import KindSpec
from official_bert.optimization import distribution
from official_bert.tokenization.exact import FullTokenizer
from official_bert.training.forward_pass import make_forward_pass
from official_bert.training.replica_step import all_gather
from official_bert.training.replicas import count_rows, distribute_rows, get_static_lengths, report_compilation
from official_bert.utils.progress import Progress

_POSITION = "position"  # Index of a row in its batch.
_BATCH_SIZE = 32


class KerasPredictor(SpecPredictor):
    """A predictor that tokenizes and decodes in Python, and computes outputs with a Keras model.

    Args:
        spec: The KindSpec of the model, which builds features and decodes outputs.
        tokenizer: The model's tokenizer.
        max_seq_length: Maximum number of tokens of a row.
        compute: Function that takes features and the number of rows per batch, and returns the outputs that the spec
            decodes.
    """

    def __init__(
        self, spec: KindSpec, tokenizer: FullTokenizer, max_seq_length: int, compute: Callable[[Features, int], Outputs]
    ) -> None:
        super().__init__(spec, tokenizer, max_seq_length)
        self._compute = compute

    def compute_outputs(self, features: Features, batch_size: int | None = None) -> Outputs:
        return self._compute(features, min(batch_size or _BATCH_SIZE, len(features)))


class KerasRunner:
    """Computes the outputs of a Keras model for Features (texts that are already tokenized), in batches.

    Args:
        model: A model that was built in the scope of the strategy.
        strategy: The distribution strategy to run on. None means TensorFlow's current strategy.
        max_seq_length: Maximum number of tokens of a row.
    """

    def __init__(self, model: keras.Model, strategy: tf.distribute.Strategy | None, max_seq_length: int) -> None:
        self._model, self._max_seq_length = model, max_seq_length
        self._strategy = strategy or tf.distribute.get_strategy()
        self.buckets = get_static_lengths(self._strategy, max_seq_length)
        self._prepare()

    def _prepare(self) -> None:
        self._weights = self._model.weights
        with self._strategy.scope():
            self._call = make_forward_pass(self._model)
        self._forwards: dict[int, Any] = {}  # by the inputs' number of axes

    def compute_outputs(
        self, features: Features, batch_size: int, report_progress: Callable[[int], None] | None = None
    ) -> Outputs:
        """Returns the model's outputs for all rows, in order and without padding (see features.Outputs).

        If layers have new variables (such as LoRA's), the graph is traced again.

        Args:
            features: The tokenized texts, or windows of long texts (rows).
            batch_size: Number of rows per batch over all replicas, rounded up to a multiple of the number of replicas.
            report_progress: Called with the number of completed rows after each batch. None prints a line every ten
                seconds.
        """
        if list(map(id, self._model.weights)) != list(map(id, self._weights)):
            self._prepare()
        multiple = self._strategy.num_replicas_in_sync
        rounded = -(-batch_size // multiple) * multiple
        forward, length = self._traced_forward, self._max_seq_length
        return compute_outputs(forward, features, rounded, length, self.buckets, report_progress)

    def _traced_forward(self, inputs: dict[str, tf.Tensor]) -> Any:
        """Runs the forward pass as a TensorFlow graph.

        The graph is traced once per number of axes of the inputs or, with buckets, once per sequence length.
        """
        axes = len(inputs["input_mask"].shape)
        if axes not in self._forwards:
            signature = None
            if not self.buckets:
                shapes = {name: [None, *each.shape[1:-1], None] for name, each in inputs.items()}
                signature = [{name: tf.TensorSpec(shape, tf.int32) for name, shape in shapes.items()}]
            self._forwards[axes] = tf.function(
                self._forward_on_all_replicas, input_signature=signature, autograph=False
            )
        return self._forwards[axes](inputs)

    def _forward_on_all_replicas(self, inputs: dict[str, tf.Tensor]) -> Any:
        strategy = self._strategy
        report_compilation("prediction", inputs, self.buckets)
        if strategy.num_replicas_in_sync == 1 and not self.buckets:
            return self._call(inputs, training=False)
        is_multi_worker = distribution.is_multi_worker(strategy)
        batch = {**inputs, _POSITION: tf.range(count_rows(inputs["input_ids"]))}

        def run_replica(part: dict[str, tf.Tensor]) -> Any:
            position = part.pop(_POSITION)
            answers = position, self._call(part, training=False)
            if not is_multi_worker:
                return answers
            return tf.nest.map_structure(all_gather, answers)

        answers = strategy.run(run_replica, args=(distribute_rows(strategy, batch),))

        def gather_replicas(values: Any) -> tf.Tensor:
            parts = strategy.experimental_local_results(values)
            return parts[0] if is_multi_worker else tf.concat(parts, axis=0)

        position, outputs = tf.nest.map_structure(gather_replicas, answers)
        order = tf.argsort(position)
        return tf.nest.map_structure(lambda values: tf.gather(values, order), outputs)


def compute_outputs(
    forward: Callable[[dict[str, tf.Tensor]], Any],
    features: Features,
    batch_size: int,
    max_seq_length: int,
    buckets: tuple[int, ...] = (),
    report_progress: Callable[[int], None] | None = None,
) -> Outputs:
    """Returns a model's outputs for all rows, in order and without padding (see features.Outputs).

    Args:
        forward: Function that computes the outputs of a padded batch.
        features: The tokenized texts, or windows of long texts (rows).
        batch_size: Number of rows per batch. Rows are sorted by length.
        max_seq_length: Maximum number of tokens of a row.
        buckets: The sequence lengths to pad to (see `features.padded_inputs`). Empty for any length.
        report_progress: Called with the number of completed rows after each batch. None prints a line every ten
            seconds.
    """
    report_progress = report_progress or Progress("predicting", len(features), "rows").update

    def compute() -> Iterator[tuple[Array, Any]]:
        for number, row_indices in enumerate(batches_by_length(row_lengths(features), batch_size), start=1):
            batch = np.pad(row_indices, (0, batch_size - len(row_indices)), constant_values=-1)  # -1: an empty row
            inputs = padded_inputs(features, batch, max_seq_length, buckets=buckets)
            yield batch, forward({name: tf.constant(each) for name, each in inputs.items()})
            report_progress(min(number * batch_size, len(features)))

    return collect_outputs(features, compute())
