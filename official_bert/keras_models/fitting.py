"""Keras' fit, evaluate and predict on text: how the model is compiled, trained and asked."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.finetuning.replicas import Predictor
from official_bert.keras_models import inputs
from official_bert.keras_models.text_data import EpochCounter, TextData
from official_bert.modeling.config import BertConfig
from official_bert.optimization.finetuning_optimizer import bert_optimizer
from official_bert.optimization.optimizers import BertAdamW
from official_bert.tasks.task import Features, loss_of, loss_weights_of


@dataclasses.dataclass(frozen=True)
class _BertOptimizer:
    """What compile was asked for of BERT's optimizer, which fit makes when it knows the number of steps.

    `arguments` are keras.Model.compile's. They are kept here since a model takes the metrics in a dict of its own for
    its layers'.
    """

    learning_rate: float
    warmup_proportion: float
    layer_decay: float
    arguments: Mapping[str, Any]


_OF_FIT = "bert_optimizer_of_fit"  # what a saved model's configuration calls it


class TextTraining(TextData):
    """A functional model whose fit, evaluate and predict take text as well as ids; its subclasses say what text.

    Attributes:
        bert_config: the encoder's sizes.
    """

    bert_config: BertConfig
    _policy_name: str
    _predictor: Predictor | None = None
    _bert_optimizer: _BertOptimizer | None = None  # where a user's own optimizer is not compiled

    # What subclasses say.

    def _export_kind(self) -> str:
        """Returns the kind of task, as task_models and exports name it."""
        raise NotImplementedError

    def _decode(self, outputs: Any, features: Features, examples: Sequence[Any]) -> Any:
        """Returns what predict answers."""
        raise NotImplementedError

    def _task_loss(self) -> Any:
        """Returns the Keras loss, or losses by output."""
        return loss_of(self._export_kind())

    def _task_metrics(self) -> Any:
        """Returns what the progress bar shows beside the loss."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    # Training.

    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        *,
        learning_rate: float = 5e-5,
        warmup_proportion: float = 0.1,
        layer_decay: float = 1.0,
        **settings: Any,
    ) -> None:
        """Says how to train; what is not said is as in the original's fine-tuning.

        Args:
            optimizer: any Keras optimizer; None for BERT's, whose rate rises, then falls to 0 by the end of fit.
            loss: any Keras loss of logits; None for the task's.
            metrics: any Keras metrics; None for the task's, [] for none.
            learning_rate: the highest rate of BERT's optimizer.
            warmup_proportion: the share of the steps in which its rate rises.
            layer_decay: its rate of each layer by that of the layer above.
            settings: loss_weights, weighted_metrics, jit_compile, steps_per_execution, ... as of keras.Model.compile.
        """
        if metrics is None:
            with self._scope():  # so that their sums are those of all workers
                metrics = self._task_metrics()
        arguments = {
            "loss": self._task_loss() if loss is None else loss,
            "loss_weights": loss_weights_of(self._export_kind()) if loss is None else None,
            "metrics": metrics,
            **settings,
        }
        self._bert_optimizer = None
        if optimizer is None:
            self._bert_optimizer = _BertOptimizer(learning_rate, warmup_proportion, layer_decay, arguments)
            optimizer = BertAdamW(learning_rate)  # for evaluate, as Keras evaluates compiled models alone
        super().compile(self._scaled(optimizer), **arguments)

    def _scaled(self, optimizer: Any) -> Any:
        """The optimizer, which scales the loss where the layers compute in float16, as gradients would vanish there.

        Keras does so by itself only where float16 is the global policy.
        """
        optimizer = keras.optimizers.get(optimizer)
        if self._policy_name != "mixed_float16" or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return optimizer
        if self.distribute_strategy.num_replicas_in_sync > 1:
            raise UserError(
                "mixed_float16 needs a scaled loss, which Keras' optimizers do not sum over several replicas; take "
                "mixed_bfloat16"
            )
        return keras.optimizers.LossScaleOptimizer(optimizer)

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        if config and self._bert_optimizer:
            config["optimizer"]["config"]["name"] = _OF_FIT
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as a saved model was, unless by BERT's optimizer: its rate has fallen to 0, so it begins anew."""
        if not config or config["optimizer"]["config"]["name"] == _OF_FIT:
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def _compile_if_needed(self) -> None:
        if not self.compiled or self.loss is None:  # Keras calls all models compiled whose file has a configuration
            self.compile()

    def _compile_for(self, num_steps: int, is_continued: bool) -> None:
        """Compiles BERT's optimizer for so many steps, unless the user's own is compiled, or training goes on."""
        self._compile_if_needed()
        request = self._bert_optimizer
        if request is None or (is_continued and int(self.optimizer.iterations.numpy())):
            return
        with self._scope():
            optimizer, _ = bert_optimizer(
                self, self.bert_config.num_hidden_layers, num_steps=num_steps, learning_rate=request.learning_rate,
                warmup_proportion=request.warmup_proportion, layer_decay=request.layer_decay,
            )  # fmt: skip
            super().compile(self._scaled(optimizer), **request.arguments)
            self.optimizer.build(self.trainable_variables)

    def _scope(self) -> Any:
        strategy = self.distribute_strategy
        return strategy.scope() if strategy is not None else contextlib.nullcontext()

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
        class_weight: Mapping[Any, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> keras.callbacks.History:
        """Trains as keras.Model.fit does, on texts as well as on ids.

        Texts of like length share a batch, in another order each epoch, which depends on the seed; with shuffle=False
        they come in the order given. Without compile, BERT's optimizer is used (see `compile`).

        Args:
            x: texts in the form that the class says, or a tf.data.Dataset of such texts or of (texts, labels), batched
                or not; or ids, as for any functional model.
            y: labels, by number or by name.
            batch_size: texts in a step; 32 by default.
            epochs: how many times all texts are gone through.
            verbose: as of keras.Model.fit.
            callbacks: as of keras.Model.fit.
            validation_split: the share of the texts, at their end, that is not trained on but evaluated.
            validation_data: a tuple of texts and labels (and weights), or a data set.
            shuffle: whether texts are put into another order.
            class_weight: how much each class weighs, by number or by name.
            sample_weight: how much each text weighs.
            initial_epoch: the epoch to go on with.
            steps_per_epoch: as of keras.Model.fit.
            validation_steps: as of keras.Model.fit.
            validation_batch_size: texts at a time in validation.
            validation_freq: as of keras.Model.fit.

        Raises:
            UserError: texts or labels have another form, or another length.
        """
        settings = {
            "epochs": epochs, "verbose": verbose, "initial_epoch": initial_epoch, "steps_per_epoch": steps_per_epoch,
            "validation_steps": validation_steps, "validation_freq": validation_freq,
        }  # fmt: skip
        batch_size = batch_size or 32
        self._predictor = None  # layers may have been changed since it was traced
        if inputs.is_features(x) or inputs.has_features(x):
            is_data_set = isinstance(x, tf.data.Dataset)
            if not is_data_set:
                rows = len(x["input_ids"])
                rows = inputs.split_off(rows, validation_split) if validation_split else rows
                steps = steps_per_epoch or -(-rows // batch_size)
            else:
                steps = steps_per_epoch or inputs.steps_in(x)
            if class_weight:
                class_weight = dict(enumerate(self._weights_by_class(class_weight).tolist()))
            self._compile_for(epochs * steps, initial_epoch > 0)
            return super().fit(
                x, y, batch_size=None if is_data_set else batch_size, callbacks=callbacks,
                validation_split=validation_split, shuffle=shuffle and not is_data_set, class_weight=class_weight,
                validation_data=self._evaluation_data(validation_data, validation_batch_size or batch_size),
                sample_weight=sample_weight, validation_batch_size=validation_batch_size, **settings,
            )  # fmt: skip
        counter = EpochCounter()
        own_callbacks = [
            counter,
            *([callbacks] if isinstance(callbacks, keras.callbacks.Callback) else callbacks or []),
        ]
        if isinstance(x, tf.data.Dataset):
            if y is not None or sample_weight is not None or validation_split:
                raise UserError("a data set holds its labels and weights itself; leave out y, sample_weight and split")
            data = self._dataset_of_features(x, batch_size, counter, class_weight)
            steps = steps_per_epoch or inputs.steps_in(data)
        else:
            examples = self._weighed(x, y, sample_weight, class_weight)
            if validation_split:
                kept = inputs.split_off(len(examples.items), validation_split)
                validation_data = validation_data or examples[kept:]
                examples = examples[:kept]
            data = self._training_data(examples, batch_size, shuffle, counter)
            steps = steps_per_epoch or int(data.cardinality())
        data = self.shared_out(data)
        self._compile_for(epochs * steps, initial_epoch > 0)
        validation = self._evaluation_data(validation_data, validation_batch_size or batch_size)
        return super().fit(data, callbacks=own_callbacks, shuffle=False, validation_data=validation, **settings)

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
        **settings: Any,
    ) -> Any:
        """Returns the loss and the metrics as keras.Model.evaluate does, of texts as well as of ids; see `fit`."""
        self._compile_if_needed()
        common = {"verbose": verbose, "steps": steps, "callbacks": callbacks, "return_dict": return_dict, **settings}
        # Keras' fit hands over what it has made of its validation data.
        is_ready = x is None or inputs.is_features(x) or inputs.has_features(x)
        is_ready = is_ready or isinstance(x, tf.distribute.DistributedDataset)
        if is_ready:
            return super().evaluate(x, y, batch_size=batch_size, sample_weight=sample_weight, **common)
        data = (x, y) if sample_weight is None else (x, y, sample_weight)
        if isinstance(x, tf.data.Dataset):
            data = x
        return super().evaluate(self._evaluation_data(data, batch_size or 32), **common)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Returns the answers for texts, in the form that the class says; for ids, the network's outputs.

        Args:
            x: texts, a tf.data.Dataset of texts, or ids.
            batch_size: texts at a time; 32 by default.
            verbose: as of keras.Model.predict, for ids.
            steps: likewise.
            callbacks: likewise.
        """
        if inputs.is_features(x) or inputs.has_features(x):
            return super().predict(x, batch_size=batch_size, verbose=verbose, steps=steps, callbacks=callbacks)
        return self._answer(self._texts_in(x) if isinstance(x, tf.data.Dataset) else x, batch_size or 32)

    def _answer(self, x: Any, batch_size: int) -> Any:
        """What predict answers for texts."""
        examples = self._examples(x, None)
        if not examples:
            raise UserError("there are no examples")
        features = self._featurize(examples)
        return self._decode(self._network_outputs(features, batch_size), features, examples)

    def _network_outputs(self, features: Features, batch_size: int) -> Any:
        """The network's outputs for all rows, without padding (see tasks.task.Outputs)."""
        if self._predictor is None:
            self._predictor = Predictor(self, self.distribute_strategy, self.max_seq_length)
        return self._predictor.predict(features, batch_size)
