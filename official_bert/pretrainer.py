"""A model in training: what one step does, on each replica and over all of them.

One tf.function runs K steps; a step runs on every replica its share of the batch. It is written out, because it is here
that sums over replicas, clipping and random seeds must be seen; Keras' fit breaks on several steps per call.

B batch of one replica
"""

import zlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from official_bert.config import BertConfig
from official_bert.dropout import dropout_seed
from official_bert.losses import mean_losses, pretraining_sums
from official_bert.models import build_pretraining_model
from official_bert.optimization import BertAdamW

SUMS = (
    "masked_lm_loss",
    "masked_lm_correct",
    "masked_lm_count",
    "next_sentence_loss",
    "next_sentence_correct",
    "next_sentence_count",
    "tokens",
)


class Pretrainer:
    """A model in training: the steps that change it and those that judge it, under a distribution strategy.

    Args:
        config: the model's sizes.
        strategy: where to run.
        schedule: the learning rate by step.
        seed: of initial weights and dropout.
        dtype: a Keras dtype policy.
        jit_compile: whether XLA compiles the step: the first one takes longer, the others less.
    """

    def __init__(
        self,
        config: BertConfig,
        strategy: tf.distribute.Strategy,
        schedule: Any,
        seed: int,
        dtype: str = "float32",
        jit_compile: bool = False,
    ) -> None:
        self.strategy = strategy
        self.schedule = schedule
        self._seed = zlib.crc32(f"dropout/{seed}".encode()) & 0x7FFFFFFF
        with strategy.scope():
            self.model = build_pretraining_model(config, seed=seed, dtype=dtype)
            self.optimizer = BertAdamW(learning_rate=schedule)
            self.optimizer.build(self.model.trainable_variables)
        # Compiled once each; the number of steps is a tensor, so that another number does not compile again.
        self._train = tf.function(self._train_steps)
        self._step = tf.function(self.replica_step, jit_compile=True) if jit_compile else self.replica_step
        self._evaluate = tf.function(self._evaluate_step)
        self._any = tf.function(self._any_of)

    @property
    def step(self) -> int:
        """The number of steps taken."""
        return int(self.optimizer.iterations.numpy())

    def train(self, batches: Iterator[Any], steps: int) -> dict[str, float]:
        """Takes steps and returns the sums of pretraining_sums over them, and gradient_norm, summed likewise."""
        return {name: float(value) for name, value in self._train(batches, tf.constant(steps)).items()}

    def evaluate(self, batch: Any) -> dict[str, float]:
        """Returns the sums of pretraining_sums over one batch, without dropout."""
        return {name: float(value) for name, value in self._evaluate(batch).items()}

    def anywhere(self, flag: bool) -> bool:
        """Whether the flag is set on any of several workers; all of them must ask together."""
        if not isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return flag
        return float(self._any(tf.constant(float(flag)))) > 0

    def _any_of(self, flag: tf.Tensor) -> tf.Tensor:
        def replica_any(value: tf.Tensor) -> tf.Tensor:
            # The copy is on the replica's device, which the reduction must know.
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

        return self._of_one_replica(self.strategy.run(replica_any, args=(flag,)))

    def replica_step(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One step as a replica sees it: [B, ...] of its own, gradients and sums of all.

        Returns:
            The sums over all replicas.
        """
        context = tf.distribute.get_replica_context()

        def over_replicas(value: tf.Tensor) -> tf.Tensor:
            return context.all_reduce(tf.distribute.ReduceOp.SUM, value)

        # The losses' denominators are those of the whole batch: a replica with fewer predictions weighs less.
        predictions = over_replicas(tf.reduce_sum(features["masked_lm_weights"]))
        examples = over_replicas(tf.reduce_sum(tf.cast(features["input_mask"][:, 0], tf.float32)))
        with tf.GradientTape() as tape, dropout_seed(self._dropout_seed(context.replica_id_in_sync_group)):
            sums = self._sums(features, training=True)
            loss = tf.add(*mean_losses(sums, predictions, examples))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        gradients, norm = self.optimizer.sum_and_clip(gradients)
        self.optimizer.apply_summed(gradients, self.model.trainable_variables)
        return {**_all_together(sums, over_replicas), "gradient_norm": norm}

    def _sums(self, features: dict[str, tf.Tensor], training: bool) -> dict[str, tf.Tensor]:
        # Labels are left out: Keras wants the model's inputs and nothing else.
        inputs = {name: features[name] for name in self.model.input}
        return pretraining_sums(self.model(inputs, training=training), features)

    def _dropout_seed(self, replica: Any) -> tf.Tensor:
        """int32 [2], another one for each step and replica."""
        spread = tf.cast(replica, tf.int32) * 0x3C6EF35F  # odd, so that no two replicas share a number
        return tf.stack([tf.bitwise.bitwise_xor(spread, self._seed), tf.cast(self.optimizer.iterations, tf.int32)])

    def _train_steps(self, batches: Any, steps: tf.Tensor) -> dict[str, tf.Tensor]:
        totals = {name: tf.constant(0.0) for name in [*SUMS, "gradient_norm"]}
        for _ in tf.range(steps):
            sums = self.strategy.run(self._step, args=(next(batches),))
            totals = {name: totals[name] + self._of_one_replica(sums[name]) for name in totals}
        return totals

    def _evaluate_step(self, batch: Any) -> dict[str, tf.Tensor]:
        def replica_step(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            context = tf.distribute.get_replica_context()
            sums = self._sums(features, training=False)
            return _all_together(sums, lambda value: context.all_reduce(tf.distribute.ReduceOp.SUM, value))

        return {
            name: self._of_one_replica(sums) for name, sums in self.strategy.run(replica_step, args=(batch,)).items()
        }

    def _of_one_replica(self, value: Any) -> tf.Tensor:
        return self.strategy.experimental_local_results(value)[0]


def _all_together(sums: dict[str, tf.Tensor], over_replicas: Any) -> dict[str, tf.Tensor]:
    """Sums over replicas, in one exchange for all."""
    stacked = over_replicas(tf.stack([sums[name] for name in SUMS]))
    return dict(zip(SUMS, tf.unstack(stacked), strict=True))
