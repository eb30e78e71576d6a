"""What all Keras models that take text share: fit, evaluate and predict on strings, saving and export.

B batch, S sequence
"""

import dataclasses
import inspect
import math
import os
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.checkpoint import POOLER, Array, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats import own
from official_bert.checkpoints.loading import assign_weights
from official_bert.checkpoints.vocabulary import FoundTokenizer, resolve_tokenizer
from official_bert.errors import UserError
from official_bert.export import formats
from official_bert.export.options import FLOAT32, SAVED_MODEL, ExportOptions
from official_bert.export.source import Source
from official_bert.inference.keras_model import KerasRunner
from official_bert.keras_models import data_sets, errors_of_data, saving
from official_bert.keras_models.arguments import ReadOnly, make_read_only
from official_bert.keras_models.cut_texts import CutInEvaluation, CutInTraining, CutTexts
from official_bert.keras_models.fit_data import EpochCounter, Examples, FitData
from official_bert.keras_models.logits import losses_of_logits, metrics_of_logits
from official_bert.keras_models.preprocessor import Preprocessor
from official_bert.keras_models.steps import SteppedModel, shared_out
from official_bert.kinds import input_adapters, scores
from official_bert.kinds.constant_answers import describe_constant_answers
from official_bert.kinds.features import check_length
from official_bert.kinds.losses import TaggingLoss
from official_bert.kinds.model import model_for
from official_bert.kinds.spec import KindSpec
from official_bert.learning.initial_model import NO_POOLER, checkpoint_weights, head_weights, read_initial_model
from official_bert.learning.loss_share import check_reduction
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization.all_reduce_clip import AllReduceClipMixin
from official_bert.optimization.finetuning_optimizer import bert_optimizer
from official_bert.optimization.freezing import freeze
from official_bert.optimization.loss_scale import DynamicLossScale
from official_bert.optimization.optimizers import BertAdamW
from official_bert.tokenization.casing import Casing, make_casing, resolve_casing
from official_bert.tokenization.exact import parse_vocab
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils.counting import pluralize

_OF_FIT = "bert_optimizer_of_fit"  # what a saved model's configuration calls BERT's optimizer
_ITS_SETTINGS = "bert_optimizer"  # where it has what compile was told of it


@dataclasses.dataclass(frozen=True)
class _BertOptimizer:
    """What compile was asked for of BERT's optimizer, which fit makes when it knows the number of steps.

    `arguments` are keras.Model.compile's. They are kept here since a model takes the metrics in a dict of its own for
    its layers'.
    """

    learning_rate: float
    warmup_proportion: float
    layer_decay: float
    adam_bias_correction: bool
    arguments: Mapping[str, Any]


class TextModel(SteppedModel):
    """A functional Keras model from ids to logits, whose fit, evaluate and predict also take text.

    Its head says what examples look like and what predict answers. All that a functional model can do, this one can:
    its inputs are input_ids, input_mask and segment_ids, int32 [B, S], and fit, evaluate and predict take those too.

    The step of fit is that of the command (see learning.training_step). Built in a strategy's scope, the model takes
    the steps that one device would take on the same batches.

    Args:
        head: what stands on the encoder.
        config: the encoder's sizes, a BertConfig or a dict of its fields.
        vocab: the text of its vocab.txt.
        do_lower_case: Whether the vocabulary is uncased. None detects it from the capital letters. A Casing is taken
            without comparing it with the vocabulary.
        strip_accents: whether texts lose their accents; None for lower-cased ones.
        max_seq_length: the longest sequence in tokens; longer texts are cut, or read in windows.
        seed: of the new weights, of dropout and of the order of the examples.
        dtype: a Keras dtype policy for the layers; None for Keras' global one.
        name: of the model.
        trainable: whether the weights are.
        frozen: names of layers that are not trained.
        quantization: "int8" for a model whose weights are of 8 bits; see Keras' quantize.
        gradient_accumulation_steps: into how many micro-batches fit cuts a device's rows of a batch, which it takes one
            after the other, for less memory.
        rematerialize: whether fit computes encoder blocks again in the backward pass, for less memory.

    Raises:
        UserError: an argument has a value that cannot be.
    """

    default_name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]] = ()  # of fine-tuned models that from_checkpoint takes with their heads

    vocab = ReadOnly("vocab", is_stored=True)
    casing = ReadOnly("casing", is_stored=True)
    bert_config = ReadOnly("bert_config", is_stored=True)
    max_seq_length = ReadOnly("max_seq_length", is_stored=True)
    seed = ReadOnly("seed", is_stored=True)
    rematerialize = ReadOnly("rematerialize", is_stored=True)

    _predictor: KerasRunner | None = None
    _arguments_of_file: Mapping[str, Any] = types.MappingProxyType({})  # of compile, where BERT's optimizer was saved
    _bert_optimizer: _BertOptimizer | None = None  # where a user's own optimizer is not compiled

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
            given = input_adapters.shown(gradient_accumulation_steps)
            raise UserError(f"gradient_accumulation_steps is {given}; expected a whole number, 1 or more")
        config = config if isinstance(config, BertConfig) else BertConfig(**config)
        if max_seq_length is None:
            max_seq_length = min(head.default_max_seq_length, config.max_position_embeddings)
        if not isinstance(max_seq_length, int | np.integer):
            raise UserError(
                f"max_seq_length is {input_adapters.shown(max_seq_length)}; expected a whole number of tokens"
            )
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
        self.micro_batches, self.rematerialize = gradient_accumulation_steps, rematerialize
        self._tokenizer = FastTokenizer.from_vocab(tokens, **self.casing._asdict())
        self._preprocessor: Preprocessor | None = None
        if quantization:
            self.quantize(quantization)

    def _build_core(self, dtype: str, seed: int) -> keras.Model:
        """Returns the encoder with its head."""
        return model_for(self.head).build(build_encoder(self.bert_config, seed=seed, dtype=dtype), seed)

    def _own_config(self) -> dict[str, Any]:
        """Returns the subclass' own arguments."""
        return {}

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The classes' names, in the order of the logits."""
        return self.head.labels

    # Beginning and end.

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
            initial = _saved_model(source)._as_loaded_model(source, overrides)
        else:
            initial = read_initial_model(source, vocab_file, do_lower_case, strip_accents)
        spec = initial.task if initial.task and initial.task["kind"] in cls.kinds else None
        given = settings
        if spec is not None:
            settings = {"max_seq_length": spec["max_seq_length"], **cls._settings_of(spec), **settings}
        elif initial.task is None and (initial.labels or initial.kind):
            settings = {**cls._settings_of_classifier(initial.labels, initial.kind), **settings}
        if "labels" in inspect.signature(cls.__init__).parameters:
            settings.setdefault("labels", None)  # the class refuses it, and says what it expects
        make: Any = cls  # whose own __init__ makes the head
        model: Self = make(initial.config, initial.require_vocab(), do_lower_case=initial.casing, **settings)
        weights, notes = head_weights(initial, model.head), initial.notes
        if weights is not None:
            assign_weights(model, weights)
            model._take_decisions(initial.task or {}, given)
            has_head = True
        else:
            paths = {variable.path for variable in model.variables}
            values, note_of_head = checkpoint_weights(initial, model.head, paths)
            has_head = paths <= values.keys()
            model._assign_weights(values)
            notes += (note_of_head,) if note_of_head else ()
            if values and f"{POOLER}/kernel" in paths - values.keys() and NO_POOLER not in notes:
                notes += (NO_POOLER,)
        for note in notes:
            print(f"note: {note}")
        encoder = f"{pluralize(initial.config.num_hidden_layers, 'layer')} of {initial.config.hidden_size}"
        print(f"{model.name}: {encoder}, {model.count_params():,} parameters; {model._head_note(has_head)}")
        return model

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The class's own arguments that a fine-tuned model's task.json gives."""
        return {}

    @classmethod
    def _settings_of_classifier(cls, labels: tuple[str, ...] | None, kind: str | None) -> dict[str, Any]:
        """The class's own arguments that follow from a checkpoint's classifier, as far as it says what it is."""
        return {}

    def _take_decisions(self, spec: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Decides as a fine-tuned model whose head was taken does, but for what the user gave."""

    def _head_note(self, has_head: bool) -> str:
        return "the head is the checkpoint's" if has_head else "the head is new: train it before you predict"

    @classmethod
    def load(cls, path: str) -> Self:
        """Returns a model that `save` has written.

        Raises:
            UserError: there is no such file, it is damaged, or it holds another kind of model.
        """
        model = saving.load(path)
        if not isinstance(model, cls):
            raise UserError(f"{path} holds a {type(model).__name__}; expected a {cls.__name__}")
        return model

    def _assign_weights(self, weights: Mapping[str, Array]) -> None:
        """Assigns the weights that the model has variables for."""
        assign_weights(self, weights, allow_missing=True)

    def _weights(self) -> dict[str, Array]:
        """The weights by path, float32; low-rank updates are merged into their matrices."""
        self._check_not_quantized()
        weights = {variable.path: np.asarray(variable, np.float32) for variable in self.variables}
        for layer in self.layers:
            if getattr(layer, "lora_enabled", False):
                weights = {path: value for path, value in weights.items() if not path.startswith(f"{layer.name}/lora_")}
                weights[f"{layer.name}/kernel"] = np.asarray(layer.kernel, np.float32)
        return weights

    def _check_not_quantized(self) -> None:
        if self.get_config()["quantization"]:
            raise UserError(
                f"{self.name} has weights of 8 bits, which only .keras files and saved_model exports hold; save or "
                "export it before quantize"
            )

    def _as_loaded_model(self, path: str, overrides: LoadOverrides) -> LoadedModel:
        """Returns this model, which was loaded from `path`, as `from_checkpoint` takes it."""
        found = FoundTokenizer(path, {path: self.vocab}, self.casing, path)
        tokenizer = resolve_tokenizer(found, overrides, self.bert_config)
        tokenizer = tokenizer._replace(notes=(*tokenizer.notes, f"the encoder is that of a {type(self).__name__}"))
        task = self._task_spec() if self.kinds else None
        return LoadedModel(self.bert_config, self._weights(), task=task, **tokenizer._asdict())

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

        It is that of a fine-tuned model, or, of MaskedLM, a checkpoint as of pre-training. It may be
        the folder that this wrote before.

        Raises:
            UserError: a weight is of 8 bits or not finite, or the folder holds something else.
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
            "gradient_accumulation_steps": self.micro_batches,
            "rematerialize": self.rematerialize,
            **self._own_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        casing = make_casing(config["do_lower_case"], config.get("strip_accents"))
        return cls(**{**config, "do_lower_case": casing, "strip_accents": None})

    @property
    def preprocessor(self) -> Preprocessor:
        """The layer from strings to the network's inputs, for `dataset.map` and models of one's own."""
        if self._preprocessor is None:
            self._preprocessor = Preprocessor(self.vocab, self.casing, self.max_seq_length)
        return self._preprocessor

    def freeze(self, *patterns: str) -> list[str]:
        """Leaves layers as they are whose names match a regular expression; returns their names.

        Raises:
            UserError: a pattern matches no layer.
        """
        return freeze(self, patterns)

    def quantize(self, *arguments: Any, **settings: Any) -> None:
        """Makes the weights of dense layers small, as keras.Model.quantize does; what has no matrix stays as it is."""
        self._predictor = None
        with warnings.catch_warnings():
            # Keras says of each layer without a matrix that it has none.
            warnings.filterwarnings("ignore", message=".*does not have a `quantize` method")
            super().quantize(*arguments, **settings)

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
        adam_bias_correction: bool = True,
        **settings: Any,
    ) -> None:
        """Configures training. The defaults are those of the original's fine-tuning, but for the bias correction.

        Args:
            optimizer: any Keras optimizer; None for BERT's, whose rate rises, then falls to 0 by the end of fit.
            loss: any Keras loss of logits; None for the task's. A name, such as "sparse_categorical_crossentropy", is
                taken for logits.
            metrics: any Keras metrics of logits, likewise; None for the task's, [] for none.
            learning_rate: the highest rate of BERT's optimizer.
            warmup_proportion: the share of the steps in which its rate rises.
            layer_decay: its rate of each layer by that of the layer above.
            adam_bias_correction: Whether BERT's optimizer corrects the bias of its moments. The original does not,
                which fails more often on little data.
            settings: loss_weights, weighted_metrics, steps_per_execution, ... as of keras.Model.compile; XLA compiles
                the step with jit_compile=True alone.

        Raises:
            UserError: the settings do not go together, or a loss or metric of Keras would take logits for
                probabilities.
        """
        is_rate = _is_number(learning_rate) and not isinstance(learning_rate, bool)
        if not (is_rate and 0 < learning_rate < 1e38):  # what float32 holds
            raise UserError(f"learning_rate is {input_adapters.shown(learning_rate)}; expected a positive number")
        if not (_is_number(warmup_proportion) and 0 <= warmup_proportion <= 1):
            raise UserError(
                f"warmup_proportion is {input_adapters.shown(warmup_proportion)}; expected a share from 0 to 1"
            )
        if not (_is_number(layer_decay) and 0 < layer_decay <= 1):
            raise UserError(f"layer_decay is {input_adapters.shown(layer_decay)}; expected a factor over 0, up to 1")
        with self._scope():  # so that the metrics' sums are those of all workers
            metrics = model_for(self.head).metrics() if metrics is None else metrics_of_logits(metrics, self.head)
            if settings.get("weighted_metrics"):
                settings["weighted_metrics"] = metrics_of_logits(settings["weighted_metrics"], self.head)
        arguments = {
            "loss": model_for(self.head).loss() if loss is None else losses_of_logits(loss, self.head),
            "loss_weights": self.head.loss_weights() if loss is None else None,
            "metrics": metrics,
            **settings,
        }
        if arguments.get("jit_compile", "auto") == "auto":
            arguments["jit_compile"] = False
        self.weighs_metrics = bool(arguments.get("weighted_metrics"))
        if self._pads_rows:
            check_reduction(arguments["loss"])
            if isinstance(arguments["loss"], TaggingLoss) and (arguments["loss_weights"] or self.losses):
                raise UserError(
                    "over several replicas, and with micro-batches, the loss of tags is taken without loss_weights and "
                    "regularizers; leave them out"
                )
        if self._pads_rows and arguments["metrics"]:
            # Keras hands the weights of rows, by which padding is left out, to weighted metrics alone.
            if arguments.get("weighted_metrics"):
                raise UserError(
                    "over several replicas, and with micro-batches, give either metrics or weighted_metrics; leave one "
                    "of them out"
                )
            arguments = {**arguments, "weighted_metrics": metrics, "metrics": None}
        self._bert_optimizer = None
        if optimizer is None:
            rate = float(learning_rate)  # Keras takes no whole number
            self._bert_optimizer = _BertOptimizer(
                rate, warmup_proportion, layer_decay, bool(adam_bias_correction), arguments
            )
            optimizer = BertAdamW(rate)  # for evaluate, as Keras evaluates compiled models alone
        super().compile(self._scaled(optimizer), **arguments)

    def _scaled(self, optimizer: Any) -> Any:
        """The optimizer, which scales the loss where the layers compute in float16, as gradients would vanish there.

        Keras does so by itself only where float16 is the global policy.
        """
        optimizer = keras.optimizers.get(optimizer)
        rate = optimizer.get_config().get("learning_rate")  # a dict for a schedule
        if isinstance(rate, float) and not 0 <= rate < math.inf:
            raise UserError(f"the optimizer's learning_rate is {rate}; expected a finite number, 0 or more")
        schedule = getattr(optimizer, "_learning_rate", None)  # Keras gives out its rate at this step alone
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            for step in (0, 1):  # the first steps tell a number that is none, as in the settings
                rate = float(schedule(tf.constant(step, tf.int64)))
                if not 0 <= rate < math.inf:
                    raise UserError(
                        f"the optimizer's schedule has the rate {rate} in step {step}; expected a finite number, 0 or "
                        "more"
                    )
        if self._policy_name != "mixed_float16" or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return optimizer
        if isinstance(optimizer, AllReduceClipMixin):
            with self._scope():
                optimizer.loss_scale = optimizer.loss_scale or DynamicLossScale()
            return optimizer
        if self.distribute_strategy.num_replicas_in_sync > 1:
            raise UserError(
                "mixed_float16 needs a scaled loss, which Keras' optimizers do not sum over several replicas; take "
                "BERT's optimizer, or mixed_bfloat16"
            )
        return keras.optimizers.LossScaleOptimizer(optimizer)

    def get_compile_config(self) -> dict[str, Any]:
        config, request = super().get_compile_config(), self._bert_optimizer
        if config and "optimizer" not in config:  # Keras takes it out for good where it writes its older format, .h5
            config["optimizer"] = keras.saving.serialize_keras_object(self.optimizer)
        if config and request:
            config["optimizer"]["config"]["name"] = _OF_FIT
            names = ("learning_rate", "warmup_proportion", "layer_decay", "adam_bias_correction")
            config[_ITS_SETTINGS] = {name: getattr(request, name) for name in names}
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as a saved model was; by BERT's optimizer, whose rate has fallen to 0 and begins anew, when used."""
        if not config:
            return
        arguments = keras.saving.deserialize_keras_object(config)
        arguments["metrics"] = arguments["metrics"] or []  # None are those that became weighted ones
        settings = arguments.pop(_ITS_SETTINGS, {})
        if config["optimizer"]["config"]["name"] == _OF_FIT:
            self._arguments_of_file = {**arguments, "optimizer": None, **settings}
            return
        try:
            self.compile(**arguments)
        except UserError as error:
            print(f"note: the model is loaded as if it were not compiled: {error}")
            return
        self.optimizer.build(self._learner().trainable_variables)

    def _compile_if_needed(self) -> None:
        if not self.compiled or self.loss is None:  # Keras calls all models compiled whose file has a configuration
            self.compile(**self._arguments_of_file)

    def _compile_for(self, num_steps: int, is_continued: bool) -> None:
        """Compiles BERT's optimizer for so many steps, unless the user's own is compiled, or training goes on."""
        self._compile_if_needed()
        request = self._bert_optimizer
        if request is None or (is_continued and int(self.optimizer.iterations.numpy())):
            return
        with self._scope():
            optimizer, _ = bert_optimizer(
                self._learner(), self.bert_config.num_hidden_layers, num_steps=num_steps,
                learning_rate=request.learning_rate, warmup_proportion=request.warmup_proportion,
                layer_decay=request.layer_decay, adam_bias_correction=request.adam_bias_correction,
                scales_loss=self._policy_name == "mixed_float16",
            )  # fmt: skip
            self.reset_metrics()  # Keras does not, of metrics that are compiled again
            super().compile(optimizer, **request.arguments)

    def _fit_data(self) -> FitData:
        return FitData(
            head=self.head, tokenizer=self._tokenizer, max_seq_length=self.max_seq_length, seed=self.seed,
            preprocessor=lambda: self.preprocessor, strategy=self.distribute_strategy,
            is_compiled=bool(self.jit_compile),
        )  # fmt: skip

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

        Texts come in another order each epoch, which depends on the seed; with shuffle=False in the order given. A
        batch is padded to its longest text. Without compile, BERT's optimizer is used (see `compile`).

        Args:
            x: texts in the form that the class says, or a tf.data.Dataset of such texts or of (texts, labels), batched
                or not; or ids, as for any functional model.
            y: labels, by number or by name.
            batch_size: texts in a step; 32 by default.
            epochs: how many times all texts are gone through.
            verbose: as of keras.Model.fit.
            callbacks: as of keras.Model.fit.
            validation_split: the share of the texts, at their end, that is evaluated only; not beside validation_data.
            validation_data: a tuple of texts and labels (and weights), or a data set.
            shuffle: whether texts are put into another order.
            class_weight: how much each class weighs, by number or by name; or "balanced": by how rare it is, as in the
                command.
            sample_weight: how much each text weighs.
            initial_epoch: the epoch to go on with.
            steps_per_epoch: as of keras.Model.fit.
            validation_steps: as of keras.Model.fit.
            validation_batch_size: texts at a time in validation.
            validation_freq: as of keras.Model.fit.
            group_by_length: Whether shuffled texts of a batch have similar lengths: less padding, but batches that are
                less random.

        Raises:
            UserError: texts or labels have another form, or another length, there are none, or a number cannot be.
        """
        epochs, initial_epoch = _checked_count(epochs, "epochs"), _checked_count(initial_epoch, "initial_epoch", 0, 0)
        steps_per_epoch = _checked_count(steps_per_epoch, "steps_per_epoch", None)
        validation_steps = _checked_count(validation_steps, "validation_steps", None)
        if not isinstance(validation_freq, list | tuple):  # of the epochs after which it is done
            validation_freq = _checked_count(validation_freq, "validation_freq")
        settings: dict[str, Any] = {
            "epochs": epochs, "verbose": verbose, "initial_epoch": initial_epoch, "steps_per_epoch": steps_per_epoch,
            "validation_steps": validation_steps, "validation_freq": validation_freq,
        }  # fmt: skip
        validation_split = data_sets.checked_split(validation_split, validation_data)
        batch_size = _checked_count(batch_size, "batch_size", 32)
        of_validation = _checked_count(validation_batch_size, "validation_batch_size", batch_size)
        self._predictor = None  # layers may have been changed since it was traced
        self._compile_if_needed()
        data, counter = self._fit_data(), EpochCounter()
        cut, cut_in_validation = CutInTraining(steps_per_epoch), CutInEvaluation()
        if input_adapters.are_ids(x):
            for weights in sample_weight.values() if isinstance(sample_weight, Mapping) else [sample_weight]:
                if weights is not None:
                    input_adapters.check_weights(np.ravel(weights), "sample_weight")
            if class_weight is not None:
                class_weight = dict(enumerate(data.weights_by_class(class_weight, y).tolist()))
            y = data.labels_of_ids(x, y)
            settings |= {"y": y, "sample_weight": sample_weight, "class_weight": class_weight, "shuffle": False}
            if not isinstance(x, tf.data.Dataset):
                settings |= {"batch_size": batch_size, "validation_split": validation_split, "shuffle": shuffle}
            batches = x
        elif isinstance(x, tf.data.Dataset):
            if y is not None or sample_weight is not None or validation_split:
                raise UserError("a data set holds its labels and weights itself; leave out y, sample_weight and split")
            batches = data.of_data_set(x, batch_size, counter, class_weight, cut)
        else:
            examples = data.examples(x, y, sample_weight, class_weight)
            if validation_split:
                kept = data_sets.split_off(len(examples.items), validation_split)
                examples, validation_data = examples[:kept], examples[kept:]
            batches = data.training(examples, batch_size, shuffle, counter, group_by_length)
        steps_of_epoch = steps_per_epoch or data_sets.steps_in(batches, batch_size, validation_split)
        self._compile_for(epochs * steps_of_epoch, initial_epoch > 0)
        with errors_of_data.in_one_line():
            history = super().fit(
                shared_out(self.distribute_strategy, batches) if batches is not x else x,
                callbacks=[counter, cut, cut_in_validation, *_as_list(callbacks)],
                validation_data=self._evaluation_data(validation_data, of_validation, cut_in_validation),
                validation_batch_size=validation_batch_size,
                **{"shuffle": False, **settings},
            )
        epochs_done = f"in {len(history.epoch)} epochs" if len(history.epoch) > 1 else ""
        self._say_what_was_cut(cut, epochs_done)
        self._say_what_was_cut(cut_in_validation, "validation", epochs_done)
        return history

    def _say_what_was_cut(self, cut: CutTexts, *parts: str) -> None:
        """Prints how many texts of a data set were cut; those of lists are known, and named, before they are read."""
        cut.say(lambda number, texts: self.head.cut_note(number, texts, self.max_seq_length), *parts)

    def _evaluation_data(self, data: Any, batch_size: int, cut: CutTexts | None = None) -> Any:
        """Batches of data to evaluate on in any form; those of texts in the order of length; `cut` counts data sets."""
        first = data[0] if isinstance(data, tuple) and data else data
        if data is None or input_adapters.are_ids(first):
            return data
        fit_data = self._fit_data()
        if isinstance(data, tf.data.Dataset):
            batches = fit_data.of_data_set(data, batch_size, EpochCounter(), cut_texts=cut)
            return shared_out(self.distribute_strategy, batches)
        if not isinstance(data, Examples):
            if not self.head.needs_labels and not (isinstance(data, tuple) and any(part is None for part in data)):
                data = (data, None)  # texts alone
            if len(data) not in (2, 3):
                raise UserError(f"validation data are {len(data)} things; expected texts and labels, and maybe weights")
            data = fit_data.examples(*data)
        return shared_out(self.distribute_strategy, fit_data.evaluation(data, batch_size))

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
        """Returns the loss and the metrics as keras.Model.evaluate does, of texts as well as of ids; see `fit`.

        Of texts, the scores of the command follow where Keras has no metric for them: exact match and F1 of answers to
        questions; precision, recall and F1 of entities, of all and of each type. They take a second pass, and are left
        out where `steps` takes a part of the texts.

        Args:
            x: as of `fit`, as are `y` and `sample_weight`, which scores do not heed.
            y: labels.
            batch_size: texts at a time; 32 by default.
            verbose: as of keras.Model.evaluate, as are `steps` and `callbacks`.
            sample_weight: how much each text weighs.
            steps: batches to take; None for all.
            callbacks: those of Keras.
            return_dict: whether figures are returned by name; else a list has them, in the order of the dict of scores.
            confusion_matrix: whether to add `confusion_matrix`: for each class how many of its texts got which class,
                all by name, as the command's report has it.
            settings: of keras.Model.evaluate.

        Raises:
            UserError: texts or labels have another form, there are none, or there are no classes to confuse.
        """
        self._compile_if_needed()
        batch_size = _checked_count(batch_size, "batch_size", 32)
        steps = _checked_count(steps, "steps", None)
        common = {"verbose": verbose, "steps": steps, "callbacks": callbacks, "return_dict": return_dict, **settings}
        are_ids = input_adapters.are_ids(x) or isinstance(x, tf.distribute.DistributedDataset)
        if confusion_matrix and (are_ids or not self.head.has_one_class):
            raise UserError(
                "confusion_matrix is of texts that have one class each, which TextClassifier takes; leave it out"
            )
        if are_ids:  # also what Keras' fit has made of its validation data
            if input_adapters.are_ids(x):
                y = self._fit_data().labels_of_ids(x, y)
            with errors_of_data.in_one_line():
                return super().evaluate(x, y, batch_size=batch_size, sample_weight=sample_weight, **common)
        data: Any = x
        if not isinstance(x, tf.data.Dataset):
            data = self._fit_data().examples(x, y, sample_weight)
        cut = CutInEvaluation()
        common["callbacks"] = [cut, *_as_list(callbacks)]
        with errors_of_data.in_one_line():
            figures = super().evaluate(self._evaluation_data(data, batch_size, cut), **common)
        self._say_what_was_cut(cut)
        if isinstance(figures, list | dict) and not figures:
            raise UserError("there are no examples")
        added = {}
        if confusion_matrix or (self.head.has_own_scores and steps is None):
            examples = data.items if isinstance(data, Examples) else self._fit_data().examples_in(data, batch_size)
            added = self._scores(examples, batch_size, confusion_matrix)
        if return_dict or not added:
            return {**figures, **added} if added else figures
        return [*(figures if isinstance(figures, list) else [figures]), *added.values()]

    def _scores(self, examples: Sequence[Any], batch_size: int, confusion_matrix: bool) -> dict[str, Any]:
        """What evaluate adds to Keras' figures."""
        predictions, head = self._predictions(examples, batch_size, says_what_was_cut=False), self.head
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
        """Returns the answers for texts, in the form that the class says; for ids, the network's outputs.

        Args:
            x: texts, a tf.data.Dataset of texts, or ids.
            batch_size: texts at a time; 32 by default.
            verbose: as of keras.Model.predict, for ids.
            steps: likewise.
            callbacks: likewise.

        Raises:
            UserError: texts have another form, or there are none; or what is for ids is given with them.
        """
        batch_size = _checked_count(batch_size, "batch_size", 32)
        if input_adapters.are_ids(x):
            with errors_of_data.in_one_line():
                return super().predict(x, batch_size=batch_size, verbose=verbose, steps=steps, callbacks=callbacks)
        if steps is not None or callbacks is not None:
            raise UserError(
                "steps and callbacks are given with texts; predict takes them with ids alone: leave them out"
            )
        return self._answer(self._fit_data().texts_in(x) if isinstance(x, tf.data.Dataset) else x, batch_size)

    def _answering_model(self) -> keras.Model:
        """What gives the outputs that `head.decode` reads."""
        return model_for(self.head).answering_model(self)

    def _answer(self, x: Any, batch_size: int) -> Any:
        """What predict answers for texts."""
        examples = self.head.examples(x, None)
        predictions = self._predictions(examples, batch_size)
        if self.head.decisions or self.head.is_value:  # not vectors
            warning = describe_constant_answers(self.head.named_answers(predictions, examples))
            if warning:
                print(f"warning: {warning}")
        return self.head.answers(predictions)

    def _predictions(self, examples: Sequence[Any], batch_size: int | None, says_what_was_cut: bool = True) -> Any:
        """The predictions of examples, as the head decodes them."""
        if not examples:
            raise UserError("there are no examples")
        features = self.head.featurize(examples, self._tokenizer, self.max_seq_length)
        note = self.head.cut_note(features.cut, len(examples), self.max_seq_length)
        if note and says_what_was_cut:
            print(f"note: {note}")
        if self._predictor is None:
            self._predictor = KerasRunner(self._answering_model(), self.distribute_strategy, self.max_seq_length)
        outputs = self._predictor.compute_outputs(features, _checked_count(batch_size, "batch_size", 32))
        return self.head.decode(outputs, features, examples)


make_read_only(TextModel)


def _saved_model(path: str) -> TextModel:
    """The model of a .keras file that `save` has written."""
    model = saving.load(path)
    if not isinstance(model, TextModel):
        raise UserError(
            f"{path} holds a {type(model).__name__} of Keras'; expected a model that takes text, as TextClassifier"
        )
    return model


def _checked_count(value: Any, name: str, default: int | None = 1, least: int = 1) -> Any:
    """Returns a whole number that a caller gave, or the default for None."""
    if value is None:
        return default
    if not isinstance(value, int | np.integer) or not least <= value < 2**31:
        shown = input_adapters.shown(value)
        raise UserError(f"{name} is {shown}; expected a whole number, {least} or more, below 2**31")
    return int(value)


def _as_list(callbacks: Any) -> list[Any]:
    return [callbacks] if isinstance(callbacks, keras.callbacks.Callback) else list(callbacks or [])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number)
