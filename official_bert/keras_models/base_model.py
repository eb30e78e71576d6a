"""BaseTextModel: the constructor, configuration, labels, weights and predictions of all Keras models that take text.

B batch size, S sequence length
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np

from official_bert.checkpoints.checkpoint import Array
from official_bert.checkpoints.loading import assign_weights
from official_bert.errors import UserError
from official_bert.inference.keras_model import KerasRunner
from official_bert.keras_models.arguments import ReadOnly, check_no_unknown, list_arguments, make_read_only
from official_bert.keras_models.fit_arguments import NO_EXAMPLES, check_count
from official_bert.keras_models.preprocessor import Preprocessor
from official_bert.kinds import class_labels
from official_bert.kinds.features import check_length
from official_bert.kinds.input_adapters import format_value
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.spec import KindSpec
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization.freezing import ALL, freeze
from official_bert.tokenization.casing import Casing, resolve_casing, restore_casing
from official_bert.tokenization.exact import parse_vocab
from official_bert.tokenization.fast import FastTokenizer

_MIN_PROGRESS_BAR_STEPS = 10  # predict shows a progress bar if there are at least this many batches


class BaseTextModel(keras.Model):
    """A functional Keras model from token ids to logits, with the tokenizer and the task that belong to it.

    Its inputs are input_ids, input_mask and segment_ids, int32 [B, S].

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

    vocab = ReadOnly("vocab", is_stored=True)
    casing = ReadOnly("casing", is_stored=True)
    bert_config = ReadOnly("bert_config", is_stored=True)
    max_seq_length = ReadOnly("max_seq_length", is_stored=True)
    seed = ReadOnly("seed", is_stored=True)
    rematerialize = ReadOnly("rematerialize", is_stored=True)

    backbone: keras.Model  # the encoder, from token ids to sequence_output and pooled_output (a name of keras-hub)
    _preprocessor: Preprocessor | None = None
    _predictor: KerasRunner | None = None

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
        gradient_accumulation_steps = check_count(gradient_accumulation_steps, "gradient_accumulation_steps")
        config = config if isinstance(config, BertConfig) else BertConfig(**config)
        if max_seq_length is None:
            max_seq_length = min(spec.default_max_seq_length, config.max_position_embeddings)
        if not isinstance(max_seq_length, int | np.integer):
            raise UserError(f"max_seq_length is {format_value(max_seq_length)}; expected a whole number of tokens")
        check_length(max_seq_length, 4 if spec.pair else 3)
        if max_seq_length > config.max_position_embeddings:
            raise UserError(
                f"max_seq_length is {max_seq_length}; the model supports at most {config.max_position_embeddings} "
                "tokens"
            )
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        self.spec, self.bert_config = spec, config
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

    # Weights and predictions.

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
        if self._predictor is None:
            self._predictor = KerasRunner(self._answering_model(), self.distribute_strategy, self.max_seq_length)
        batch_size = check_count(batch_size, "batch_size", 32)
        outputs = self._predictor.compute_outputs(
            features, batch_size, _make_progress_bar(len(features), batch_size, verbose)
        )
        return self.spec.decode(outputs, features, examples)


make_read_only(BaseTextModel)


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
