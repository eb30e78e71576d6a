"""FittingModel: adds compile, fit and evaluate to TextModel, with steps for any number of replicas.

B batch size, or rows of one replica
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.finetuning.loss_share import (
    LossShare,
    check_losses_per_row,
    find_real_rows,
    make_loss_share,
    multiply_weights,
)
from official_bert.finetuning.training_step import TrainingStep
from official_bert.keras_models import compiling, data_errors
from official_bert.keras_models.best_model import select_best_model
from official_bert.keras_models.compiling import BertOptimizerSettings
from official_bert.keras_models.data_sets import check_no_other_data
from official_bert.keras_models.fit_arguments import check_count, check_split, count_steps
from official_bert.keras_models.inputs import Inputs
from official_bert.keras_models.learned_labels import learn_labels
from official_bert.keras_models.losses_and_metrics import check_labels
from official_bert.keras_models.steps import add_axis, run_on_replicas, uses_own_loop
from official_bert.keras_models.text_model import TextModel
from official_bert.kinds import scores
from official_bert.kinds.input_adapters import are_ids
from official_bert.optimization import distribution
from official_bert.optimization.finetuning_optimizer import create_bert_optimizer
from official_bert.optimization.optimizers import BertAdamW
from official_bert.optimization.schedules import WarmupPolynomialDecay
from official_bert.training.forward_pass import make_forward_pass
from official_bert.training.replica_step import all_reduce_sum

_OPTIMIZER_OF_FIT = "bert_optimizer_of_fit"  # name of BERT's optimizer in a saved model's configuration
_OPTIMIZER_SETTINGS = "bert_optimizer"  # key of its settings there


class FittingModel(TextModel):
    """A Keras model whose fit and evaluate accept text.

    fit uses the same training step as the finetune command (see finetuning.training_step). Under a distribution
    strategy, a step has the same result as on one device with the same batch.
    """

    train_function: Any
    test_function: Any
    _training_step: TrainingStep | None = None
    # Whether metrics are multiplied by the user's sample weights. Padding rows always have weight 0.
    _weighs_metrics = False
    _compile_again: Callable[[], None] | None = None  # repeats the last call of compile, also of a saved model
    _saved_compile_config: dict[str, Any] | None = None  # configuration in the file that the model was loaded from
    _bert_optimizer: BertOptimizerSettings | None = None  # None if a user's own optimizer is compiled
    _schedule: WarmupPolynomialDecay | None = None  # schedule of BERT's optimizer in the fits since `compile`
    _traced_weights: tuple[int, ...] = ()  # the ids of the weights that fit and evaluate have been traced with

    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        *,
        learning_rate: float = BertOptimizerSettings.learning_rate,
        warmup_proportion: float = BertOptimizerSettings.warmup_proportion,
        layer_decay: float = BertOptimizerSettings.layer_decay,
        adam_bias_correction: bool = BertOptimizerSettings.adam_bias_correction,
        **settings: Any,
    ) -> None:
        """Configures training. The defaults match the original's fine-tuning, except that Adam's bias correction is on.

        Args:
            optimizer: Keras optimizer. Defaults to BERT's optimizer (AdamW), whose learning rate warms up and then
                decays linearly to 0 at the end of fit. "auto" means the default, also for `loss` and `metrics`.
            loss: Keras loss that accepts logits. Defaults to the loss of the task.
            metrics: Keras metrics that accept logits. Defaults to the metrics of the task. [] disables them.
            learning_rate: Peak learning rate of BERT's optimizer.
            warmup_proportion: Fraction of the steps in which the learning rate warms up.
            layer_decay: Learning rate of each layer, as a fraction of the learning rate of the layer above it. 1.0
                trains all layers alike.
            adam_bias_correction: Whether BERT's optimizer corrects the bias of Adam's moments. The original does not
                correct it, and therefore fails more often on small data sets.
            settings: Other arguments of keras.Model.compile, such as loss_weights, weighted_metrics and
                steps_per_execution. XLA compiles the step only with jit_compile=True.

        Raises:
            UserError: If the arguments contradict each other, or a loss or metric expects probabilities.
        """
        optimizer, loss, metrics = (
            None if isinstance(each, str) and each == "auto" else each for each in (optimizer, loss, metrics)
        )
        bert_settings = BertOptimizerSettings(
            learning_rate=learning_rate,
            warmup_proportion=warmup_proportion,
            layer_decay=layer_decay,
            adam_bias_correction=bool(adam_bias_correction),
        )
        changed = [name for name, value in vars(bert_settings).items() if value != getattr(BertOptimizerSettings, name)]
        if changed and optimizer is not None:
            raise UserError(f"{changed[0]} is a setting of BERT's optimizer; remove it, or do not pass an optimizer")
        strategy = self.distribute_strategy
        if distribution.is_multi_worker(strategy):
            raise UserError("fit and evaluate do not support several machines; use official-bert finetune")
        with strategy.scope():  # Metrics then sum over all replicas.
            arguments = compiling.keras_arguments(
                self.spec, loss, metrics, settings, self._pads_rows, bool(self.losses)
            )
        # For evaluate, because Keras evaluates only compiled models. fit creates the optimizer with the schedule.
        keras_optimizer = BertAdamW(float(learning_rate)) if optimizer is None else optimizer
        super().compile(compiling.prepare_optimizer(keras_optimizer, self._policy_name, strategy), **arguments)
        self._bert_optimizer, self._schedule = (bert_settings if optimizer is None else None), None
        self._weighs_metrics = bool(settings.get("weighted_metrics"))
        # Only now, so that fit does not repeat arguments that were refused.
        own_settings = dataclasses.asdict(bert_settings)
        self._compile_again = functools.partial(self.compile, optimizer, loss, metrics, **own_settings, **settings)

    def get_compile_config(self) -> dict[str, Any]:
        if self.loss is None and self._saved_compile_config:  # Loaded from a file, and not compiled since.
            return dict(self._saved_compile_config)
        config = super().get_compile_config()
        if config and "optimizer" not in config:  # Keras removes it when it writes its older format, .h5
            config["optimizer"] = keras.saving.serialize_keras_object(self.optimizer)
        if config and self._bert_optimizer:
            config["optimizer"]["config"]["name"] = _OPTIMIZER_OF_FIT
            config[_OPTIMIZER_SETTINGS] = dataclasses.asdict(self._bert_optimizer)
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Restores the arguments of compile from a saved model. BERT's optimizer starts with a new schedule."""
        if not config:
            return
        self.__dict__["_saved_compile_config"] = config  # Keras' tracking of attributes would change the dict.
        arguments = keras.saving.deserialize_keras_object(config)
        arguments["metrics"] = arguments["metrics"] or []  # None if they became weighted metrics
        settings = arguments.pop(_OPTIMIZER_SETTINGS, {})
        if config["optimizer"]["config"]["name"] == _OPTIMIZER_OF_FIT:
            self._compile_again = functools.partial(self.compile, **{**arguments, "optimizer": None, **settings})
            return
        try:
            self.compile(**arguments)
        except UserError as error:
            print(f"note: loaded the model without its compile settings: {error}")
            return
        if not self._has_unknown_labels:
            self.optimizer.build(self._learner().trainable_variables)

    def _compile_if_needed(self) -> None:
        if not self.compiled or self.loss is None:  # Keras sets `compiled` for every file with a compile configuration.
            (self._compile_again or self.compile)()
        weights = tuple(map(id, [*self.weights, *self.trainable_weights]))
        if weights != self._traced_weights:  # Layers have new variables (such as LoRA's), or were frozen.
            self.train_function = self.test_function = None
            self._traced_weights = weights

    def _start_optimizer(self, num_steps: int, is_continued: bool) -> None:
        """Restarts BERT's optimizer and its schedule. Does nothing if the user compiled another optimizer.

        Args:
            num_steps: Number of steps of the training.
            is_continued: Whether an earlier training continues (initial_epoch > 0), so that the optimizer keeps its
                state.
        """
        settings, learner = self._bert_optimizer, self._learner()
        if settings is None or (is_continued and int(self.optimizer.iterations.numpy())):
            return
        with self.distribute_strategy.scope():
            # The optimizer is reused for the same variables, so that the training step need not be traced again.
            variables = self.optimizer._trainable_variables
            if self._schedule is None or list(map(id, variables)) != list(map(id, learner.trainable_variables)):
                optimizer, self._schedule = create_bert_optimizer(
                    learner, self.bert_config.num_hidden_layers, num_steps=1,
                    scales_loss=self._policy_name == "mixed_float16", **dataclasses.asdict(settings),
                )  # fmt: skip
                # Bypasses Keras' tracking of attributes, as keras.Model.compile does.
                self.__dict__["optimizer"] = optimizer
                self.train_function = None
            self.optimizer.restart()
            self._schedule.restart(num_steps, int(num_steps * settings.warmup_proportion))

    # Training and evaluation.

    def _replace_labels(self, labels: tuple[str, ...]) -> Any:
        """Returns the spec with these labels."""
        replaced: dict[str, Any] = {"labels": labels}
        return dataclasses.replace(self.spec, **replaced)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[Any, float] | str | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        group_by_length: bool = False,
        metric_for_best_model: str | None = None,
    ) -> keras.callbacks.History:
        """Trains like keras.Model.fit, on texts or on token ids.

        Batches are padded to their longest text. If you do not call `compile`, BERT's optimizer is used.

        Args:
            x: Texts in the form that the class describes, a tf.data.Dataset of texts or of (texts, labels), batched or
                not, or a dict of token ids, as for any functional model.
            y: Labels, as class names or indices. A model that was created without labels takes its class names from
                them.
            batch_size: Number of texts per step. Defaults to 32.
            epochs: Number of passes over the texts.
            verbose: See keras.Model.fit. 0 prints nothing, no notes either.
            callbacks: See keras.Model.fit.
            validation_split: Fraction of the texts, taken from the end, to hold out for validation. Cannot be combined
                with validation_data.
            validation_data: Tuple of texts and labels (and sample weights), or a tf.data.Dataset.
            shuffle: Whether to shuffle the texts in each epoch. The order depends on the seed and on the epoch.
            class_weight: Weight of each class, by index or by name, or "balanced" for weights that are inversely
                proportional to the frequencies of the classes.
            sample_weight: Weight of each text.
            initial_epoch: Epoch to start with.
            steps_per_epoch: See keras.Model.fit.
            validation_steps: See keras.Model.fit.
            validation_batch_size: Number of texts per validation batch. Defaults to batch_size.
            validation_freq: See keras.Model.fit.
            group_by_length: Whether to put texts of similar length into the same batch. This reduces padding, but
                batches are less random.
            metric_for_best_model: Name of a validation score, such as "f1_rare_class" or "loss". The model ends with
                the weights of the epoch in which this score was best. The history and later callbacks receive it as
                "val_f1_rare_class". Defaults to None, which keeps the weights of the last epoch.

        Raises:
            UserError: If texts, labels or weights have the wrong form or length, x is empty, a number is out of range,
                or the model has no score with the name `metric_for_best_model`.
        """
        epochs, initial_epoch = check_count(epochs, "epochs"), check_count(initial_epoch, "initial_epoch", 0, 0)
        steps_per_epoch = check_count(steps_per_epoch, "steps_per_epoch", None)
        validation_steps = check_count(validation_steps, "validation_steps", None)
        if not isinstance(validation_freq, list | tuple):
            validation_freq = check_count(validation_freq, "validation_freq")
        validation_split = check_split(validation_split, validation_data)
        batch_size = check_count(batch_size, "batch_size", 32)
        held_out_batch_size = check_count(validation_batch_size, "validation_batch_size", batch_size)
        if self._has_unknown_labels:
            learn_labels(self, x, y, verbose)
        callbacks = keras.tree.flatten(callbacks or [])
        self._predictor = None  # Layers may have changed since it was traced.
        self._compile_if_needed()
        compiling.check_precision(self.optimizer, self._policy_name)
        if self._bert_optimizer:
            compiling.check_callbacks(callbacks)
        inputs = Inputs(self, prints_notes=bool(verbose), class_weight=class_weight)
        validation_inputs = Inputs(self, prints_notes=bool(verbose))
        arguments, held_out = inputs.prepare_fit(
            x, y, sample_weight, batch_size=batch_size, validation_split=validation_split, shuffle=shuffle,
            group_by_length=group_by_length,
        )  # fmt: skip
        num_steps = steps_per_epoch or count_steps(arguments["x"], batch_size, validation_split)
        self._start_optimizer(epochs * num_steps, initial_epoch > 0)
        validation_data = validation_inputs.read_evaluation(
            validation_data if held_out is None else held_out, held_out_batch_size, validation_steps
        )
        prepared = validation_inputs.prepare_evaluation(validation_data, held_out_batch_size)
        set_epoch = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: setattr(inputs, "epoch", epoch))
        callbacks = [set_epoch, *callbacks]
        if metric_for_best_model is not None:
            best_model = select_best_model(
                metric_for_best_model, self._predictions, inputs, validation_data, held_out_batch_size, epochs
            )
            callbacks.insert(0, best_model)
        with data_errors.raise_one_line_errors():
            history = super().fit(
                **arguments,
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                validation_data=prepared,
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size,
                validation_freq=validation_freq,
            )
        num_epochs = f"in {len(history.epoch)} epochs" if len(history.epoch) > 1 else ""
        inputs.print_data_set_truncation(steps_per_epoch, num_epochs)
        validation_inputs.print_data_set_truncation(validation_steps, "validation", num_epochs)
        return history

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        confusion_matrix: bool = False,
        **settings: Any,
    ) -> Any:
        """Returns the loss and metrics like keras.Model.evaluate, for texts or for token ids.

        For texts, the result also contains the scores that Keras has no metric for: exact match and F1 for question
        answering, and precision, recall and F1 for entities, in total and per type. They need a second pass over the
        texts, and are omitted if you pass `steps`. If texts are read in several windows (doc_stride), the loss and the
        metrics are computed from the mean logits of each text. With `steps`, and while fit trains, they count windows.

        The loss and the Keras metrics, such as accuracy, are computed from the logits, without temperature, thresholds
        and min_confidence. The confusion matrix applies the thresholds.

        Args:
            x: See `fit`.
            y: Labels, as class names or indices.
            batch_size: Number of texts per batch. Defaults to 32.
            verbose: See keras.Model.evaluate.
            sample_weight: Weight of each text. Only the Keras loss and the weighted_metrics of `compile` use it. The
                other metrics, including the default ones, ignore it, except with several replicas or gradient
                accumulation.
            steps: Number of batches to evaluate. Defaults to all.
            callbacks: See keras.Model.evaluate.
            return_dict: Whether to return a dict from names to values. Otherwise the values are a list.
            confusion_matrix: Whether to add `confusion_matrix`, a dict from true classes to dicts of predicted classes
                and their counts.
            settings: Other arguments of keras.Model.evaluate.

        Raises:
            UserError: If texts or labels have the wrong form, x is empty, or a confusion matrix is requested for a
                model that is not a single-label classifier.
        """
        self._require_labels()
        self._compile_if_needed()
        batch_size, steps = check_count(batch_size, "batch_size", 32), check_count(steps, "steps", None)
        check_no_other_data(x, y=y, sample_weight=sample_weight)
        inputs = Inputs(self, prints_notes=bool(verbose))
        common = {"verbose": verbose, "steps": steps, "callbacks": callbacks, "return_dict": return_dict, **settings}
        if confusion_matrix and (are_ids(x) or not self.spec.is_single_label):
            raise UserError(
                "confusion_matrix=True needs texts and a TextClassifier with one class per text; remove the argument"
            )
        if are_ids(x):  # Keras' fit passes its validation data in this form.
            y = inputs.convert_labels(x, y)
            with data_errors.raise_one_line_errors():
                figures = super().evaluate(x, y, batch_size=batch_size, sample_weight=sample_weight, **common)
            if steps is None and hasattr(x, "examples"):
                figures |= inputs.compute_text_metrics(x.examples, batch_size)
            return figures
        data = x if isinstance(x, tf.data.Dataset) else inputs.make_examples(x, y, sample_weight)
        with data_errors.raise_one_line_errors():
            figures = super().evaluate(inputs.prepare_evaluation(data, batch_size), **common | {"return_dict": True})
        inputs.print_data_set_truncation(steps)
        if verbose and {"temperature", "thresholds"} & self.spec.settings.keys():
            print("note: the loss and the Keras metrics do not use the model's temperature and thresholds")
        added = {}
        averages_windows, has_own_scores = inputs.averages_windows, self.spec.has_own_scores
        if confusion_matrix or (steps is None and (averages_windows or has_own_scores)):
            examples = inputs.collect_examples(data, batch_size)
            if steps is None:
                figures |= inputs.compute_text_metrics(examples, batch_size)
            if confusion_matrix or has_own_scores:
                added = self._compute_scores(examples.items, batch_size, confusion_matrix)
        if return_dict:
            return {**figures, **added}
        values = self._flatten_metrics_in_order(figures)
        return [*(values if isinstance(values, list) else [values]), *added.values()] if added else values

    def _compute_scores(self, examples: Sequence[Any], batch_size: int, confusion_matrix: bool) -> dict[str, Any]:
        """Returns the scores of `evaluate` that Keras has no metric for, and the confusion matrix if requested."""
        predictions, spec = self._predictions(examples, batch_size, verbose=0), self.spec
        added: dict[str, Any] = {}
        if spec.has_own_scores:
            added = {name: score for name, score in spec.scores(predictions, examples).items() if name != "accuracy"}
        if confusion_matrix:
            added["confusion_matrix"] = scores.confusions(spec.labels or (), spec.outcomes(predictions, examples))
        return added

    # Steps. Keras' own steps average the means of the replicas, which is wrong if replicas have different numbers of
    # examples.

    def _learner(self) -> keras.Model:
        """Returns the model that fit trains. It shares the weights of this model, and is usually this model."""
        return self

    @property
    def _pads_rows(self) -> bool:
        """Whether batches are filled up with padding rows.

        They are needed where all replicas and micro-batches must have the same number of rows.
        """
        return self._micro_batches > 1 or uses_own_loop(self.distribute_strategy)

    def make_train_function(self, force: bool = False) -> None:
        if self.train_function is not None and not force:
            return
        strategy = self.distribute_strategy
        is_compiled = bool(self.jit_compile) or distribution.needs_static_shapes(strategy)
        with strategy.scope():
            self._training_step = TrainingStep(
                self._learner(), self.optimizer, self._loss_share(self._micro_batches), seed=self.seed,
                micro_batches=self._micro_batches, rematerialize=self.rematerialize, is_compiled=is_compiled,
            )  # fmt: skip
        if uses_own_loop(strategy):
            self.train_function = run_on_replicas(self, self.train_step)
        else:
            super().make_train_function(force=True)

    def make_test_function(self, force: bool = False) -> None:
        if not uses_own_loop(self.distribute_strategy):
            super().make_test_function(force)
        elif self.test_function is None or force:
            self.test_function = run_on_replicas(self, self.test_step)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Takes a training step on one replica's part of a batch, and returns the metrics and their current values.

        Args:
            data: A tuple of inputs, targets and optional sample weights.
        """
        assert self._training_step is not None
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        logs: dict[str, Any] = {}  # From an overridden compute_metrics. A loop of micro-batches cannot return it.

        def update_metrics(*batch: Any) -> None:
            logs.update(self._update_metrics(*batch))

        on_outputs = self._update_metrics if self._micro_batches > 1 else update_metrics
        loss, count = self._training_step(x, y, weights, on_outputs)
        return {**logs, **self._update_loss(loss, count)}

    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluates one replica's part of a batch, and returns the metrics and their current values. See train_step."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        outputs, loss = make_forward_pass(self._learner())(x, training=False), self._loss_share()
        count = all_reduce_sum(loss.count(x, y))
        share = loss.share(x, y, outputs, weights, count)
        logs = self._update_metrics(x, y, outputs, weights)
        return {**logs, **self._update_loss(all_reduce_sum(share), count)}

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *arguments: Any, **settings: Any) -> Any:
        check_labels(self.loss, self.spec, y, y_pred)
        return super().compute_loss(x, y, y_pred, *arguments, **settings)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self.distribute_strategy
        if iterator is not None and uses_own_loop(strategy):
            # The first batch of one replica. Keras would average the ids of all replicas.
            first = next(batches for _, _, batches in iterator)
            data_batch = tf.nest.map_structure(lambda each: strategy.experimental_local_results(each)[0], next(first))
            iterator = None
        super()._maybe_symbolic_build(iterator, data_batch)

    def _loss_share(self, micro_batches: int = 1) -> LossShare:
        def mean_loss(inputs: Any, targets: Any, outputs: Any, weights: Any) -> Any:
            targets, outputs = add_axis(targets, outputs)
            if self._pads_rows:
                check_losses_per_row(self.loss, targets, outputs)
            return self.compute_loss(inputs, targets, outputs, weights)

        return make_loss_share(self.loss, mean_loss, is_whole=not self._pads_rows, micro_batches=micro_batches)

    def _update_metrics(self, x: Any, y: Any, outputs: Any, weights: Any) -> dict[str, Any]:
        if self._pads_rows:
            weights = multiply_weights(find_real_rows(x), weights if self._weighs_metrics else None, y, outputs)
        elif weights is not None and isinstance(y, dict) and not isinstance(weights, dict):
            weights = dict.fromkeys(y, weights)
        y, outputs = add_axis(y, outputs)
        logs: dict[str, Any] = self.compute_metrics(x, y, outputs, weights)
        return logs

    def _update_loss(self, loss: Any, count: Any) -> dict[str, Any]:
        """Updates the loss metric, a mean over all examples (or tags) so far. Returns the values of all metrics."""
        # A user's metric of this name comes later.
        tracker = next(metric for metric in self.metrics if metric.name == "loss")
        tracker.update_state(loss, sample_weight=count / self.distribute_strategy.num_replicas_in_sync)
        return self.get_metrics_result()
