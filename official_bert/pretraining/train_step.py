"""A model in training, and the step that trains it on all replicas.

One tf.function runs K steps. In a step, each replica processes its share of the batch, at once or in micro-batches.
This is explicit code instead of Keras' fit, which does not support several such steps per call. It also shows where
sums over replicas are formed, gradients are clipped, and random seeds are derived.

B batch of one replica, R records of a packed row
"""

import functools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_bert.data.packing import spread_over_rows
from official_bert.modeling import layer_names
from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import dropout_seed, step_seed
from official_bert.modeling.fast.compiled_blocks import compile_blocks
from official_bert.modeling.fast.rematerialization import rematerialized
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.optimization.freezing import check_trainable, freeze
from official_bert.optimization.loss_scale import DynamicLossScale
from official_bert.optimization.optimizers import get_optimizer
from official_bert.pretraining import losses
from official_bert.training.replica_step import (
    accumulate_gradients,
    all_reduce_sum,
    apply_gradients,
    split_micro_batches,
)

SUMS = tuple(
    "masked_lm_loss masked_lm_correct masked_lm_count next_sentence_loss next_sentence_correct next_sentence_count "
    "tokens".split()
)


class Pretrainer:
    """A model in training, with its training and evaluation steps under a distribution strategy.

    Args:
        config: Configuration of the model.
        strategy: The distribution strategy.
        schedule: The learning-rate schedule, a function of the step.
        seed: Random seed of initial weights and dropout.
        dtype: A Keras dtype policy. With mixed_float16, the loss is scaled and steps that overflow are skipped.
        jit_compile: Whether XLA compiles the whole step.
        compile_parts: Whether XLA compiles everything except matrix products. Has an effect if `jit_compile` is False.
            For a single CPU (see distribution.compiles_parts and compile_blocks).
        optimizer: One of choices.OPTIMIZERS.
        optimizer_settings: Additional arguments of get_optimizer.
        next_sentence: Whether to train next-sentence prediction. If not, the pooler and its head are frozen, and the
            sums of this loss are 0.
        frozen: Regular expressions for the names of layers to freeze.
        micro_batches: Number of micro-batches per replica. Their gradients are summed.
        rematerialize: Whether the backward pass computes encoder blocks again.
        skip_nonfinite: Whether to skip a step whose loss or gradient is not finite.
        packed: Whether several records share a row. If so, data.packing.pack has already split batches into
            micro-batches, and `micro_batches` has no effect.
        times_input: Whether to measure how long each step waits for its batch. Must be False for deterministic runs:
            TensorFlow has no deterministic operation that reads the clock.
    """

    def __init__(
        self,
        *,
        config: BertConfig,
        strategy: tf.distribute.Strategy,
        schedule: Any,
        seed: int,
        dtype: str = "float32",
        jit_compile: bool = False,
        compile_parts: bool = False,
        optimizer: str = "adamw",
        optimizer_settings: Mapping[str, Any] | None = None,
        next_sentence: bool = True,
        frozen: Sequence[str] = (),
        micro_batches: int = 1,
        rematerialize: bool = False,
        skip_nonfinite: bool = False,
        packed: bool = False,
        times_input: bool = True,
    ) -> None:
        self.strategy = strategy
        # Reading the time would interrupt a TPU.
        self._times_input = times_input and not isinstance(strategy, tf.distribute.TPUStrategy)
        self.schedule = schedule
        self._micro_batches = micro_batches
        self._next_sentence = next_sentence
        if not next_sentence:
            frozen = [*frozen, layer_names.POOLER, layer_names.NEXT_SENTENCE]
        self._packed = packed
        self._seed = zlib.crc32(f"dropout/{seed}".encode()) & 0x7FFFFFFF
        with strategy.scope():
            self.model = build_pretraining_model(config, seed=seed, dtype=dtype, packed=packed)
            if frozen:
                freeze(self.model, frozen)
                check_trainable(self.model)
            self.optimizer = get_optimizer(optimizer, schedule, **optimizer_settings or {})
            self.optimizer.build(self.model.trainable_variables)
            self._loss_scale = DynamicLossScale() if dtype == "mixed_float16" else None
        self._compile_parts = compile_parts = compile_parts and not jit_compile
        compiled = compile_blocks(self.model) if compile_parts and not rematerialize else None
        self._call: Any = compiled or (rematerialized(self.model) if rematerialize else self.model)
        # The number of steps is a tensor, so that each function is compiled only once.
        self._update: Any = functools.partial(apply_gradients, self.optimizer, self._loss_scale, skip_nonfinite)
        if compile_parts:
            self._update = tf.function(self._update, jit_compile=True, autograph=False)
        # AutoGraph would only make tracing slower.
        self._train = tf.function(self._train_steps, autograph=False)
        self._step = self.replica_step
        if jit_compile:
            self._step = tf.function(self.replica_step, jit_compile=True, autograph=False)
        self._evaluate = tf.function(self._evaluate_step, autograph=False)

    @property
    def variables(self) -> dict[str, list[Any]]:
        """The variables to save in a checkpoint, by owner, so that a resumed run computes the same steps."""
        scale = {"loss_scale": self._loss_scale.variables} if self._loss_scale else {}
        return {"model": self.model.variables, "optimizer": self.optimizer.variables, **scale}

    @property
    def step(self) -> int:
        """Number of steps done."""
        return int(self.optimizer.iterations.numpy())

    def train(self, batches: Iterator[Any], steps: int) -> dict[str, float]:
        """Runs training steps, and returns measurements of them by name.

        Args:
            batches: Iterator over a distributed dataset of batches.
            steps: Number of steps to run.

        Returns:
            Sums over the finite steps: the sums of compute_pretraining_sums, and gradient_norm. Also

            - nonfinite_steps: The number of steps whose loss or gradient was not finite.
            - nonfinite_losses: The number of steps whose loss was not finite.
            - nonfinite_at_end: The number of non-finite steps after the last finite one.
            - nonfinite_step, nonfinite_loss, nonfinite_norm: The number (from 1), the loss and the gradient norm of the
              first step with a non-finite loss. Without one, of the first step with a non-finite gradient, or 0.
            - input_wait: The time for which the devices waited for batches, in seconds. 0 on a TPU, or without
              times_input.
        """
        return {name: float(value) for name, value in self._train(batches, tf.constant(steps)).items()}

    def evaluate(self, batch: Any) -> dict[str, float]:
        """Returns the sums of compute_pretraining_sums over one batch, without dropout."""
        return {name: float(value) for name, value in self._evaluate(batch).items()}

    @tf.autograph.experimental.do_not_convert  # also in the graphs of callers
    def replica_step(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Runs one training step on a replica.

        Args:
            features: The replica's features [B, ...], or [micro-batches, B, ...] for packed batches.

        Returns:
            The sums over all replicas, gradient_norm, finite_loss (whether the losses are finite) and finite (whether
            the gradients are finite too).
        """
        # The losses are divided by the counts of the whole batch, so a replica with fewer predictions counts less.
        predictions = all_reduce_sum(tf.reduce_sum(features["masked_lm_weights"]))
        examples = all_reduce_sum(tf.reduce_sum(losses.record_weights(features)))
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        sums, gradients = self._accumulate(features, predictions, examples, replica)
        sums = _sum_over_replicas(sums)
        finite_loss = tf.math.is_finite(sums["masked_lm_loss"] + sums["next_sentence_loss"])
        # Compiled functions do not accept sparse gradients.
        gradients = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
        norm, finite = self._update(gradients, finite_loss)
        return {**sums, "gradient_norm": norm, "finite": finite, "finite_loss": finite_loss}

    def _accumulate(
        self, features: dict[str, tf.Tensor], predictions: tf.Tensor, examples: tf.Tensor, replica: Any
    ) -> tuple[dict[str, tf.Tensor], list[Any]]:
        """Computes the sums and gradients of a replica's share of the batch, accumulated over its micro-batches.

        Args:
            features: The replica's features [B, ...], or [micro-batches, B, ...] for packed batches.
            predictions: Number of predictions in the whole batch, on all replicas.
            examples: Number of records in the whole batch, on all replicas.
            replica: Index of the replica.

        Returns:
            The sums by name, and the gradients of the trainable variables.
        """
        variables = self.model.trainable_variables

        def micro_batch_gradients(number: Any, part: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], list[Any]]:
            with tf.GradientTape() as tape, dropout_seed(self._dropout_seed(replica, number)):
                sums = self._compute_sums(part, training=True)
                loss = tf.add(*losses.compute_mean_losses(sums, predictions, examples))
                if self._loss_scale:
                    loss = self._loss_scale.scale(loss)
            return sums, tape.gradient(loss, variables)

        if self._packed:
            micro_batches = features
            # Empty micro-batches are at the end.
            count = tf.math.count_nonzero(tf.reduce_any(features["input_mask"] > 0, axis=(1, 2)), dtype=tf.int32)
        elif self._micro_batches == 1:
            return micro_batch_gradients(0, features)
        else:
            micro_batches, count = split_micro_batches(features, self._micro_batches), self._micro_batches
        return accumulate_gradients(micro_batch_gradients, micro_batches, count, variables, SUMS)

    def _compute_sums(self, features: dict[str, tf.Tensor], training: bool) -> dict[str, tf.Tensor]:
        if self._packed and "record_ids" not in features:  # in evaluation
            features = spread_over_rows(features)
        # Keras accepts only the model's inputs, without labels.
        inputs = {name: features[name] for name in self.model.input}
        outputs = self._call(inputs, training=training)
        sums = losses.compute_pretraining_sums(outputs, features, training and self._compile_parts)
        if self._next_sentence:
            return sums
        return {name: tf.zeros(()) if name.startswith("next_sentence") else value for name, value in sums.items()}

    def _dropout_seed(self, replica: Any, micro_batch: Any) -> tf.Tensor:
        return step_seed(self._seed, self.optimizer.iterations, replica, micro_batch)

    def _train_steps(self, batches: Any, steps: tf.Tensor) -> dict[str, tf.Tensor]:
        # 64 bits, so that the sums do not depend on the number of steps per call.
        names = (*SUMS, "gradient_norm", "nonfinite_steps", "nonfinite_losses")
        totals = {name: tf.constant(0.0, tf.float64) for name in names}
        bad = {name: tf.constant(0.0) for name in ("nonfinite_step", "nonfinite_loss", "nonfinite_norm")}

        def step(number: Any, totals: Any, bad: Any, nonfinite_at_end: Any, waited: Any) -> tuple[Any, ...]:
            batch, seconds = self._get_next_batch(batches, after=totals["gradient_norm"])
            results = self._run_on_replicas(self._step, batch)
            finite, finite_loss = results.pop("finite"), results.pop("finite_loss")
            is_first_of_all = ~finite & (totals["nonfinite_steps"] == 0)
            is_first = tf.where(finite_loss, is_first_of_all, totals["nonfinite_losses"] == 0)
            loss = results["masked_lm_loss"] + results["next_sentence_loss"]
            iterations = tf.cast(self.optimizer.iterations, tf.float32)
            now = {"nonfinite_step": iterations, "nonfinite_loss": loss, "nonfinite_norm": results["gradient_norm"]}
            bad = {name: tf.where(is_first, now[name], bad[name]) for name in bad}
            results = {name: tf.where(finite, value, 0.0) for name, value in results.items()}
            results["nonfinite_steps"] = 1.0 - tf.cast(finite, tf.float32)
            results["nonfinite_losses"] = 1.0 - tf.cast(finite_loss, tf.float32)
            totals = {name: totals[name] + tf.cast(results[name], tf.float64) for name in totals}
            return number + 1, totals, bad, tf.where(finite, 0, nonfinite_at_end + 1), waited + seconds

        _, totals, bad, nonfinite_at_end, waited = tf.while_loop(
            lambda number, *_: number < steps,
            step,
            (tf.constant(0), totals, bad, tf.constant(0), tf.constant(0.0, tf.float64)),
            parallel_iterations=1,
        )
        return {**totals, **bad, "nonfinite_at_end": nonfinite_at_end, "input_wait": waited}

    def _get_next_batch(self, batches: Any, after: tf.Tensor) -> tuple[Any, tf.Tensor]:
        """Returns the next batch, and the seconds that the step waited for it.

        Args:
            batches: Iterator over a distributed dataset.
            after: A result of the previous step. The clock starts when it is available.
        """
        if not self._times_input:
            return next(batches), tf.constant(0.0, tf.float64)
        with tf.control_dependencies([after]):
            since = tf.timestamp()
        with tf.control_dependencies([since]):
            batch = next(batches)
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            return batch, tf.timestamp() - since

    def _evaluate_step(self, batch: Any) -> dict[str, tf.Tensor]:
        def replica_step(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return _sum_over_replicas(self._compute_sums(features, training=False))

        return self._run_on_replicas(replica_step, batch)

    def _run_on_replicas(self, step: Any, batch: Any) -> dict[str, tf.Tensor]:
        """Runs a function on all replicas. Returns the results of one replica, because they are the same on each."""
        results = self.strategy.run(step, args=(batch,))
        return {name: self.strategy.experimental_local_results(value)[0] for name, value in results.items()}


def _sum_over_replicas(sums: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Sums each value over all replicas, in a single all-reduce."""
    stacked = all_reduce_sum(tf.stack([sums[name] for name in SUMS]))
    return dict(zip(SUMS, tf.unstack(stacked), strict=True))
