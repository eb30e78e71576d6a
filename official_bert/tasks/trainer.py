"""Fine-tuning with Keras' fit: the model, its optimizer, the order of the data, and predictions.

B batch, R rows
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert import distribution
from official_bert.dropout import dropout_seed
from official_bert.models import freeze
from official_bert.optimization import BertAdamW, LayerwiseAdamW, WarmupPolynomialDecay
from official_bert.progress import Progress
from official_bert.tasks import batches
from official_bert.tasks.starting import Start
from official_bert.tasks.task import Array, Features, Outputs, Task, loss_of, loss_weights_of


class SeededModel(keras.Model):
    """A functional model whose dropout in training is a function of a seed and the step, so that it can be resumed.

    Attributes:
        dropout_seed: any number.
    """

    dropout_seed = 0

    def train_step(self, data: Any) -> Any:
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.int32) * 0x3C6EF35F
        seed = tf.bitwise.bitwise_xor(replica, tf.constant(self.dropout_seed & 0x7FFFFFFF, tf.int32))
        with dropout_seed(tf.stack([seed, tf.cast(self.optimizer.iterations, tf.int32)])):
            return super().train_step(data)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What training does.

    Attributes:
        train_batch_size: rows in a step, over all devices.
        learning_rate: the highest.
        num_steps: in all.
        steps_per_epoch: batches of an epoch.
        warmup_proportion: the share of the steps in which the rate rises.
        eval_steps: steps from one evaluation to the next.
        max_seq_length: the longest row.
        random_seed: of the head's weights, the order of the data and dropout.
        freeze: regular expressions of the encoder's layers that stay as they are.
        layer_decay: the rate of each layer by that of the layer above.
        dtype: a Keras dtype policy.
        strategy: as distribution.get_strategy names it.
    """

    train_batch_size: int
    learning_rate: float
    num_steps: int
    steps_per_epoch: int
    warmup_proportion: float
    eval_steps: int
    max_seq_length: int
    random_seed: int
    freeze: tuple[str, ...] = ()
    layer_decay: float = 1.0
    dtype: str = "float32"
    strategy: str = "one_device"


class Trainer:
    """A model of a task that learns, stretch by stretch, from any step on.

    Args:
        task: what it learns.
        start: the encoder it begins with.
        plan: how.
        head: weights of the task's whole model, to begin with in place of a new head.
        loss: a Keras loss in place of the task's own.
    """

    def __init__(self, task: Task, start: Start, plan: Plan, head: list[Array] | None = None, loss: Any = None) -> None:
        self._plan = plan
        strategy = distribution.get_strategy(plan.strategy)
        with strategy.scope():
            encoder = start.build_encoder(plan.random_seed, plan.dtype)
            if plan.freeze:
                freeze(encoder, plan.freeze)
            built = task.build_model(encoder, plan.random_seed)
            if head is not None:
                built.set_weights(head)
            self.model = SeededModel(built.input, built.output, name=built.name)
            self.model.dropout_seed = plan.random_seed
            warmup = int(plan.num_steps * plan.warmup_proportion)
            schedule = WarmupPolynomialDecay(plan.learning_rate, plan.num_steps, warmup)
            factors = layer_factors(self.model, start.config.num_hidden_layers, plan.layer_decay)
            self.optimizer = LayerwiseAdamW(schedule, factors=factors) if factors else BertAdamW(schedule)
            self.model.compile(self.optimizer, loss or loss_of(task.kind), loss_weights_of(task.kind))
            self.optimizer.build(self.model.trainable_variables)
        if plan.strategy == distribution.ONE_DEVICE:
            self.optimizer.compile_apply()
        self.schedule = schedule
        self._forward = tf.function(
            lambda inputs: self.model(inputs, training=False), reduce_retracing=True, autograph=False
        )

    def train(
        self,
        features: Features,
        first: int,
        last: int,
        on_step: Callable[[int, float], bool],
        row_weights: Array | None = None,
    ) -> tuple[int, float]:
        """Does steps `first` up to, not including, `last`.

        Args:
            features: the rows to learn from.
            first: counted from the run's beginning, as is `last`.
            last: a step.
            on_step: told after each step how many of the run are done, and the mean loss of those that this call did;
                returns whether to stop before `last`.
            row_weights: float32 [R], how much each row weighs in the loss; None for 1.

        Returns:
            How many steps of the run are done, and the mean loss of those that this call did.
        """
        per_epoch = self._plan.steps_per_epoch
        lengths = batches.row_lengths(features)
        plans = [
            batches.training_plan(lengths, self._plan.train_batch_size, self._plan.random_seed, epoch)
            for epoch in range(first // per_epoch, (last - 1) // per_epoch + 1)
        ]
        begin = first % per_epoch
        plan = np.concatenate(plans)[begin : begin + last - first]
        data = batches.training_data(features, plan, self._plan.max_seq_length, row_weights)
        done = first

        def on_batch_end(batch: int, logs: dict[str, float]) -> None:
            nonlocal done
            done = first + batch + 1
            self.model.stop_training = on_step(done, float(logs["loss"]))

        told = keras.callbacks.LambdaCallback(on_train_batch_end=on_batch_end)
        history = self.model.fit(data, verbose=0, shuffle=False, callbacks=[told])
        return done, float(history.history["loss"][0])

    def predict(self, features: Features, batch_size: int) -> Outputs:
        """Returns the model's outputs for all rows, in order and without padding, on one device."""
        return predict(self._forward, features, batch_size, self._plan.max_seq_length)

    def learning_rate(self) -> float:
        """Returns the rate of the last step."""
        return float(self.schedule(max(int(self.optimizer.iterations.numpy()) - 1, 0)))


def predict(forward: Any, features: Features, batch_size: int, max_seq_length: int) -> Outputs:
    """Returns a model's outputs for all rows (see task.Outputs).

    Args:
        forward: inputs -> outputs.
        features: the rows.
        batch_size: rows at once; they are taken in the order of their lengths.
        max_seq_length: the longest row.
    """
    lengths = batches.row_lengths(features)
    found: dict[str, list[Any]] = {}
    progress = Progress("predicting", len(features), "rows")
    structured = False
    for number, rows in enumerate(batches.prediction_plan(lengths, batch_size)):
        inputs = batches.padded_inputs(features, rows, max_seq_length)
        outputs = forward({name: tf.constant(each) for name, each in inputs.items()})
        structured = isinstance(outputs, dict)
        length = inputs["input_ids"].shape[-1]
        for name, values in (outputs if structured else {"": outputs}).items():
            made = found.setdefault(name, [None] * len(features))
            # Only the outputs of tokens have as many columns as the inputs, and at least as many dimensions.
            of_tokens = structured or len(values.shape) == 3
            for row, value in zip(rows, np.asarray(values, np.float32), strict=True):
                if row >= 0:
                    made[row] = value[: lengths[row]] if of_tokens and length else value
        progress.update(min((number + 1) * batch_size, len(features)))
    return found if structured else found.get("", [])


def layer_factors(model: keras.Model, num_layers: int, decay: float) -> dict[str, float]:
    """Returns what each variable's learning rate is multiplied with, by its path; empty for a decay of 1.

    The head and the pooler have 1, the last block `decay`, the one before it its square, the embeddings one power more
    than the first block.
    """
    if decay == 1.0:
        return {}
    factors = {}
    for variable in model.trainable_variables:
        name = variable.path.split("/")[-2]
        if name.startswith("layer_"):
            factors[variable.path] = decay ** (num_layers - int(name.split("_")[1]))
        elif "embeddings" in name:
            factors[variable.path] = decay ** (num_layers + 1)
    return factors
