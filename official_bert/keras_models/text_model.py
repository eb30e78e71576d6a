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
from official_bert.finetuning.initial_model import read_initial_model
from official_bert.inference.keras_model import KerasRunner
from official_bert.keras_models import compiling, data_errors, pretrained, saving, steps
from official_bert.keras_models.arguments import ReadOnly, make_read_only
from official_bert.keras_models.best_model import select_best_model
from official_bert.keras_models.compiling import BertOptimizerSettings
from official_bert.keras_models.inputs import EpochCounter, Examples, Inputs, check_count, check_split, count_steps
from official_bert.keras_models.preprocessor import Preprocessor
from official_bert.keras_models.truncation import EvaluationTruncation, TrainingTruncation
from official_bert.kinds import scores
from official_bert.kinds.constant_answers import describe_constant_answers
from official_bert.kinds.features import check_length
from official_bert.kinds.input_adapters import are_ids, format_value
from official_bert.kinds.model import create_model
from official_bert.kinds.spec import KindSpec
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization.finetuning_optimizer import create_bert_optimizer
from official_bert.optimization.freezing import ALL, freeze
from official_bert.optimization.optimizers import BertAdamW
from official_bert.tokenization.casing import Casing, resolve_casing, restore_casing
from official_bert.tokenization.exact import parse_vocab
from official_bert.tokenization.fast import FastTokenizer

_OPTIMIZER_OF_FIT = "bert_optimizer_of_fit"  # name of BERT's optimizer in a saved model's configuration
_OPTIMIZER_SETTINGS = "bert_optimizer"  # key of its settings there


class TextModel(keras.Model):
    """A functional Keras model from token ids to logits whose fit, evaluate and predict also accept text.

    The head determines the form of the examples and the result of predict. The inputs are input_ids, input_mask and
    segment_ids, int32 [B, S]. fit, evaluate and predict also accept these arrays, as for any functional model.

    fit takes the same training step as the command (see finetuning.training_step). In the scope of a strategy, it takes
    the steps that a single device would take on the same batches.

    Args:
        head: The head of the encoder.
        config: Sizes of the encoder, a BertConfig or a dict of its fields.
        vocab: Contents of its vocab.txt.
        do_lower_case: Whether the vocabulary is uncased. None detects it from capital letters in the vocabulary. A
            Casing is not compared with the vocabulary.
        strip_accents: Whether to remove accents. Defaults to the value of do_lower_case.
        max_seq_length: Maximum number of tokens in a sequence. Longer texts are truncated or split into windows.
        seed: Random seed for new weights, dropout and shuffling.
        dtype: Keras dtype policy of the layers. Defaults to Keras' global policy.
        name: Name of the model.
        trainable: Whether the weights are trainable.
        frozen: Names of the layers that are not trained.
        quantization: "int8" if the weights have 8 bits. See keras.Model.quantize.
        gradient_accumulation_steps: Number of micro-batches per step in fit. More of them need less memory.
        rematerialize: Whether fit recomputes encoder blocks in the backward pass to save memory.

    Raises:
        UserError: If an argument is out of range or contradicts another.
    """

    default_name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]] = ()  # kinds of fine-tuned models whose heads from_checkpoint can load

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
    _saved_arguments: Mapping[str, Any] = types.MappingProxyType(
        {}
    )  # arguments of compile, if BERT's optimizer was saved
    _bert_optimizer: BertOptimizerSettings | None = None  # None if a user's own optimizer is compiled
    _steps: steps.KerasSteps

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "_get_own_config" in vars(cls):
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
            received = format_value(gradient_accumulation_steps)
            raise UserError(f"gradient_accumulation_steps is {received}; expected a whole number, 1 or more")
        config = config if isinstance(config, BertConfig) else BertConfig(**config)
        if max_seq_length is None:
            max_seq_length = min(head.default_max_seq_length, config.max_position_embeddings)
        if not isinstance(max_seq_length, int | np.integer):
            raise UserError(f"max_seq_length is {format_value(max_seq_length)}; expected a whole number of tokens")
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
        return create_model(self.head).build(build_encoder(self.bert_config, seed=seed, dtype=dtype), seed)

    def _get_own_config(self) -> dict[str, Any]:
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
            **self._get_own_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        return cls(**restore_casing(config))

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Names of the classes, in the order of the logits."""
        return self.head.labels

    @property
    def preprocessor(self) -> Preprocessor:
        """Layer that converts strings to the inputs of the network, for `dataset.map` and your own models."""
        if self._preprocessor is None:
            self._preprocessor = Preprocessor(self.vocab, self.casing, self.max_seq_length)
        return self._preprocessor

    def freeze(self, *patterns: str) -> list[str]:
        """Freezes the layers whose names match a regular expression, and returns their names.

        Without a pattern, freezes the encoder with its pooler, so that `fit` trains the head alone (a linear probe).

        Raises:
            UserError: If a pattern matches no layer.
        """
        return freeze(self, patterns or [ALL])

    def quantize(self, *arguments: Any, **settings: Any) -> None:
        """Quantizes dense layers like keras.Model.quantize. Layers without a matrix do not change."""
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
        """Creates a model with pre-trained weights. The head is new unless `source` is a fine-tuned model of this kind.

        Args:
            source: Path or name (such as bert-base-uncased) of a checkpoint in any format that `official_bert.load`
                reads, the folder of a fine-tuned model, or a .keras file of a model that accepts text. For random
                weights, a BertConfig or the path of a bert_config.json.
            vocab_file: Path of a vocab.txt, if `source` does not include one.
            do_lower_case: Whether the vocabulary is uncased, if `source` does not specify it.
            strip_accents: Whether to remove accents, if `source` does not specify it. Defaults to do_lower_case.
            settings: Other arguments of the class. A fine-tuned model of this kind supplies the defaults of labels and
                of the settings of its head. Arguments of all classes:

                - max_seq_length: Maximum number of tokens in a sequence. Longer texts are truncated or split into
                  windows. Defaults to the value of the fine-tuned model, otherwise to 128 (QuestionAnswerer: 384).
                - seed: Random seed for new weights, dropout and shuffling. Defaults to 0.
                - dtype: Keras dtype policy, such as "mixed_bfloat16". Defaults to Keras' global policy.
                - name: Name of the model.
                - trainable: Whether the weights are trainable. Defaults to True.
                - frozen: Names of the layers that are not trained.
                - quantization: "int8" for weights with 8 bits.
                - gradient_accumulation_steps: Number of micro-batches per step in fit. Defaults to 1.
                - rematerialize: Whether fit recomputes encoder blocks to save memory. Defaults to False.

                Arguments of one class and their defaults:

                - TextClassifier: labels, multi_label=False, pair=False, doc_stride=None, temperature=1.0,
                  thresholds=None, positive_weights=None, min_confidence=0.0.
                - TextRegressor: pair=False, doc_stride=None.
                - TokenTagger: labels, doc_stride=None.
                - QuestionAnswerer: no_answer=False, null_score_diff_threshold=0.0, doc_stride=128, max_query_length=64,
                  max_answer_length=30, n_best_size=20.
                - MaskedLM: masked_lm_prob=0.15, max_predictions_per_seq=20, do_whole_word_mask=False.
                - TextEncoder: pooling="mean", layers=(-1,), normalize=False, objective="ranking", dimensions=(),
                  score_range=(0.0, 1.0), scale=20.0, margin=5.0.

        Raises:
            UserError: If a file is missing or damaged, or an argument contradicts the checkpoint.
        """
        source = source if isinstance(source, BertConfig) else os.fspath(source)
        if isinstance(source, str) and source.endswith(".keras"):
            overrides = LoadOverrides(vocab_file=vocab_file, do_lower_case=do_lower_case, strip_accents=strip_accents)
            saved = saving.load(source, TextModel, "a model that takes text, as TextClassifier")
            initial = pretrained.to_loaded_model(saved, source, overrides)
        else:
            initial = read_initial_model(source, vocab_file, do_lower_case, strip_accents)
        model: Self = pretrained.create_model(cls, initial, settings)
        return model

    @classmethod
    def _get_settings(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of this class that are stored in the task.json of a fine-tuned model."""
        return {}

    @classmethod
    def _get_classifier_settings(cls, labels: tuple[str, ...] | None, kind: str | None) -> dict[str, Any]:
        """Returns the arguments of this class that follow from the classification head of a checkpoint."""
        return {}

    def _take_decisions(self, spec: Mapping[str, Any], explicit: Mapping[str, Any]) -> None:
        """Copies thresholds and similar settings of a fine-tuned model, unless the user passed them."""

    def _head_note(self, has_head: bool) -> str:
        return "the head is the checkpoint's" if has_head else "the head is new: train it before you predict"

    @classmethod
    def load(cls, path: str) -> Self:
        """Loads a model that was written by `save`.

        Raises:
            UserError: If the file does not exist, is damaged, or contains a model of another class.
        """
        model: Self = saving.load(path, cls, f"a {cls.__name__}")
        return model

    def _assign_weights(self, weights: Mapping[str, Array]) -> None:
        """Assigns the weights for which the model has variables."""
        assign_weights(self, weights, allow_missing=True)

    def _weights(self) -> dict[str, Array]:
        """Returns the float32 weights by variable path, with low-rank updates merged into their matrices."""
        self._check_not_quantized()
        return pretrained.collect_weights(self)

    def _check_not_quantized(self) -> None:
        if self.get_config()["quantization"]:
            raise UserError(
                f"{self.name} has 8-bit weights, which only .keras files and saved_model exports can store; save or "
                "export the model before you call quantize"
            )

    def _task_spec(self) -> dict[str, Any]:
        return self.head.task_spec(self.name if self.kinds else None, self.max_seq_length)

    def save(self, filepath: Any, overwrite: bool = True, zipped: bool | None = None, **settings: Any) -> None:
        """Writes the model like keras.Model.save, but atomically: an interrupted write leaves an existing file intact.

        Args:
            filepath: Path that ends in .keras, or in .h5 for Keras' legacy format.
            overwrite: Whether to replace an existing file. Otherwise an existing file is an error.
            zipped: Pass False to write a new folder instead of a .keras file.
            settings: Other arguments of keras.Model.save.

        Raises:
            UserError: If the file cannot be written, or exists and must not be replaced.
        """
        with saving.write_atomically(filepath, self, overwrite, is_folder=zipped is False) as temporary_path:
            super().save(temporary_path, zipped=zipped, **settings)

    def save_weights(self, filepath: Any, overwrite: bool = True, max_shard_size: float | None = None) -> None:
        """Writes the weights like keras.Model.save_weights, but atomically (see `save`)."""
        with saving.write_atomically(filepath, self, overwrite) as temporary_path:
            super().save_weights(temporary_path, max_shard_size=max_shard_size)

    def save_checkpoint(self, folder: str) -> None:
        """Writes a folder that the commands, `official_bert.load` and `from_checkpoint` can read.

        It contains a fine-tuned model or, for MaskedLM, a checkpoint in the form that pre-training writes. A folder
        that this method wrote earlier is replaced.

        Raises:
            UserError: If a weight has 8 bits or is not finite, or the folder contains other files.
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
            eval_file: File of labelled examples that litert and 8-bit exports are scored on.
            quantization: "float32", or "dynamic_int8" for 8-bit matrices in onnx and litert.
            max_loss: Largest accepted drop of the score, as a fraction of the best possible score.
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
        """Returns the model to train: this one, or another one with the same weights."""
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
        """Configures training. The defaults match the original's fine-tuning, except for the bias correction.

        Args:
            optimizer: Keras optimizer. Defaults to BERT's optimizer (AdamW), whose learning rate warms up and then
                decays linearly to 0 at the end of fit. "auto" means the default, also for `loss` and `metrics`.
            loss: Keras loss that accepts logits. Defaults to the loss of the task.
            metrics: Keras metrics that accept logits. Defaults to the metrics of the task. [] disables them.
            learning_rate: Peak learning rate of BERT's optimizer.
            warmup_proportion: Fraction of the steps in which the learning rate warms up.
            layer_decay: Factor from the learning rate of each layer to the learning rate of the layer below it.
            adam_bias_correction: Whether BERT's optimizer corrects the bias of its moments. The original does not
                correct it, and then fails more often on small data sets.
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
        with strategy.scope():  # Metrics then sum over all workers.
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
        """Restores the arguments of compile from a saved model. BERT's optimizer starts with a new schedule."""
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
        if not self.compiled or self.loss is None:  # Keras sets `compiled` for every file with a compile configuration.
            self.compile(**self._saved_arguments)

    def _start_optimizer(self, num_steps: int, is_continued: bool) -> None:
        """Creates BERT's optimizer for this number of steps, unless an earlier training continues."""
        if self._bert_optimizer is None or (is_continued and int(self.optimizer.iterations.numpy())):
            return
        with self.distribute_strategy.scope():
            # Past Keras' tracking of attributes, as in keras.Model.compile.
            self.__dict__["optimizer"], _ = create_bert_optimizer(
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
        metric_for_best_model: str | None = None,
    ) -> keras.callbacks.History:
        """Trains like keras.Model.fit, on texts or on token ids.

        Batches are padded to their longest text. If you do not call `compile`, BERT's optimizer is used.

        Args:
            x: Texts in the form that the class describes, a tf.data.Dataset of texts or of (texts, labels), batched or
                not, or token ids, as for any functional model.
            y: Labels, as class numbers or names.
            batch_size: Number of texts per step. Defaults to 32.
            epochs: Number of passes over the texts.
            verbose: See keras.Model.fit.
            callbacks: See keras.Model.fit.
            validation_split: Fraction of the texts, taken from the end, to hold out for validation. Cannot be combined
                with validation_data.
            validation_data: Tuple of texts and labels (and sample weights), or a tf.data.Dataset.
            shuffle: Whether to shuffle the texts in each epoch. The order depends on the seed and on the epoch.
            class_weight: Weight of each class, by number or by name, or "balanced" for weights that are inversely
                proportional to the frequencies of the classes.
            sample_weight: Weight of each text.
            initial_epoch: Epoch to start with.
            steps_per_epoch: See keras.Model.fit.
            validation_steps: See keras.Model.fit.
            validation_batch_size: Number of texts per validation batch. Defaults to batch_size.
            validation_freq: See keras.Model.fit.
            group_by_length: Whether to put texts of similar length into the same batch. This reduces padding, but
                batches are less random.
            metric_for_best_model: Name of a score of the validation texts, such as "f1_rare_class", or "loss". The
                history and later callbacks get it as "val_f1_rare_class", and the model ends with the weights of its
                best epoch. Defaults to None, which keeps the weights of the last epoch.

        Raises:
            UserError: If texts, labels or weights have the wrong form or length, x is empty, a number is out of range,
                or the model has no score of that name.
        """
        epochs, initial_epoch = check_count(epochs, "epochs"), check_count(initial_epoch, "initial_epoch", 0, 0)
        steps_per_epoch = check_count(steps_per_epoch, "steps_per_epoch", None)
        validation_steps = check_count(validation_steps, "validation_steps", None)
        if not isinstance(validation_freq, list | tuple):
            validation_freq = check_count(validation_freq, "validation_freq")
        validation_split = check_split(validation_split, validation_data)
        batch_size = check_count(batch_size, "batch_size", 32)
        held_out_batch_size = check_count(validation_batch_size, "validation_batch_size", batch_size)
        self._predictor = None  # Layers may have changed since it was traced.
        self._compile_if_needed()
        inputs, counter = self._create_inputs(), EpochCounter()
        truncation, validation_truncation = TrainingTruncation(steps_per_epoch), EvaluationTruncation()
        arguments, held_out = inputs.prepare_fit(
            x, y, sample_weight, class_weight, batch_size=batch_size, validation_split=validation_split,
            shuffle=shuffle, group_by_length=group_by_length, counter=counter, truncation=truncation,
        )  # fmt: skip
        num_steps = steps_per_epoch or count_steps(arguments["x"], batch_size, validation_split)
        self._start_optimizer(epochs * num_steps, initial_epoch > 0)
        if arguments["x"] is not x:
            arguments["x"] = steps.distribute_batches(self.distribute_strategy, arguments["x"])
        if held_out is not None:
            validation_data = held_out
        best_model = select_best_model(
            metric_for_best_model, self._predictions, inputs, validation_data, held_out_batch_size, epochs
        )
        with data_errors.raise_one_line_errors():
            history = super().fit(
                **arguments,
                epochs=epochs,
                verbose=verbose,
                callbacks=[counter, truncation, validation_truncation, *best_model, *_to_list(callbacks)],
                validation_data=inputs.prepare_evaluation(validation_data, held_out_batch_size, validation_truncation),
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
        """Returns the loss and metrics like keras.Model.evaluate, for texts or for token ids.

        For texts, the result also contains the scores of the evaluation command that Keras has no metric for: exact
        match and F1 for question answering, and precision, recall and F1 for entities, in total and per type. They
        need a second pass over the texts, and are omitted if you pass `steps`.

        Args:
            x: See `fit`.
            y: Labels, as class numbers or names.
            batch_size: Number of texts per batch. Defaults to 32.
            verbose: See keras.Model.evaluate.
            sample_weight: Weight of each text. Scores other than the metrics ignore it.
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
        self._compile_if_needed()
        inputs, batch_size = self._create_inputs(), check_count(batch_size, "batch_size", 32)
        steps = check_count(steps, "steps", None)
        common = {"verbose": verbose, "steps": steps, "return_dict": return_dict, **settings}
        takes_ids = are_ids(x) or isinstance(x, tf.distribute.DistributedDataset)
        if confusion_matrix and (takes_ids or not self.head.is_single_label):
            raise UserError(
                "confusion_matrix=True needs texts and a TextClassifier with one class per text; remove the argument"
            )
        if takes_ids:  # Keras' fit passes its validation data in this form.
            if are_ids(x):
                y = inputs.convert_labels(x, y)
            common |= {"batch_size": batch_size, "sample_weight": sample_weight, "callbacks": callbacks}
            with data_errors.raise_one_line_errors():
                return super().evaluate(x, y, **common)
        data = x if isinstance(x, tf.data.Dataset) else inputs.examples(x, y, sample_weight)
        truncation = EvaluationTruncation()
        with data_errors.raise_one_line_errors():
            figures = super().evaluate(
                inputs.prepare_evaluation(data, batch_size, truncation),
                callbacks=[truncation, *_to_list(callbacks)],
                **common,
            )
        truncation.print_note(self.head, self.max_seq_length)
        if isinstance(figures, list | dict) and not figures:
            raise UserError("x contains no examples")
        added = {}
        if confusion_matrix or (self.head.has_own_scores and steps is None):
            examples = data.items if isinstance(data, Examples) else inputs.examples_in(data, batch_size)
            added = self._scores(examples, batch_size, confusion_matrix)
        if return_dict or not added:
            return {**figures, **added} if added else figures
        return [*(figures if isinstance(figures, list) else [figures]), *added.values()]

    def _scores(self, examples: Sequence[Any], batch_size: int, confusion_matrix: bool) -> dict[str, Any]:
        """Returns the scores that evaluate adds to the values of Keras."""
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
        """Returns predictions for texts, in the form that the class describes, or the outputs of the network for ids.

        Prints a warning if all of ten or more predictions are (nearly) equal.

        Args:
            x: Texts, a tf.data.Dataset of texts, or token ids.
            batch_size: Number of texts per batch. Defaults to 32.
            verbose: See keras.Model.predict. For ids only.
            steps: See keras.Model.predict. For ids only.
            callbacks: See keras.Model.predict. For ids only.

        Raises:
            UserError: If texts have the wrong form, x is empty, or `steps` or `callbacks` is passed with texts.
        """
        batch_size = check_count(batch_size, "batch_size", 32)
        if are_ids(x):
            with data_errors.raise_one_line_errors():
                return super().predict(x, batch_size=batch_size, verbose=verbose, steps=steps, callbacks=callbacks)
        if steps is not None or callbacks is not None:
            raise UserError(
                "predict accepts steps and callbacks for token ids only, but x contains texts; remove these arguments"
            )
        return self._answer(self._create_inputs().texts_in(x), batch_size)

    def _answering_model(self) -> keras.Model:
        """Returns the model that computes the outputs for the head to decode."""
        model: keras.Model = create_model(self.head).answering_model(self)
        return model

    def _answer(self, x: Any, batch_size: int) -> Any:
        """Returns the predictions for texts in the public form."""
        examples = self.head.examples(x, None)
        predictions = self._predictions(examples, batch_size)
        if self.head.discrete_outputs or self.head.is_value:  # Vectors are not checked.
            warning = describe_constant_answers(self.head.named_answers(predictions, examples))
            if warning:
                print(f"warning: {warning}")
        return self.head.answers(predictions)

    def _predictions(self, examples: Sequence[Any], batch_size: int | None, prints_truncation: bool = True) -> Any:
        """Returns the decoded predictions for examples."""
        if not examples:
            raise UserError("x contains no examples")
        features = self.head.featurize(examples, self._tokenizer, self.max_seq_length)
        note = self.head.describe_truncation(features.num_truncated, len(examples), self.max_seq_length)
        if note and prints_truncation:
            print(f"note: {note}")
        if self._predictor is None:
            self._predictor = KerasRunner(self._answering_model(), self.distribute_strategy, self.max_seq_length)
        outputs = self._predictor.compute_outputs(features, check_count(batch_size, "batch_size", 32))
        return self.head.decode(outputs, features, examples)


make_read_only(TextModel)


def _to_list(callbacks: Any) -> list[Any]:
    return [callbacks] if isinstance(callbacks, keras.callbacks.Callback) else list(callbacks or [])
