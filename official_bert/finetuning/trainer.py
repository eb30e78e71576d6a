"""Fine-tuning with Keras' fit: the model, its optimizer, the order of the data, and predictions.

B batch, R rows
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.finetuning import batches
from official_bert.finetuning.initial_model import InitialModel
from official_bert.finetuning.training_config import TrainingConfig
from official_bert.modeling import layer_names
from official_bert.modeling.dropout import dropout_seed, step_seed
from official_bert.modeling.pretraining_model import freeze
from official_bert.optimization import distribution
from official_bert.optimization.optimizers import BertAdamW, LayerwiseAdamW
from official_bert.optimization.schedules import WarmupPolynomialDecay
from official_bert.tasks.task import Array, Features, Outputs, Task, loss_of, loss_weights_of
from official_bert.utils.progress import Progress

_STEPS_WORTH_COMPILING = 100  # it takes XLA seconds to compile how an optimizer changes the weights


class SeededModel(keras.Model):
    """A functional model whose dropout in training is a function of a seed and the step, so that it can be resumed.

    Attributes:
        dropout_seed: any number.
    """

    dropout_seed = 0

    def train_step(self, data: Any) -> Any:
        context = tf.distribute.get_replica_context()
        replica = context.replica_id_in_sync_group
        with dropout_seed(step_seed(self.dropout_seed, self.optimizer.iterations, replica)):
            return super().train_step(data)


class Trainer:
    """A model of a task that learns, some steps at a time, from any step on.

    Args:
        task: what it learns.
        initial_model: the encoder it begins with.
        config: how.
        head: weights of the task's whole model, to begin with in place of a new head.
        loss: a Keras loss in place of the task's own.
    """

    def __init__(
        self,
        task: Task,
        initial_model: InitialModel,
        config: TrainingConfig,
        head: list[Array] | None = None,
        loss: Any = None,
    ) -> None:
        self._config = config
        strategy = distribution.get_strategy(config.strategy)
        with strategy.scope():
            encoder = initial_model.build_encoder(config.random_seed, config.dtype)
            if config.freeze:
                freeze(encoder, config.freeze)
            built = task.build_model(encoder, config.random_seed)
            if head is not None:
                built.set_weights(head)
            self.model = SeededModel(built.input, built.output, name=built.name)
            self.model.dropout_seed = config.random_seed
            self.optimizer, self.schedule = bert_optimizer(
                self.model, initial_model.config.num_hidden_layers, num_steps=config.num_steps,
                learning_rate=config.learning_rate, warmup_proportion=config.warmup_proportion,
                layer_decay=config.layer_decay,
            )  # fmt: skip
            self.model.compile(self.optimizer, loss or loss_of(task.kind), loss_weights_of(task.kind))
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
            on_step: called after each step with how many of the run are done and the mean loss of those that this call
                did; returns whether to stop before `last`.
            row_weights: float32 [R], how much each row weighs in the loss; None for 1.

        Returns:
            How many steps of the run are done, and the mean loss of those that this call did.
        """
        per_epoch = self._config.steps_per_epoch
        lengths = batches.row_lengths(features)
        epochs = [
            batches.training_batch_indices(lengths, self._config.train_batch_size, self._config.random_seed, epoch)
            for epoch in range(first // per_epoch, (last - 1) // per_epoch + 1)
        ]
        begin = first % per_epoch
        rows = np.concatenate(epochs)[begin : begin + last - first]
        data = batches.training_data(features, rows, self._config.max_seq_length, row_weights)
        done = first

        def on_batch_end(batch: int, logs: dict[str, float]) -> None:
            nonlocal done
            done = first + batch + 1
            self.model.stop_training = on_step(done, float(logs["loss"]))

        callback = keras.callbacks.LambdaCallback(on_train_batch_end=on_batch_end)
        history = self.model.fit(data, verbose=0, shuffle=False, callbacks=[callback])
        return done, float(history.history["loss"][0])

    def predict(self, features: Features, batch_size: int) -> Outputs:
        """Returns the model's outputs for all rows, in order and without padding, on one device."""
        return predict(self._forward, features, batch_size, self._config.max_seq_length)

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
    by_output: dict[str, list[Any]] = {}
    progress = Progress("predicting", len(features), "rows")
    structured = False
    for number, rows in enumerate(batches.prediction_batch_indices(lengths, batch_size)):
        inputs = batches.padded_inputs(features, rows, max_seq_length)
        outputs = forward({name: tf.constant(each) for name, each in inputs.items()})
        structured = isinstance(outputs, dict)
        length = inputs["input_ids"].shape[-1]
        for name, values in (outputs if structured else {"": outputs}).items():
            rows_of_output = by_output.setdefault(name, [None] * len(features))
            # Only the outputs of tokens have as many columns as the inputs, and at least as many dimensions.
            of_tokens = structured or len(values.shape) == 3
            for row, value in zip(rows, np.asarray(values, np.float32), strict=True):
                if row >= 0:
                    rows_of_output[row] = value[: lengths[row]] if of_tokens and length else value
        progress.update(min((number + 1) * batch_size, len(features)))
    return by_output if structured else by_output.get("", [])


def bert_optimizer(
    model: keras.Model,
    num_layers: int,
    *,
    num_steps: int,
    learning_rate: float,
    warmup_proportion: float,
    layer_decay: float,
) -> tuple[BertAdamW, WarmupPolynomialDecay]:
    """Returns the optimizer that the command and fit share, built for the model's weights, and its schedule.

    It is to be called within the scope of the strategy. On one device XLA compiles how it changes the weights, if there
    are so many steps that this saves more than it takes.

    Args:
        model: with the weights to train.
        num_layers: blocks of its encoder.
        num_steps: of the whole training; the rate falls to 0 by then.
        learning_rate: the highest.
        warmup_proportion: the share of the steps in which the rate rises.
        layer_decay: the rate of each layer by that of the layer above.
    """
    schedule = WarmupPolynomialDecay(learning_rate, num_steps, int(num_steps * warmup_proportion))
    factors = layer_factors(model, num_layers, layer_decay)
    optimizer = LayerwiseAdamW(schedule, factors=factors) if factors else BertAdamW(schedule)
    optimizer.build(model.trainable_variables)
    strategy = tf.distribute.get_strategy()
    is_one_device = not tf.distribute.has_strategy() or isinstance(strategy, tf.distribute.OneDeviceStrategy)
    if is_one_device and num_steps >= _STEPS_WORTH_COMPILING:
        optimizer.compile_apply()
    return optimizer, schedule


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
        block = layer_names.block_of(name)
        if block is not None:
            factors[variable.path] = decay ** (num_layers - block)
        elif name in layer_names.EMBEDDINGS:
            factors[variable.path] = decay ** (num_layers + 1)
    return factors
