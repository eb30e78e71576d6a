"""The base of all Keras models that take text: fit, evaluate and predict on strings, saving and export.

B batch, S sequence
"""

import dataclasses
import os
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.checkpoint import Array, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats import own
from official_bert.checkpoints.loading import assign_weights
from official_bert.errors import UserError
from official_bert.export import formats
from official_bert.export.options import FLOAT32, SAVED_MODEL, ExportOptions
from official_bert.export.source import Source
from official_bert.inference.keras_model import KerasRunner
from official_bert.keras_models import compiling, errors_of_data, pretrained, saving, steps
from official_bert.keras_models.arguments import ReadOnly, make_read_only
from official_bert.keras_models.compiling import BertOptimizerSettings
from official_bert.keras_models.inputs import EpochCounter, Examples, Inputs, check_count, check_split, count_steps
from official_bert.keras_models.preprocessor import Preprocessor
from official_bert.keras_models.truncation import EvaluationTruncation, TrainingTruncation
from official_bert.kinds import scores
from official_bert.kinds.constant_answers import describe_constant_answers
from official_bert.kinds.features import check_length
from official_bert.kinds.input_adapters import are_ids, shown
from official_bert.kinds.model import model_for
from official_bert.kinds.spec import KindSpec
from official_bert.learning.initial_model import read_initial_model
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization.finetuning_optimizer import bert_optimizer
from official_bert.optimization.freezing import freeze
from official_bert.optimization.optimizers import BertAdamW
from official_bert.tokenization.casing import Casing, make_casing, resolve_casing
from official_bert.tokenization.exact import parse_vocab
from official_bert.tokenization.fast import FastTokenizer

_OPTIMIZER_OF_FIT = "bert_optimizer_of_fit"  # name of BERT's optimizer in a saved model's configuration
_OPTIMIZER_SETTINGS = "bert_optimizer"  # key of its settings there


class TextModel(keras.Model):
    """A functional Keras model from ids to logits whose fit, evaluate and predict also take text.

    Its head defines what examples look like and what predict returns. It can do all that a functional model can: its
    inputs are input_ids, input_mask and segment_ids, int32 [B, S], and fit, evaluate and predict take those too.

    The step of fit is that of the command (see learning.training_step). Built in a strategy's scope, the model takes
    the steps that one device would take on the same batches.

    Args:
        head: The head on the encoder.
        config: The encoder's sizes, a BertConfig or a dict of its fields.
        vocab: The text of its vocab.txt.
        do_lower_case: Whether the vocabulary is uncased. None detects it from the capital letters. A Casing is taken
            without comparing it with the vocabulary.
        strip_accents: Whether texts lose their accents. None does it for lower-cased texts.
        max_seq_length: The longest sequence in tokens. Longer texts are truncated, or read in windows.
        seed: Seed of the new weights, of dropout and of the order of the examples.
        dtype: A Keras dtype policy for the layers. None is Keras' global one.
        name: Name of the model.
        trainable: Whether the weights are trained.
        frozen: Names of layers that are not trained.
        quantization: "int8" for a model whose weights have 8 bits; see keras.Model.quantize.
        gradient_accumulation_steps: Number of micro-batches that fit splits a device's rows of a batch into, to save
            memory.
        rematerialize: Whether fit computes encoder blocks again in the backward pass, to save memory.

    Raises:
        UserError: If an argument is out of range or contradicts another.
    """

    default_name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]] = ()  # of fine-tuned models that from_checkpoint takes with their heads

    vocab = ReadOnly("vocab", is_stored=True)
    casing = ReadOnly("casing", is_stored=True)
    bert_config = ReadOnly("bert_config", is_stored=True)
    max_seq_length = ReadOnly("max_seq_length", is_stored=True)
    seed = ReadOnly("seed", is_stored=True)
    rematerialize = ReadOnly("rematerialize", is_stored=True)

    train_function: Any
    test_function: Any
    _predictor: KerasRunner | None = None
    _preprocessor: Preprocessor | None = None
    _saved_arguments: Mapping[str, Any] = types.MappingProxyType({})  # of compile, if BERT's optimizer was saved
    _bert_optimizer: BertOptimizerSettings | None = None  # None if a user's own optimizer is compiled
    _steps: steps.KerasSteps

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "_own_config" in vars(cls):
            make_read_only(cls)

    def __init__(
        self,
        head: KindSpec,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        do_lower_case: bool | Casing | None = None,
        strip_accents: bool | None = None,
        max_seq_length: int | None = None,
        seed: int = 0,
        dtype: Any = None,
        name: str | None = None,
        trainable: bool = True,
        frozen: Sequence[str] = (),
        quantization: str | None = None,
        gradient_accumulation_steps: int = 1,
        rematerialize: bool = False,
    ) -> None:
        if not isinstance(gradient_accumulation_steps, int | np.integer) or gradient_accumulation_steps < 1:
            received = shown(gradient_accumulation_steps)
            raise UserError(f"gradient_accumulation_steps is {received}; expected a whole number, 1 or more")
        config = config if isinstance(config, BertConfig) else BertConfig(**config)
        if max_seq_length is None:
            max_seq_length = min(head.default_max_seq_length, config.max_position_embeddings)
        if not isinstance(max_seq_length, int | np.integer):
            raise UserError(f"max_seq_length is {shown(max_seq_length)}; expected a whole number of tokens")
        check_length(max_seq_length, 4 if head.pair else 3)
        if max_seq_length > config.max_position_embeddings:
            raise UserError(
                f"max_seq_length is {max_seq_length}; the model reads {config.max_position_embeddings} tokens at most"
            )
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        self.head, self.bert_config = head, config
        core = self._build_core(policy.name, seed)
        super().__init__(inputs=core.input, outputs=core.output, name=name or self.default_name)
        self.trainable = trainable
        for layer in frozen:
            self.get_layer(layer).trainable = False
        tokens = parse_vocab(vocab)
        self.vocab, self.casing = vocab, resolve_casing(tokens, do_lower_case, strip_accents)
        self.max_seq_length, self.seed = max_seq_length, seed
        self._policy_name = policy.name
        self._micro_batches, self.rematerialize = gradient_accumulation_steps, rematerialize
        self._tokenizer = FastTokenizer.from_vocab(tokens, **self.casing._asdict())
        if quantization:
            self.quantize(quantization)

    def _build_core(self, dtype: str, seed: int) -> keras.Model:
        """Returns the encoder with its head."""
        return model_for(self.head).build(build_encoder(self.bert_config, seed=seed, dtype=dtype), seed)

    def _own_config(self) -> dict[str, Any]:
        """Returns the arguments of the subclass."""
        return {}

    def get_config(self) -> dict[str, Any]:
        frozen = [layer.name for layer in self.layers if layer.variables and not layer.trainable]
        quantized = {layer.quantization_mode for layer in self.layers if getattr(layer, "quantization_mode", None)}
        return {
            "config": self.bert_config.to_dict(),
            "vocab": self.vocab,
            **self.casing.settings,
            "max_seq_length": self.max_seq_length,
            "seed": self.seed,
            "dtype": self._policy_name,
            "name": self.name,
            "trainable": self.trainable,
            "frozen": frozen if self.trainable else [],
            "quantization": quantized.pop() if quantized else None,
            "gradient_accumulation_steps": self._micro_batches,
            "rematerialize": self.rematerialize,
            **self._own_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        casing = make_casing(config["do_lower_case"], config.get("strip_accents"))
        return cls(**{**config, "do_lower_case": casing, "strip_accents": None})

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The classes' names, in the order of the logits."""
        return self.head.labels

    @property
    def preprocessor(self) -> Preprocessor:
        """The layer from strings to the network's inputs, for `dataset.map` and models of one's own."""
        if self._preprocessor is None:
            self._preprocessor = Preprocessor(self.vocab, self.casing, self.max_seq_length)
        return self._preprocessor

    def freeze(self, *patterns: str) -> list[str]:
        """Freezes the layers whose names match a regular expression; returns their names.

        Raises:
            UserError: If a pattern matches no layer.
        """
        return freeze(self, patterns)

    def quantize(self, *arguments: Any, **settings: Any) -> None:
        """Quantizes dense layers as keras.Model.quantize does; layers without a matrix are unchanged."""
        self._predictor = None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have a `quantize` method")
            super().quantize(*arguments, **settings)

    # Loading, saving and export.

    @classmethod
    def from_checkpoint(
        cls,
        source: str | BertConfig,
        *,
        vocab_file: str | None = None,
        do_lower_case: bool | None = None,
        strip_accents: bool | None = None,
        **settings: Any,
    ) -> Self:
        """Returns a model with trained weights and, unless the checkpoint is a fine-tuned one of this kind, a new head.

        Args:
            source: a checkpoint of any format that `official_bert.load` takes, by its path or its name, such as
                bert-base-uncased; the folder of a fine-tuned model; a .keras file of any model that takes text; or a
                BertConfig or the path of a bert_config.json, for random weights.
            vocab_file: a vocab.txt, where the source has none.
            do_lower_case: whether the vocabulary is uncased, where the source does not say it.
            strip_accents: whether lower-cased texts lose their accents, likewise; by default they do.
            settings: further arguments of the class, by name. Those of every class:
                max_seq_length: the longest sequence in tokens, by default 128 (QuestionAnswerer: 384) or that of
                    fine-tuning; longer texts are cut, or read in windows.
                seed: of the new weights, of dropout and of the order of the examples; 0.
                dtype: a Keras dtype policy, as "mixed_bfloat16"; None for Keras' global one.
                name: of the model; None for the class's.
                trainable, frozen: whether weights are trained (True), and names of layers that are not ().
                quantization: "int8" for weights of 8 bits; None.
                gradient_accumulation_steps: micro-batches of a step of fit, for less memory; 1.
                rematerialize: whether fit computes blocks again in the backward pass, for less memory; False.
                And of one class:
                TextClassifier: labels, multi_label=False, pair=False, doc_stride=None (cuts long texts),
                    temperature=1.0, thresholds=None (one half), positive_weights=None (1), min_confidence=0.0.
                TextRegressor: pair=False, doc_stride=None.
                TokenTagger: labels, doc_stride=None (half a window).
                QuestionAnswerer: no_answer=False, null_score_diff_threshold=0.0, doc_stride=128, max_query_length=64,
                    max_answer_length=30, n_best_size=20.
                MaskedLM: masked_lm_prob=0.15, max_predictions_per_seq=20, do_whole_word_mask=False.
                TextEncoder: pooling="mean", layers=(-1,), normalize=False, objective="ranking", dimensions=(),
                    score_range=(0.0, 1.0), scale=20.0, margin=5.0.
                `labels` and others come from the checkpoint where it is a fine-tuned model of this kind.

        Raises:
            UserError: something is missing, damaged, or does not fit together.
        """
        source = source if isinstance(source, BertConfig) else os.fspath(source)
        if isinstance(source, str) and source.endswith(".keras"):
            overrides = LoadOverrides(vocab_file=vocab_file, do_lower_case=do_lower_case, strip_accents=strip_accents)
            saved = saving.load(source, TextModel, "a model that takes text, as TextClassifier")
            initial = pretrained.as_loaded_model(saved, source, overrides)
        else:
            initial = read_initial_model(source, vocab_file, do_lower_case, strip_accents)
        model: Self = pretrained.create_model(cls, initial, settings)
        return model

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the class's own arguments from a fine-tuned model's task.json."""
        return {}

    @classmethod
    def _settings_of_classifier(cls, labels: tuple[str, ...] | None, kind: str | None) -> dict[str, Any]:
        """Returns the class's own arguments from a checkpoint's classifier, as far as it describes itself."""
        return {}

    def _take_decisions(self, spec: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Takes over the decisions of a fine-tuned model whose head is used, except for what the user gave."""

    def _head_note(self, has_head: bool) -> str:
        return "the head is the checkpoint's" if has_head else "the head is new: train it before you predict"

    @classmethod
    def load(cls, path: str) -> Self:
        """Returns a model that `save` has written.

        Raises:
            UserError: If there is no such file, it is damaged, or it holds another kind of model.
        """
        model: Self = saving.load(path, cls, f"a {cls.__name__}")
        return model

    def _assign_weights(self, weights: Mapping[str, Array]) -> None:
        """Assigns the weights that the model has variables for."""
        assign_weights(self, weights, allow_missing=True)

    def _weights(self) -> dict[str, Array]:
        """Returns the weights by path, float32, with low-rank updates merged into their matrices."""
        self._check_not_quantized()
        return pretrained.collect_weights(self)

    def _check_not_quantized(self) -> None:
        if self.get_config()["quantization"]:
            raise UserError(
                f"{self.name} has weights of 8 bits, which only .keras files and saved_model exports hold; save or "
                "export it before quantize"
            )

    def _task_spec(self) -> dict[str, Any]:
        return self.head.task_spec(self.name if self.kinds else None, self.max_seq_length)

    def save(self, filepath: Any, overwrite: bool = True, zipped: bool | None = None, **settings: Any) -> None:
        """Writes the model as keras.Model.save does; the file, also one that is replaced, is whole at any moment.

        Args:
            filepath: ends in .keras, or in .h5 for Keras' older format.
            overwrite: whether a file of that name is replaced, or refused.
            zipped: False for a folder in place of a .keras file, which must be a new one.
            settings: of keras.Model.save.

        Raises:
            UserError: the file system refuses the write, or what is there may not be replaced.
        """
        with saving.write_atomically(filepath, self, overwrite, is_folder=zipped is False) as whole:
            super().save(whole, zipped=zipped, **settings)

    def save_weights(self, filepath: Any, overwrite: bool = True, max_shard_size: float | None = None) -> None:
        """Writes the weights as keras.Model.save_weights does; the file is whole at any moment, as by `save`."""
        with saving.write_atomically(filepath, self, overwrite) as whole:
            super().save_weights(whole, max_shard_size=max_shard_size)

    def save_checkpoint(self, folder: str) -> None:
        """Writes a folder that the commands, `official_bert.load` and `from_checkpoint` read.

        The folder is that of a fine-tuned model or, for MaskedLM, a checkpoint as pre-training writes it. It may be a
        folder that this method wrote before.

        Raises:
            UserError: If a weight has 8 bits or is not finite, or the folder holds something else.
        """
        folder = os.fspath(folder)
        self._check_not_quantized()
        if self.kinds:
            finetuned.save(folder, self, self._task_spec(), self.bert_config, self.vocab, self.casing)
        else:
            own.save(LoadedModel(self.bert_config, self._weights(), self.vocab, self.casing), folder)

    def export(
        self,
        filepath: str,
        format: str = SAVED_MODEL,
        *,
        version: int | None = None,
        eval_file: str | None = None,
        quantization: str = FLOAT32,
        max_loss: float = 0.01,
        for_serving: str | None = None,
    ) -> None:
        """Writes the model for use without this package's Python classes, as `official-bert export` does.

        Args:
            filepath: Folder to write to.
            format: One or more of "saved_model" and "onnx", which take text, and "litert", which takes ids, separated
                by commas.
            version: Version number for saved_model and onnx. Defaults to the next unused number.
            eval_file: File of labelled examples, which litert and 8-bit matrices are scored on.
            quantization: "float32", or "dynamic_int8" for 8-bit matrices in onnx and litert.
            max_loss: Largest drop of the task's score, as a share of the best possible score.
            for_serving: TensorFlow Serving release that must be able to load the saved_model, such as "2.19".

        Raises:
            UserError: If a format does not support the model or a setting, or an export answers differently from
                `predict`.
        """
        options = ExportOptions(
            model_dir=self.name,
            export_dir=os.fspath(filepath),
            format=format.split(","),
            version=version,
            eval_file=eval_file,
            quantization=quantization,
            max_loss=max_loss,
            for_serving=for_serving,
        )
        if options.format != [SAVED_MODEL]:
            self._check_not_quantized()
        source = Source(self, self.bert_config, self._tokenizer, self.vocab, self.head.kind, self._task_spec())
        formats.write(source, options)

    # Compiling.

    def _learner(self) -> keras.Model:
        """Returns the model that is trained: this one, or one that shares its weights."""
        return self

    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        *,
        learning_rate: float = 5e-5,
        warmup_proportion: float = 0.1,
        layer_decay: float = 1.0,
        adam_bias_correction: bool = True,
        **settings: Any,
    ) -> None:
        """Configures training. The defaults are those of the original's fine-tuning, except for the bias correction.

        Args:
            optimizer: A Keras optimizer. None or "auto" is BERT's, whose rate rises, then falls to 0 by the end of fit.
            loss: A Keras loss of logits. None or "auto" is the loss of the task.
            metrics: Keras metrics of logits. None or "auto" are those of the task, [] is none.
            learning_rate: The highest rate of BERT's optimizer.
            warmup_proportion: The share of the steps in which its rate rises.
            layer_decay: The rate of each layer divided by that of the layer above.
            adam_bias_correction: Whether BERT's optimizer corrects the bias of its moments. The original does not,
                which fails more often on little data.
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
        strategy = self.distribute_strategy
        pads_rows = steps.pads_rows(strategy, self._micro_batches)
        with strategy.scope():  # so that the metrics' sums are those of all workers
            arguments = compiling.keras_arguments(self.head, loss, metrics, settings, pads_rows, bool(self.losses))
        if optimizer is None:
            optimizer = BertAdamW(float(learning_rate))  # for evaluate: Keras evaluates only compiled models
            self._bert_optimizer = bert_settings
        else:
            self._bert_optimizer = None
        super().compile(compiling.prepare_optimizer(optimizer, self._policy_name, strategy), **arguments)
        self._steps = steps.KerasSteps(
            self, self._learner(), seed=self.seed, micro_batches=self._micro_batches,
            rematerialize=self.rematerialize, weighs_metrics=bool(settings.get("weighted_metrics")),
        )  # fmt: skip

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        if config and "optimizer" not in config:  # Keras removes it when it writes its older format, .h5
            config["optimizer"] = keras.saving.serialize_keras_object(self.optimizer)
        if config and self._bert_optimizer:
            config["optimizer"]["config"]["name"] = _OPTIMIZER_OF_FIT
            config[_OPTIMIZER_SETTINGS] = dataclasses.asdict(self._bert_optimizer)
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as a saved model was compiled. BERT's optimizer starts again when the model is used."""
        if not config:
            return
        arguments = keras.saving.deserialize_keras_object(config)
        arguments["metrics"] = arguments["metrics"] or []  # None if they became weighted metrics
        settings = arguments.pop(_OPTIMIZER_SETTINGS, {})
        if config["optimizer"]["config"]["name"] == _OPTIMIZER_OF_FIT:
            self._saved_arguments = {**arguments, "optimizer": None, **settings}
            return
        try:
            self.compile(**arguments)
        except UserError as error:
            print(f"note: the model is loaded as if it were not compiled: {error}")
            return
        self.optimizer.build(self._learner().trainable_variables)

    def _compile_if_needed(self) -> None:
        if not self.compiled or self.loss is None:  # Keras calls all models compiled whose file has a configuration
            self.compile(**self._saved_arguments)

    def _start_optimizer(self, num_steps: int, is_continued: bool) -> None:
        """Replaces BERT's optimizer by one for this number of steps, unless training continues."""
        if self._bert_optimizer is None or (is_continued and int(self.optimizer.iterations.numpy())):
            return
        with self.distribute_strategy.scope():
            # Past Keras' tracking of attributes, as in keras.Model.compile.
            self.__dict__["optimizer"], _ = bert_optimizer(
                self._learner(),
                self.bert_config.num_hidden_layers,
                num_steps=num_steps,
                scales_loss=self._policy_name == "mixed_float16",
                **dataclasses.asdict(self._bert_optimizer),
            )
        self.train_function = None

    # The steps that Keras calls.

    def make_train_function(self, force: bool = False) -> None:
        if self.train_function is not None and not force:
            return
        self._steps.build_training_step()
        if steps.uses_own_loop(self.distribute_strategy):
            self.train_function = self._steps.run_on_replicas(self.train_step)
        else:
            super().make_train_function(force=True)

    def make_test_function(self, force: bool = False) -> None:
        if not steps.uses_own_loop(self.distribute_strategy):
            super().make_test_function(force)
        elif self.test_function is None or force:
            self.test_function = self._steps.run_on_replicas(self.test_step)

    def train_step(self, data: Any) -> dict[str, Any]:
        return self._steps.train(data)

    def test_step(self, data: Any) -> dict[str, Any]:
        return self._steps.test(data)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None and steps.uses_own_loop(self.distribute_strategy):
            data_batch, iterator = steps.first_batch_of_replica(self.distribute_strategy, iterator), None
        super()._maybe_symbolic_build(iterator, data_batch)

    # Training and evaluation.

    def _create_inputs(self) -> Inputs:
        return Inputs(
            head=self.head,
            tokenizer=self._tokenizer,
            max_seq_length=self.max_seq_length,
            seed=self.seed,
            preprocessor=lambda: self.preprocessor,
            strategy=self.distribute_strategy,
            is_compiled=bool(self.jit_compile),
        )

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
    ) -> keras.callbacks.History:
        """Trains as keras.Model.fit does, on texts as well as on ids.

        Texts come in another order each epoch, which depends on the seed, or in the given order with shuffle=False. A
        batch is padded to its longest text. Without `compile`, BERT's optimizer is used.

        Args:
            x: Texts in the form that the class describes, a tf.data.Dataset of texts or of (texts, labels), batched or
                not, or ids, as for any functional model.
            y: Labels, by number or by name.
            batch_size: Texts in a step. Defaults to 32.
            epochs: Number of passes over all texts.
            verbose: As in keras.Model.fit.
            callbacks: As in keras.Model.fit.
            validation_split: The share of the texts, at their end, that is only evaluated. Excludes validation_data.
            validation_data: A tuple of texts and labels (and weights), or a data set.
            shuffle: Whether texts are shuffled.
            class_weight: The weight of each class, by number or by name; or "balanced" for weights by how rare the
                classes are, as in the command.
            sample_weight: The weight of each text.
            initial_epoch: The epoch to continue with.
            steps_per_epoch: As in keras.Model.fit.
            validation_steps: As in keras.Model.fit.
            validation_batch_size: Texts in a batch of validation.
            validation_freq: As in keras.Model.fit.
            group_by_length: Whether shuffled texts of a batch have similar lengths: less padding, but batches that are
                less random.

        Raises:
            UserError: If texts or labels have the wrong form or length, there are none, or a number is out of range.
        """
        epochs, initial_epoch = check_count(epochs, "epochs"), check_count(initial_epoch, "initial_epoch", 0, 0)
        steps_per_epoch = check_count(steps_per_epoch, "steps_per_epoch", None)
        validation_steps = check_count(validation_steps, "validation_steps", None)
        if not isinstance(validation_freq, list | tuple):  # the epochs after which to validate
            validation_freq = check_count(validation_freq, "validation_freq")
        validation_split = check_split(validation_split, validation_data)
        batch_size = check_count(batch_size, "batch_size", 32)
        held_out_batch_size = check_count(validation_batch_size, "validation_batch_size", batch_size)
        self._predictor = None  # layers may have been changed since it was traced
        self._compile_if_needed()
        inputs, counter = self._create_inputs(), EpochCounter()
        truncation, validation_truncation = TrainingTruncation(steps_per_epoch), EvaluationTruncation()
        arguments, held_out = inputs.for_fit(
            x, y, sample_weight, class_weight, batch_size=batch_size, validation_split=validation_split,
            shuffle=shuffle, group_by_length=group_by_length, counter=counter, truncation=truncation,
        )  # fmt: skip
        num_steps = steps_per_epoch or count_steps(arguments["x"], batch_size, validation_split)
        self._start_optimizer(epochs * num_steps, initial_epoch > 0)
        if arguments["x"] is not x:
            arguments["x"] = steps.distribute_batches(self.distribute_strategy, arguments["x"])
        if held_out is not None:
            validation_data = held_out
        with errors_of_data.in_one_line():
            history = super().fit(
                **arguments,
                epochs=epochs,
                verbose=verbose,
                callbacks=[counter, truncation, validation_truncation, *_as_list(callbacks)],
                validation_data=inputs.for_evaluation(validation_data, held_out_batch_size, validation_truncation),
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size,
                validation_freq=validation_freq,
            )
        num_epochs = f"in {len(history.epoch)} epochs" if len(history.epoch) > 1 else ""
        truncation.print_note(self.head, self.max_seq_length, num_epochs)
        validation_truncation.print_note(self.head, self.max_seq_length, "validation", num_epochs)
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
        """Returns the loss and the metrics as keras.Model.evaluate does, of texts as well as of ids.

        For texts, the scores of the command follow where Keras has no metric for them: exact match and F1 of answers to
        questions; precision, recall and F1 of entities, in total and of each type. They take a second pass, and are
        left out if `steps` takes a part of the texts.

        Args:
            x: As in `fit`.
            y: Labels.
            batch_size: Texts in a batch. Defaults to 32.
            verbose: As in keras.Model.evaluate.
            sample_weight: The weight of each text, which scores ignore.
            steps: Number of batches. None takes all.
            callbacks: As in keras.Model.evaluate.
            return_dict: Whether to return figures by name. Otherwise a list has them in the same order.
            confusion_matrix: Whether to add `confusion_matrix`: for each class how many of its texts got which class,
                all by name, as in the report of the command.
            settings: Other arguments of keras.Model.evaluate.

        Raises:
            UserError: If texts or labels have the wrong form, there are none, or there are no classes to confuse.
        """
        self._compile_if_needed()
        inputs, batch_size = self._create_inputs(), check_count(batch_size, "batch_size", 32)
        steps = check_count(steps, "steps", None)
        common = {"verbose": verbose, "steps": steps, "return_dict": return_dict, **settings}
        takes_ids = are_ids(x) or isinstance(x, tf.distribute.DistributedDataset)
        if confusion_matrix and (takes_ids or not self.head.has_one_class):
            raise UserError(
                "confusion_matrix is of texts that have one class each, which TextClassifier takes; leave it out"
            )
        if takes_ids:  # also the validation data of Keras' fit
            if are_ids(x):
                y = inputs.labels_of_ids(x, y)
            common |= {"batch_size": batch_size, "sample_weight": sample_weight, "callbacks": callbacks}
            with errors_of_data.in_one_line():
                return super().evaluate(x, y, **common)
        data = x if isinstance(x, tf.data.Dataset) else inputs.examples(x, y, sample_weight)
        truncation = EvaluationTruncation()
        with errors_of_data.in_one_line():
            figures = super().evaluate(
                inputs.for_evaluation(data, batch_size, truncation),
                callbacks=[truncation, *_as_list(callbacks)],
                **common,
            )
        truncation.print_note(self.head, self.max_seq_length)
        if isinstance(figures, list | dict) and not figures:
            raise UserError("there are no examples")
        added = {}
        if confusion_matrix or (self.head.has_own_scores and steps is None):
            examples = data.items if isinstance(data, Examples) else inputs.examples_in(data, batch_size)
            added = self._scores(examples, batch_size, confusion_matrix)
        if return_dict or not added:
            return {**figures, **added} if added else figures
        return [*(figures if isinstance(figures, list) else [figures]), *added.values()]

    def _scores(self, examples: Sequence[Any], batch_size: int, confusion_matrix: bool) -> dict[str, Any]:
        """Returns what evaluate adds to Keras' figures."""
        predictions, head = self._predictions(examples, batch_size, prints_truncation=False), self.head
        added: dict[str, Any] = {}
        if head.has_own_scores:
            added = {name: score for name, score in head.scores(predictions, examples).items() if name != "accuracy"}
        if confusion_matrix:
            added["confusion_matrix"] = scores.confusions(head.labels or (), head.outcomes(predictions, examples))
        return added

    # Answers.

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Returns the answers for texts, in the form that the class describes, or the network's outputs for ids.

        Prints a warning if ten or more answers are all (nearly) equal.

        Args:
            x: Texts, a tf.data.Dataset of texts, or ids.
            batch_size: Texts in a batch. Defaults to 32.
            verbose: As in keras.Model.predict, for ids.
            steps: As in keras.Model.predict, for ids.
            callbacks: As in keras.Model.predict, for ids.

        Raises:
            UserError: If texts have the wrong form, there are none, or arguments for ids are given with texts.
        """
        batch_size = check_count(batch_size, "batch_size", 32)
        if are_ids(x):
            with errors_of_data.in_one_line():
                return super().predict(x, batch_size=batch_size, verbose=verbose, steps=steps, callbacks=callbacks)
        if steps is not None or callbacks is not None:
            raise UserError(
                "steps and callbacks are given with texts; predict takes them with ids alone: leave them out"
            )
        return self._answer(self._create_inputs().texts_in(x), batch_size)

    def _answering_model(self) -> keras.Model:
        """Returns the model whose outputs the head decodes."""
        model: keras.Model = model_for(self.head).answering_model(self)
        return model

    def _answer(self, x: Any, batch_size: int) -> Any:
        """Returns the answers for texts."""
        examples = self.head.examples(x, None)
        predictions = self._predictions(examples, batch_size)
        if self.head.decisions or self.head.is_value:  # not vectors
            warning = describe_constant_answers(self.head.named_answers(predictions, examples))
            if warning:
                print(f"warning: {warning}")
        return self.head.answers(predictions)

    def _predictions(self, examples: Sequence[Any], batch_size: int | None, prints_truncation: bool = True) -> Any:
        """Returns the predictions for examples, as the head decodes them."""
        if not examples:
            raise UserError("there are no examples")
        features = self.head.featurize(examples, self._tokenizer, self.max_seq_length)
        note = self.head.cut_note(features.cut, len(examples), self.max_seq_length)
        if note and prints_truncation:
            print(f"note: {note}")
        if self._predictor is None:
            self._predictor = KerasRunner(self._answering_model(), self.distribute_strategy, self.max_seq_length)
        outputs = self._predictor.compute_outputs(features, check_count(batch_size, "batch_size", 32))
        return self.head.decode(outputs, features, examples)


make_read_only(TextModel)


def _as_list(callbacks: Any) -> list[Any]:
    return [callbacks] if isinstance(callbacks, keras.callbacks.Callback) else list(callbacks or [])
