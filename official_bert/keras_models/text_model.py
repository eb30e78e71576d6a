"""TextModel: the constructor, weights, loading, saving, export and predict of all Keras models that take text.

B batch size, S sequence length
"""

import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np
import tensorflow as tf

from official_bert.checkpoints.checkpoint import Array, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats import finetuned, own
from official_bert.checkpoints.loading import assign_weights
from official_bert.errors import UserError
from official_bert.export import formats
from official_bert.export.options import FLOAT32, SAVED_MODEL, ExportOptions
from official_bert.export.source import ExportSource
from official_bert.finetuning.initial_model import read_initial_model
from official_bert.inference.keras_model import KerasRunner
from official_bert.keras_models import data_errors, pretrained, saving
from official_bert.keras_models.arguments import ReadOnly, check_no_unknown, list_arguments, make_read_only
from official_bert.keras_models.data_sets import read_texts
from official_bert.keras_models.fit_arguments import NO_EXAMPLES, check_count
from official_bert.keras_models.preprocessor import Preprocessor
from official_bert.kinds import class_labels
from official_bert.kinds.constant_answers import describe_constant_answers
from official_bert.kinds.features import Features, Outputs
from official_bert.kinds.input_adapters import are_ids, format_value
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.spec import KindSpec
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization.freezing import ALL, freeze
from official_bert.tokenization.casing import Casing, resolve_casing, restore_casing
from official_bert.tokenization.exact import parse_vocab
from official_bert.tokenization.fast import FastTokenizer

_MIN_PROGRESS_BAR_STEPS = 10  # predict shows a progress bar if there are at least this many batches


def _for_ids_only(name: str) -> Any:
    """Returns the method of keras.Model with this name, with a check that raises a UserError for texts."""

    def is_text(value: Any) -> bool:
        dtype = getattr(value, "dtype", None)
        return isinstance(value, str | bytes) or dtype == tf.string or getattr(dtype, "kind", None) in ("O", "S", "U")

    @functools.wraps(getattr(keras.Model, name))
    def method(self: Any, *arguments: Any, **settings: Any) -> Any:
        if any(map(is_text, keras.tree.flatten((arguments, settings)))):
            called = "calling the model" if name == "__call__" else name
            raise UserError(
                f"{called} needs token ids and numeric labels, but texts were passed; convert them with "
                "model.preprocessor(texts), or call fit, evaluate or predict"
            )
        return getattr(super(TextModel, self), name)(*arguments, **settings)

    return method


class TextModel(keras.Model):
    """A functional Keras model from token ids to logits, with the tokenizer and the task that belong to it.

    The inputs of the network are input_ids, input_mask and segment_ids, int32 [B, S]. FittingModel adds compile, fit
    and evaluate. They and predict accept texts, in the form that the subclass and its spec determine, or a dict of
    these arrays.

    Args:
        spec: The spec of the task, which determines the layers on top of the encoder.
        config: Sizes of the encoder: a BertConfig or a dict of its fields.
        vocab: Contents of the model's vocab.txt.
        do_lower_case: Whether the vocabulary is uncased. None detects it from capital letters in the vocabulary. A
            Casing object is used without a check against the vocabulary.
        strip_accents: Whether to remove accents. Defaults to the value of do_lower_case.
        max_seq_length: Maximum number of tokens in a sequence. Longer texts are truncated or split into windows.
        seed: Random seed for new weights, dropout and shuffling. keras.utils.set_random_seed has no effect on them, so
            pass another seed to each of several runs.
        dtype: Keras dtype policy of the layers. Defaults to Keras' global policy.
        name: Name of the model.
        trainable: Whether the weights are trainable.
        frozen: Names of the layers that are not trained.
        quantization: "int8" if the weights have 8 bits. See keras.Model.quantize.
        gradient_accumulation_steps: Number of micro-batches into which fit splits each batch. More of them need less
            memory.
        rematerialize: Whether fit recomputes encoder blocks in the backward pass to save memory.

    Raises:
        UserError: If an argument is out of range or contradicts another.
    """

    default_name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]] = ()  # kinds of fine-tuned models whose heads from_checkpoint can load

    vocab = ReadOnly("vocab")
    casing = ReadOnly("casing")
    bert_config = ReadOnly("bert_config")

    backbone: keras.Model  # the encoder, from token ids to sequence_output and pooled_output (a name of keras-hub)
    _preprocessor: Preprocessor | None = None
    _predictor: KerasRunner | None = None

    __call__ = _for_ids_only("__call__")
    train_on_batch = _for_ids_only("train_on_batch")
    test_on_batch = _for_ids_only("test_on_batch")
    predict_on_batch = _for_ids_only("predict_on_batch")

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "default_name" in vars(cls):
            make_read_only(cls)

    def __init__(
        self,
        spec: KindSpec,
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
        **unknown: Any,
    ) -> None:
        check_no_unknown(type(self), unknown)
        if not isinstance(seed, int | np.integer) or seed < 0:
            raise UserError(f"seed is {format_value(seed)}; expected an integer, at least 0")
        gradient_accumulation_steps = check_count(gradient_accumulation_steps, "gradient_accumulation_steps")
        config = config if isinstance(config, BertConfig) else BertConfig(**config)
        default_length = min(spec.default_max_seq_length, config.max_position_embeddings)
        max_seq_length = check_count(max_seq_length, "max_seq_length", default_length, least=4 if spec.pair else 3)
        config.check_length(max_seq_length, name="max_seq_length")
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        tokens = parse_vocab(vocab)
        casing = resolve_casing(tokens, do_lower_case, strip_accents)
        # Bypasses ReadOnly, which refuses to set these attributes.
        self.__dict__.update(bert_config=config, vocab=vocab, casing=casing)
        self.__dict__.update(max_seq_length=max_seq_length, seed=seed, rematerialize=rematerialize)
        self.spec = spec
        core = self._build_core(policy.name, seed)
        super().__init__(inputs=core.input, outputs=core.output, name=name or self.default_name)
        self.trainable = trainable
        for layer in frozen:
            self.get_layer(layer).trainable = False
        self._policy_name, self._micro_batches = policy.name, gradient_accumulation_steps
        self._tokenizer = FastTokenizer.from_vocab(tokens, **casing._asdict())
        if quantization:
            self.quantize(quantization)

    def _build_core(self, dtype: str, seed: int) -> keras.Model:
        """Returns the encoder with its head, and stores the encoder as `backbone`.

        Args:
            dtype: Name of the Keras dtype policy.
            seed: Seed of the initial weights.
        """
        encoder = build_encoder(self.bert_config, seed=seed, dtype=dtype)
        # Bypasses Keras' tracking of attributes: the encoder's layers already belong to the model.
        self.__dict__["backbone"] = encoder
        return create_kind_model(self.spec).build(encoder, seed)

    def _get_own_config(self) -> dict[str, Any]:
        """Returns the constructor arguments that the subclass adds, for get_config."""
        task_spec = self.spec.task_spec(None, self.max_seq_length)
        return self._get_settings(task_spec | {"labels": None if self.labels is None else list(self.labels)})

    @classmethod
    def _get_settings(cls, task_spec: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the constructor arguments of this class that a checkpoint contains.

        Args:
            task_spec: Contents of task.json. For other checkpoints, only the labels and the kind of their head, if any.
        """
        return {name: task_spec[name] for name in list_arguments(cls) if name in task_spec}

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
        """Names of the classes, in the order of the logits. None before `fit` if no labels were passed."""
        return None if self._has_unknown_labels else self.spec.labels

    @property
    def _has_unknown_labels(self) -> bool:
        return self.spec.labels == class_labels.UNKNOWN_LABELS

    def _require_labels(self) -> None:
        if self._has_unknown_labels:
            raise UserError(f"{self.name} has no labels yet; call fit first, or create the model with labels=[...]")

    @property
    def preprocessor(self) -> Preprocessor:
        """Layer that converts strings to token ids, for `dataset.map` and your own models."""
        if self._preprocessor is None:
            self._preprocessor = Preprocessor(self.vocab, self.casing, self.max_seq_length)
        return self._preprocessor

    def freeze(self, *patterns: str) -> list[str]:
        """Freezes the layers whose names match one of the regular expressions, and returns the names of these layers.

        Without a pattern, freezes the encoder with its pooler, so that `fit` trains only the head (a linear probe).

        Raises:
            UserError: If a pattern matches no layer.
        """
        return freeze(self, patterns or [ALL])

    def quantize(self, *arguments: Any, **settings: Any) -> None:
        """Quantizes dense layers like keras.Model.quantize.

        Layers that Keras cannot quantize are left unchanged, without warning.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have a `quantize` method")
            super().quantize(*arguments, **settings)

    # Weights.

    def _assign_weights(self, weights: Mapping[str, Array]) -> None:
        """Assigns weights by variable path. Variables without a weight, and weights without a variable, are ignored."""
        assign_weights(self, weights, allow_missing=True)

    def _weights(self) -> dict[str, Array]:
        """Returns the weights as float32 arrays by variable path, with LoRA updates merged into their matrices.

        Raises:
            UserError: If the model is quantized.
        """
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
                f"{self.name} has 8-bit weights, which only .keras files and saved_model exports can store; save or "
                "export the model before you call quantize"
            )

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
            settings: Other arguments of the class. A checkpoint with a head of this kind supplies the defaults of
                labels, multi_label and of the settings of its head. Arguments of all classes:

                - max_seq_length: Maximum number of tokens in a sequence. Longer texts are truncated or split into
                  windows. Defaults to the value of the fine-tuned model, otherwise to 128 (QuestionAnswerer: 384).
                - seed: Random seed for new weights, dropout and shuffling. Defaults to 0, whatever
                  keras.utils.set_random_seed was called with.
                - dtype: Keras dtype policy, such as "mixed_bfloat16". Defaults to Keras' global policy.
                - name: Name of the model.
                - trainable: Whether the weights are trainable. Defaults to True.
                - frozen: Names of the layers that are not trained.
                - quantization: "int8" for weights with 8 bits.
                - gradient_accumulation_steps: Number of micro-batches per step in fit. Defaults to 1.
                - rematerialize: Whether fit recomputes encoder blocks to save memory. Defaults to False.

                Arguments of one class and their defaults:

                - TextClassifier: labels=None, multi_label=False, pair=False, doc_stride=None, temperature=1.0,
                  thresholds=None, positive_weights=None, min_confidence=0.0.
                - TextRegressor: pair=False, doc_stride=None.
                - TokenTagger: labels=None, doc_stride=None.
                - QuestionAnswerer: no_answer=False, null_score_diff_threshold=0.0, doc_stride=128, max_query_length=64,
                  max_answer_length=30, n_best_size=20.
                - MaskedLM: masked_lm_prob=0.15, max_predictions_per_seq=20, do_whole_word_mask=False.
                - TextEncoder: pooling="mean", layers=(-1,), normalize=False, objective="ranking", dimensions=(),
                  score_range=(0.0, 1.0), scale=20.0, margin=5.0.

        Raises:
            UserError: If a file is missing or damaged, or an argument contradicts the checkpoint.
        """
        source = source if isinstance(source, BertConfig) else os.fspath(source)
        overrides = LoadOverrides(vocab_file=vocab_file, do_lower_case=do_lower_case, strip_accents=strip_accents)
        if isinstance(source, str) and source.endswith(".keras"):
            saved = saving.load(source, TextModel, "a model that takes text, as TextClassifier")
            initial = pretrained.to_loaded_model(saved, source, overrides)
        else:
            initial = read_initial_model(source, overrides)
        model: Self = pretrained.create_model(cls, initial, settings)
        return model

    def _copy_decision_settings(self, task_spec: Mapping[str, Any], explicit: Mapping[str, Any]) -> None:
        """Copies settings that were chosen after training, such as thresholds, from a fine-tuned model.

        Args:
            task_spec: Contents of task.json.
            explicit: Arguments that the user passed. These settings are not replaced.
        """

    def _head_note(self, has_head: bool) -> str:
        return "the head is the checkpoint's" if has_head else "the head is new: train it before you predict"

    @classmethod
    def load(cls, path: str) -> Self:
        """Loads a model from a .keras file that `save` wrote.

        Raises:
            UserError: If the file does not exist, is damaged, or contains a model of another class.
        """
        model: Self = saving.load(path, cls, f"a {cls.__name__}")
        return model

    def _task_spec(self) -> dict[str, Any]:
        self._require_labels()
        return self.spec.task_spec(self.name if self.kinds else None, self.max_seq_length)

    def save(self, filepath: Any, overwrite: bool = True, zipped: bool | None = None, **settings: Any) -> None:
        """Writes the model like keras.Model.save, but atomically: an interrupted write leaves an existing file intact.

        Args:
            filepath: Path that ends in .keras, or in .h5 for Keras' legacy format.
            overwrite: Whether to replace an existing file. If False, an existing file is an error.
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
        """Writes the model to a folder that the commands, `official_bert.load` and `from_checkpoint` can read.

        The folder contains a fine-tuned model or, for MaskedLM, a checkpoint as pre-training writes it. A folder that
        this method wrote earlier is replaced.

        Raises:
            UserError: If the model is quantized, a weight is not finite, or the folder contains other files.
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
            format: One or more of "saved_model" and "onnx", which take text, and "litert", which takes token ids,
                separated by commas.
            version: Version number for saved_model and onnx. Defaults to the next unused number.
            eval_file: File of labelled examples on which litert and 8-bit exports are scored.
            quantization: "float32", or "dynamic_int8" for 8-bit matrices in onnx and litert.
            max_loss: Maximum drop of the score on eval_file, as a fraction of the best possible score.
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
        source = ExportSource(self, self.bert_config, self._tokenizer, self.vocab, self.spec.kind, self._task_spec())
        formats.write(source, options)

    # Answers.

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Returns predictions for texts, in the form that the class describes.

        For token ids, returns the network's outputs.

        Prints a warning if there are at least ten predictions and all are equal or nearly equal.

        Args:
            x: Texts, a tf.data.Dataset of texts, or a dict of token ids.
            batch_size: Number of texts per batch. Defaults to 32.
            verbose: Pass 0 to print nothing. Otherwise long input shows a progress bar.
            steps: See keras.Model.predict. For token ids only.
            callbacks: See keras.Model.predict. For token ids only.

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
        return self._answer(read_texts(x, self.spec), batch_size, verbose)

    def _answer(self, x: Any, batch_size: int, verbose: Any) -> Any:
        """Returns what `predict` returns for texts."""
        examples = self.spec.make_examples(x, None)
        predictions = self._predictions(examples, batch_size, verbose)
        if verbose and (self.spec.discrete_outputs or self.spec.is_value):  # Vectors are not checked.
            warning = describe_constant_answers(self.spec.named_answers(predictions, examples))
            if warning:
                print(f"warning: {warning}")
        return self.spec.answers(predictions)

    def _answering_model(self) -> keras.Model:
        """Returns the model that computes the outputs that the spec decodes."""
        model: keras.Model = create_kind_model(self.spec).answering_model(self)
        return model

    def _predictions(self, examples: Sequence[Any], batch_size: int | None, verbose: Any = "auto") -> Any:
        """Returns the predictions for examples, decoded by the spec, and prints a note if texts were truncated."""
        self._require_labels()
        if not examples:
            raise UserError(NO_EXAMPLES)
        features = self.spec.featurize(examples, self._tokenizer, self.max_seq_length)
        note = self.spec.describe_truncation(features.num_truncated, len(examples), self.max_seq_length)
        if note and verbose:
            print(f"note: {note}")
        outputs = self._compute_outputs(features, check_count(batch_size, "batch_size", 32), verbose)
        return self.spec.decode(outputs, features, examples)

    def _compute_outputs(self, features: Features, batch_size: int, verbose: Any) -> Outputs:
        """Returns the outputs of the answering model for each row of the features."""
        if self._predictor is None:
            self._predictor = KerasRunner(self._answering_model(), self.distribute_strategy, self.max_seq_length)
        progress_bar = _make_progress_bar(len(features), batch_size, verbose)
        return self._predictor.compute_outputs(features, batch_size, progress_bar)


make_read_only(TextModel)


def _make_progress_bar(num_rows: int, batch_size: int, verbose: Any) -> Callable[[int], None]:
    """Returns a function that updates Keras' progress bar. It does nothing if there are fewer than 10 batches.

    Args:
        num_rows: Number of rows.
        batch_size: Number of rows per batch.
        verbose: The `verbose` of predict.

    Returns:
        A function of the number of completed rows.
    """
    steps = -(-num_rows // batch_size)
    if not verbose or steps < _MIN_PROGRESS_BAR_STEPS:
        return lambda done: None
    bar = keras.utils.Progbar(steps, verbose=1 if verbose == "auto" else verbose)
    return lambda done: bar.update(-(-done // batch_size))
