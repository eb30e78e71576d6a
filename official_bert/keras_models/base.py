"""What all Keras models that take text share: where their weights come from, saving and export."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import keras

from official_bert.checkpoints import finetuned
from official_bert.errors import UserError
from official_bert.export import saved_model
from official_bert.finetuning.initial_model import InitialModel, read_initial_model
from official_bert.keras_models.fitting import TextTraining
from official_bert.keras_models.preprocessor import Preprocessor
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization.freezing import freeze
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files


class BaseTextModel(TextTraining):
    """A functional Keras model from ids to logits, whose fit, evaluate and predict also take text.

    Subclasses say what examples look like. All that a functional model can do, this one can: its inputs are input_ids,
    input_mask and segment_ids, int32 [B, S], and fit, evaluate and predict take those as well.

    Args:
        config: the encoder's sizes, a BertConfig or a dict of its fields.
        vocab: the text of its vocab.txt.
        do_lower_case: whether the vocabulary is uncased.
        max_seq_length: the longest sequence in tokens; longer texts are cut, or read in windows.
        seed: of the new weights, of dropout and of the order of the examples.
        dtype: a Keras dtype policy for the layers; None for Keras' global one.
        name: of the model.
        trainable: whether the weights are.
        frozen: names of layers that are not trained.
        quantization: "int8" for a model whose weights are of 8 bits; see Keras' quantize.
    """

    kind: ClassVar[str]
    default_name: ClassVar[str]
    default_max_seq_length: ClassVar[int] = 128

    def __init__(
        self,
        config: BertConfig | Mapping[str, Any],
        vocab: str,
        *,
        do_lower_case: bool = True,
        max_seq_length: int | None = None,
        seed: int = 0,
        dtype: Any = None,
        name: str | None = None,
        trainable: bool = True,
        frozen: Sequence[str] = (),
        quantization: str | None = None,
    ) -> None:
        config = config if isinstance(config, BertConfig) else BertConfig(**config)
        max_seq_length = max_seq_length or min(self.default_max_seq_length, config.max_position_embeddings)
        if max_seq_length > config.max_position_embeddings:
            raise UserError(
                f"max_seq_length is {max_seq_length}; the model reads {config.max_position_embeddings} tokens at most"
            )
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        self.bert_config = config
        core = self._build_core(build_encoder(config, seed=seed, dtype=policy.name), seed)
        super().__init__(inputs=core.input, outputs=core.output, name=name or self.default_name)
        self.trainable = trainable
        for layer in frozen:
            self.get_layer(layer).trainable = False
        self.vocab, self.do_lower_case = vocab, do_lower_case
        self.max_seq_length, self.seed, self.dropout_seed = max_seq_length, seed, seed
        self._policy_name = policy.name
        self._tokenizer = FastTokenizer.from_vocab(vocab, do_lower_case)
        self._preprocessor: Preprocessor | None = None
        if quantization:
            self.quantize(quantization)

    # What subclasses say.

    def _build_core(self, encoder: keras.Model, seed: int) -> keras.Model:
        """Returns the encoder with its head."""
        raise NotImplementedError

    def _task_spec(self) -> dict[str, Any]:
        """Returns what task.json and an export say of the task (see checkpoints.finetuned)."""
        return {
            "task": self.name,
            "kind": self.kind,
            "pair": False,
            "labels": None,
            "num_choices": None,
            "max_seq_length": self.max_seq_length,
        }

    def _own_config(self) -> dict[str, Any]:
        """Returns the subclass' own arguments."""
        return {}

    # Beginning and end.

    @classmethod
    def from_checkpoint(
        cls,
        source: str | BertConfig,
        *,
        vocab_file: str | None = None,
        do_lower_case: bool | None = None,
        **settings: Any,
    ) -> Self:
        """Returns a model with trained weights and, unless the checkpoint is a fine-tuned one of this kind, a new head.

        Args:
            source: a checkpoint of any format that `official_bert.load` takes, the folder of a fine-tuned model, or a
                BertConfig or the path of a bert_config.json, for random weights.
            vocab_file: a vocab.txt, where the source has none.
            do_lower_case: whether the vocabulary is uncased, where the source does not say it.
            settings: further arguments of the class.

        Raises:
            UserError: something is missing, damaged, or does not fit together.
        """
        if isinstance(source, BertConfig):
            if vocab_file is None:
                raise UserError("a BertConfig comes without a vocabulary; give a vocab.txt as vocab_file")
            vocab = files.read_text(vocab_file)
            uncased = True if do_lower_case is None else do_lower_case
            initial = InitialModel(source, vocab, uncased, {}, notes=("the weights are random",))
        else:
            initial = read_initial_model(source, vocab_file, do_lower_case)
        spec = initial.task_spec
        is_same_kind = spec is not None and spec["kind"] in cls._kinds()
        if spec is not None and is_same_kind:
            settings = {**cls._settings_of(spec), **settings}
        model = cls(initial.config, initial.vocab, do_lower_case=initial.do_lower_case, **settings)
        has_head = False
        if spec is not None and is_same_kind and model._fits(spec):
            model.set_weights(finetuned.load(initial.folder).model.get_weights())
            has_head = True
        else:
            missing = [variable for variable in model.variables if variable.path not in initial.weights]
            for variable in model.variables:
                if variable.path in initial.weights:
                    variable.assign(initial.weights[variable.path])
            has_head = not missing
        for note in initial.notes:
            print(f"note: {note}")
        encoder = f"{initial.config.num_hidden_layers} layers of {initial.config.hidden_size}"
        print(f"{model.name}: {encoder}, {model.count_params():,} parameters; {model._head_note(has_head)}")
        return model

    @classmethod
    def _kinds(cls) -> tuple[str, ...]:
        """The kinds of fine-tuned models that this class takes."""
        return (cls.kind,)

    @classmethod
    def _settings_of(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that a fine-tuned model's task.json gives."""
        return {"max_seq_length": spec["max_seq_length"]}

    def _fits(self, spec: Mapping[str, Any]) -> bool:
        """Whether a fine-tuned model's head can be taken over."""
        own = self._task_spec()
        return all(spec[key] == own[key] for key in ("labels", "num_choices"))

    def _head_note(self, has_head: bool) -> str:
        return "the head is the checkpoint's" if has_head else "the head is new: train it before you predict"

    @classmethod
    def load(cls, path: str) -> Self:
        """Returns a model that `save` has written.

        Raises:
            UserError: the file holds another kind of model.
        """
        model = keras.models.load_model(path)
        if not isinstance(model, cls):
            raise UserError(f"{path} holds a {type(model).__name__}; expected a {cls.__name__}")
        return model

    def save_checkpoint(self, folder: str) -> None:
        """Writes the folder of a fine-tuned model, which the commands and `from_checkpoint` read."""
        finetuned.save(folder, self, self._task_spec(), self.bert_config, self.vocab, self.do_lower_case)

    def export(self, filepath: str, format: str = "tf_saved_model", **settings: Any) -> None:
        """Writes a SavedModel that takes text, as a new version within the folder; other formats as Keras does.

        Args:
            filepath: a folder, in which versions are 1, 2, ...; serve and TensorFlow Serving take it as it is.
            format: as of keras.Model.export.
            settings: of keras.Model.export, for other formats.
        """
        if format != "tf_saved_model":
            super().export(filepath, format=format, **settings)
            return
        source = saved_model.Source(
            self, self.bert_config, self._tokenizer.exact, self.vocab, self._export_kind(),
            self._task_spec(),
        )  # fmt: skip
        version = os.path.join(filepath, str(saved_model.next_version(filepath)))
        with files.folder_written_whole(version) as folder:
            saved_model.write(source, folder)

    def _export_kind(self) -> str:
        return self.kind

    def get_config(self) -> dict[str, Any]:
        frozen = [layer.name for layer in self.layers if layer.variables and not layer.trainable]
        quantized = {layer.quantization_mode for layer in self.layers if getattr(layer, "quantization_mode", None)}
        return {
            "config": self.bert_config.to_dict(),
            "vocab": self.vocab,
            "do_lower_case": self.do_lower_case,
            "max_seq_length": self.max_seq_length,
            "seed": self.seed,
            "dtype": self._policy_name,
            "name": self.name,
            "trainable": self.trainable,
            "frozen": frozen if self.trainable else [],
            "quantization": quantized.pop() if quantized else None,
            **self._own_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        return cls(**config)

    @property
    def preprocessor(self) -> Preprocessor:
        """The layer from strings to the network's inputs, for `dataset.map` and models of one's own."""
        if self._preprocessor is None:
            self._preprocessor = Preprocessor(self.vocab, self.do_lower_case, self.max_seq_length)
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
