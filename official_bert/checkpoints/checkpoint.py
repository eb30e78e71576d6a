"""The contents of a checkpoint in memory, independent of the file format.

Tensors are named by the paths of their Keras variables in this library's models, such as pooler/kernel. A part is a
group of tensors that a checkpoint contains completely or not at all: the encoder, the pooler, or one head.

V vocabulary, H hidden size, T segment types, L longest sequence, I intermediate size, C classes
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy.typing as npt

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.casing import UNCASED, Casing
from official_bert.tokenization.fast import FastTokenizer

Array = npt.NDArray[Any]

# The files in a model's folder other than the weights. The first two are as in Google's releases.
CONFIG_FILE = "bert_config.json"
VOCAB_FILE = "vocab.txt"
TOKENIZER_FILE = "tokenizer_config.json"
LABELS_FILE = "labels.json"

ENCODER, POOLER, MASKED_LM, NEXT_SENTENCE = "encoder", "pooler", "masked-LM head", "next-sentence head"
SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER = "sequence classifier", "token classifier"
MULTIPLE_CHOICE, QUESTION_ANSWERING = "multiple-choice head", "question-answering head"


def _dense(layer: str, shape: str) -> dict[str, str]:
    return {f"{layer}/kernel": shape, f"{layer}/bias": shape[-1]}


def _layer_norm(layer: str) -> dict[str, str]:
    return {f"{layer}/gamma": "H", f"{layer}/beta": "H"}


# The paths and shapes of our models' Keras variables, by part. {} is the number of a block. A checkpoint
# has either all tensors of a part or none. It always has the encoder.
PARTS = {
    ENCODER: {
        "word_embeddings/embeddings": "VH",
        "token_type_embeddings/embeddings": "TH",
        "position_embeddings/embeddings": "LH",
        **_layer_norm("embeddings_layer_norm"),
        **_dense("layer_{}_attention_query", "HH"),
        **_dense("layer_{}_attention_key", "HH"),
        **_dense("layer_{}_attention_value", "HH"),
        **_dense("layer_{}_attention_output", "HH"),
        **_layer_norm("layer_{}_attention_layer_norm"),
        **_dense("layer_{}_intermediate", "HI"),
        **_dense("layer_{}_output", "IH"),
        **_layer_norm("layer_{}_output_layer_norm"),
    },
    POOLER: _dense("pooler", "HH"),
    MASKED_LM: {
        **_dense("masked_lm_transform", "HH"),
        **_layer_norm("masked_lm_layer_norm"),
        "masked_lm_output/bias": "V",
    },
    NEXT_SENTENCE: _dense("next_sentence", "H2"),
    SEQUENCE_CLASSIFIER: _dense("sequence_classifier", "HC"),
    TOKEN_CLASSIFIER: _dense("token_classifier", "HC"),
    MULTIPLE_CHOICE: _dense("multiple_choice", "H1"),
    QUESTION_ANSWERING: _dense("question_answering", "H2"),
}
PRETRAINING = frozenset({ENCODER, POOLER, MASKED_LM, NEXT_SENTENCE})
SLOTS = ("adam_m", "adam_v")
# The heads of fine-tuned models.
TASK_HEADS = (SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER, MULTIPLE_CHOICE, QUESTION_ANSWERING)
# Of these, the heads that read the pooler's output. The others read the vectors of the tokens.
POOLED_HEADS = (SEQUENCE_CLASSIFIER, MULTIPLE_CHOICE)
# The variables with one value per class.
CLASSIFIER_BIASES = ("sequence_classifier/bias", "token_classifier/bias")


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The tensors that were found in a checkpoint file.

    Attributes:
        loaded: For each tensor that was read, its name in the file and the path of its Keras variable.
        left_behind: The names in the file of tensors that were not read, grouped by a description of what they are,
            such as "of the optimizer's moments and step".
    """

    loaded: Mapping[str, str]
    left_behind: Mapping[str, list[str]]


class ModelSource(NamedTuple):
    """The path or name that a model was read from, and the format of its files."""

    name: str = "the model"  # the path or name that the user gave
    path: str = ""  # the local path
    format: str = ""  # a key of FORMATS


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model in memory. The reader of each format returns one, and the writer of each format takes one.

    Attributes:
        config: The model's configuration.
        weights: float32 arrays by path of the Keras variable. `PARTS` lists the paths.
        vocab: The text of the vocab.txt, if known.
        casing: The tokenizer's settings: lower-casing, stripping of accents, and added tokens.
        states_casing: Whether the checkpoint's files state the casing. Otherwise it was set by the user or inferred
            from the vocabulary.
        slots: Adam's moments, by the variable's name followed by /adam_m or /adam_v. Empty if they were not read.
        step: The number of training steps, if known.
        labels: The classes' names in the order of the logits, or None if unknown.
        kind: What a sequence classifier was trained for (classification, multi_label or regression), or None if
            unknown.
        task: The contents of task.json if this library fine-tuned the model. Otherwise None.
        notes: Messages for the user, for example about assumptions that were made while reading the model.
        inventory: The tensors in the file that the model was read from, or None if the model was not read from a file.
        source: Where the model was read from.
    """

    config: BertConfig
    weights: dict[str, Array]
    vocab: str | None = None
    casing: Casing = UNCASED
    states_casing: bool = False
    slots: dict[str, Array] = dataclasses.field(default_factory=dict)
    step: int | None = None
    labels: tuple[str, ...] | None = None
    kind: str | None = None
    task: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    inventory: Inventory | None = None
    source: ModelSource = ModelSource()

    @functools.cached_property
    def tokenizer(self) -> FastTokenizer:
        """The tokenizer with this model's vocabulary and casing.

        Raises:
            UserError: If the vocabulary is missing or damaged.
        """
        source = f"the vocabulary of {self.source.name}"
        return FastTokenizer.from_vocab(self.require_vocab(), source=source, **self.casing._asdict())

    def require_vocab(self) -> str:
        """Returns the text of the vocab.txt.

        Raises:
            UserError: If the vocabulary is missing.
        """
        if self.vocab is None:
            raise UserError(
                f"{self.source.name} has no vocabulary; copy {VOCAB_FILE} there together with a {TOKENIZER_FILE} that "
                f'contains {{"do_lower_case": true}} or false, or pass vocab_file in Python (--vocab_file to a command '
                "that has this flag)"
            )
        return self.vocab

    def add_notes(self, *notes: str) -> Self:
        """Returns the model with additional messages for the user."""
        return dataclasses.replace(self, notes=(*self.notes, *notes))

    @property
    def parts(self) -> list[str]:
        """The parts that the model has: keys of `PARTS`, such as "encoder" and "masked-LM head"."""
        return [part for part, shapes in PARTS.items() if next(iter(shapes)).format(0) in self.weights]


@dataclasses.dataclass(frozen=True)
class LoadOverrides:
    """The user's settings for reading a checkpoint: what its files lack, or what replaces their contents.

    Attributes:
        bert_config_file: Path of a configuration file, for a folder without one.
        vocab_file: Path of a vocab.txt, for a folder without one.
        do_lower_case: Whether the vocabulary is uncased. None to read it from the folder or to infer it.
        strip_accents: Whether accents are deleted. None to read it from the folder, or else to use the value of
            do_lower_case.
        optimizer: Whether to read Adam's moments and the step in addition to the weights.
        replace: Whether `vocab_file`, `do_lower_case` and `strip_accents` win if the folder contradicts them. If false,
            a contradiction is an error.
        fallback_config: The configuration to use if neither the folder nor bert_config_file gives one.
        allow: Regular expressions for tensors whose problems are not errors: variable paths of tensors that may be
            missing or have another shape, and the file's names of unexpected tensors. None to allow none.
    """

    bert_config_file: str | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    optimizer: bool = False
    replace: bool = False
    fallback_config: BertConfig | None = None
    allow: Sequence[str] | None = None


def make_placeholder_labels(num_classes: int) -> tuple[str, ...]:
    """Returns the names LABEL_0, LABEL_1, ..., which Hugging Face writes for classes without names."""
    return tuple(f"LABEL_{number}" for number in range(num_classes))


def build_names(layers: Mapping[str, str], suffixes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns a table from variable paths to a checkpoint format's names. {} in a name is replaced by the block number.

    Args:
        layers: The format's name of each layer, by the layer's name in our models. A variable whose name in the format
            does not follow from its layer has an entry of its own.
        suffixes: What the format appends to a layer's name for each of its variables, by the variable's name in our
            models (kernel, bias, gamma, ...). Defaults to "/" and this name.
    """
    names = {}
    for name in (name for shapes in PARTS.values() for name in shapes):
        layer, variable = name.rsplit("/", 1)
        if name in layers:
            names[name] = layers[name]
        elif layer in layers:
            names[name] = layers[layer] + (suffixes or {}).get(variable, f"/{variable}")
    return names


def expand_blocks(table: Mapping[str, str], config: BertConfig) -> dict[str, str]:
    """Returns a table of names in which each row with the placeholder {} is repeated for every block of the model."""
    return {
        ours.format(number): theirs.format(number)
        for ours, theirs in table.items()
        for number in range(config.num_hidden_layers if "{}" in ours else 1)
    }


def get_part_shapes(part: str, config: BertConfig, num_classes: int = 0) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the tensors of a part (encoder, pooler or head), by variable path.

    Args:
        part: A key of `PARTS`.
        config: The model's configuration.
        num_classes: Number of classes, for the parts that are classifiers.
    """
    sizes = {
        "V": config.vocab_size,
        "H": config.hidden_size,
        "T": config.type_vocab_size,
        "L": config.max_position_embeddings,
        "I": config.intermediate_size,
        "C": num_classes,
        "1": 1,
        "2": 2,
    }
    return {name: tuple(map(sizes.__getitem__, shape)) for name, shape in expand_blocks(PARTS[part], config).items()}


def count_parameters(parts: Iterable[str], config: BertConfig) -> int:
    """Returns the number of weights of some parts."""
    return sum(math.prod(shape) for part in parts for shape in get_part_shapes(part, config).values())


def keep_parts(model: LoadedModel, parts: Iterable[str], format_name: str) -> LoadedModel:
    """Returns the model without the weights of other parts, and with a note that lists the parts that were dropped."""
    parts = set(parts)
    dropped = [part for part in model.parts if part not in parts]
    if not dropped:
        return model
    names = {name for part in parts for name in expand_blocks(PARTS[part], model.config)}
    return dataclasses.replace(
        model,
        weights={name: value for name, value in model.weights.items() if name in names},
    ).add_notes(f"dropped, because the {format_name} format cannot store it: {', '.join(dropped)}")
