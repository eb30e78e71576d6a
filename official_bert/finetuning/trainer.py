"""The trainer of the command: builds the model and its optimizer, trains it on shuffled batches, and predicts.

Keras' `fit` uses the same training step (see training_step).

B batch, R rows
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.checkpoints.loading import assign_weights
from official_bert.finetuning import batches
from official_bert.finetuning.initial_model import build_initial_encoder, select_head_weights
from official_bert.finetuning.loss_share import make_loss_share
from official_bert.finetuning.options import FinetuningOptions
from official_bert.finetuning.training_step import TrainingStep
from official_bert.inference.keras_model import KerasRunner
from official_bert.kinds.features import LABELS, TEXTS, Array, Features, Outputs, row_lengths
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.spec import KindSpec
from official_bert.optimization import distribution
from official_bert.optimization.choices import DTYPES
from official_bert.optimization.finetuning_optimizer import create_bert_optimizer
from official_bert.optimization.freezing import freeze
from official_bert.training.replicas import distribute_rows, make_length_buckets, report_compilation


def count_steps(options: FinetuningOptions, num_rows: int) -> tuple[int, int, int]:
    """Returns the number of steps of the whole run, of an epoch, and between two evaluations.

    Args:
        options: Options of the run.
        num_rows: Number of training rows.
    """
    per_epoch = -(-num_rows // options.train_batch_size)
    return max(1, int(per_epoch * options.num_train_epochs)), per_epoch, options.eval_steps or per_epoch


class Trainer:
    """Builds a model with a task head and trains it, a range of the run's steps at a time.

    Args:
        spec: The kind of task, with its labels and settings.
        initial_model: The model that training starts from. Its head is used, too, if the task can use it.
        options: Options of the run. --dtype must not be auto.
        num_rows: Number of training rows, which determines the number of steps.
        loss: A Keras loss to use in place of the loss of the kind of task.
        strategy: The distribution strategy. Defaults to TensorFlow's current one.
        is_compiled: Whether XLA compiles the step, once per length. Defaults to True on a TPU and False elsewhere.

    Attributes:
        num_steps: Number of steps of the whole run.
        steps_per_epoch: Number of steps of an epoch.
        eval_steps: Number of steps between two evaluations.
        buckets: The lengths that batches are padded to, if the step is compiled. Empty if any length is allowed.
        replica_step: Function (inputs, targets, weights) that computes one replica's part of a step.
    """

    def __init__(
        self,
        spec: KindSpec,
        initial_model: LoadedModel,
        options: FinetuningOptions,
        num_rows: int,
        loss: Any = None,
        strategy: tf.distribute.Strategy | None = None,
        is_compiled: bool | None = None,
    ) -> None:
        self._options = options
        self.num_steps, self.steps_per_epoch, self.eval_steps = count_steps(options, num_rows)
        self._strategy = strategy or tf.distribute.get_strategy()
        if is_compiled is None:
            is_compiled = distribution.needs_static_shapes(self._strategy)
        seed, dtype = options.random_seed, DTYPES[options.dtype]
        with self._strategy.scope():
            encoder = build_initial_encoder(initial_model, seed, dtype)
            if options.freeze:
                freeze(encoder, options.freeze)
            self.model = create_kind_model(spec).build(encoder, seed)
            if (weights := select_head_weights(initial_model, spec)) is not None:
                assign_weights(self.model, weights)
            learner = create_kind_model(spec).answering_model(self.model)
            self.optimizer, self.schedule = create_bert_optimizer(
                learner, initial_model.config.num_hidden_layers, num_steps=self.num_steps,
                learning_rate=options.learning_rate, warmup_proportion=options.warmup_proportion,
                layer_decay=options.layer_decay, scales_loss=dtype == "mixed_float16", **options.optimizer_settings,
            )  # fmt: skip
            loss_share = make_loss_share(loss or create_kind_model(spec).loss(), loss_weights=spec.loss_weights())
            self.replica_step = TrainingStep(
                learner, self.optimizer, loss_share,
                seed=seed, micro_batches=options.gradient_accumulation_steps, rematerialize=options.rematerialize,
                is_compiled=is_compiled,
            )  # fmt: skip
        self.buckets = make_length_buckets(options.max_seq_length) if is_compiled else ()
        self._predictor = KerasRunner(learner, self._strategy, options.max_seq_length)
        self._step: Any = None
        # Since the last call of take_figures: the number of steps, and sums of losses, tokens and two kinds of seconds.
        self._sums = np.zeros(5)

    def train(
        self,
        features: Features,
        first: int,
        last: int,
        on_step: Callable[[int, float], bool],
        row_weights: Array | None = None,
    ) -> tuple[int, float]:
        """Runs the training steps from `first` up to, but not including, `last`.

        Args:
            features: Features of all training rows, with targets.
            first: First step, counted from the start of the run.
            last: Step to stop before.
            on_step: Function (number of completed steps of the run, mean loss since `first`) that is called after each
                step. Training stops before `last` if it returns True.
            row_weights: Weight of each row in the loss, float32 [R]. None weights all rows equally.

        Returns:
            The number of completed steps of the run, and the mean loss since `first`.
        """
        options, per_epoch = self._options, self.steps_per_epoch
        lengths = row_lengths(features)
        classes = features.targets[LABELS] if options.balanced_sampling else None
        epochs = [
            batches.draw_batches(
                lengths,
                options.train_batch_size,
                options.random_seed,
                epoch,
                classes,
                features.details.get(TEXTS),
                options.group_by_length,
            )
            for epoch in range(first // per_epoch, (last - 1) // per_epoch + 1)
        ]
        begin = first % per_epoch
        indices = np.concatenate(epochs)[begin : begin + last - first]
        indices = batches.pad_batches(indices, self._strategy.num_replicas_in_sync)
        done, total = first, 0.0
        for rows in indices:
            batch = batches.pad_batch(features, rows, options.max_seq_length, row_weights, buckets=self.buckets)
            self._step = self._step or self._trace_step(batch)
            since, used = time.monotonic(), time.process_time()
            loss = float(self._step(*tf.nest.map_structure(tf.constant, batch)))
            seconds, processor_seconds = time.monotonic() - since, time.process_time() - used
            self._sums += (1, loss, batch[0]["input_mask"].sum(), seconds, processor_seconds)
            total += loss
            done += 1
            if on_step(done, total / (done - first)):
                break
        return done, total / max(done - first, 1)

    def _trace_step(self, batch: Any) -> Any:
        """Returns the step as a tf.function. With length buckets, it is traced once per bucket, and else only once.

        Args:
            batch: A batch, whose structure and dtypes become the signature without length buckets.
        """
        signature = None if self.buckets else tf.nest.map_structure(batches.make_any_length_spec, batch)
        return tf.function(self._step_on_all_replicas, input_signature=signature, autograph=False)

    def _step_on_all_replicas(self, inputs: dict[str, tf.Tensor], *targets_and_weights: Any) -> tf.Tensor:
        report_compilation("training", inputs, self.buckets)
        batch = distribute_rows(self._strategy, (inputs, *targets_and_weights))
        loss, _ = self._strategy.run(self.replica_step, args=batch)
        return self._strategy.experimental_local_results(loss)[0]

    def predict(self, features: Features, batch_size: int) -> Outputs:
        """Computes the model's outputs for all rows, using all replicas. They are in order and without padding."""
        return self._predictor.compute_outputs(features, batch_size)

    def take_figures(self) -> dict[str, float]:
        """Returns the mean loss, the learning rate and the speed of the steps since the last call.

        Empty without steps. Tokens do not include padding. processor_seconds is the processor time of this process.
        """
        steps, loss, tokens, seconds, processor_seconds = self._sums.tolist()
        if not steps:
            return {}
        self._sums[:] = 0.0
        return {
            "loss": loss / steps,
            "learning_rate": self.learning_rate(),
            "steps_per_second": steps / seconds,
            "tokens_per_second": tokens / seconds,
            "processor_seconds": processor_seconds,
        }

    def learning_rate(self) -> float:
        """Returns the learning rate that the last step used."""
        return float(self.schedule(max(int(self.optimizer.iterations.numpy()) - 1, 0)))
