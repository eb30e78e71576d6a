"""What a checkpoint holds, whatever its format, and the checks that every format's reader shares.

V vocabulary, H hidden size, T segment types, L longest sequence, I intermediate size, C classes
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from official_bert.config import BertConfig
from official_bert.errors import UserError
from official_bert.tokenization import check_special_tokens

Array = npt.NDArray[Any]

# The small files beside the weights: the first two as in Google's releases.
CONFIG_FILE = "bert_config.json"
VOCAB_FILE = "vocab.txt"
TOKENIZER_FILE = "tokenizer_config.json"
LABELS_FILE = "labels.json"

ENCODER, POOLER, MASKED_LM, NEXT_SENTENCE = "encoder", "pooler", "masked-LM head", "next-sentence head"
SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER = "sequence classifier", "token classifier"
MULTIPLE_CHOICE, QUESTION_ANSWERING = "multiple-choice head", "question-answering head"

# Our names (the paths of the models' Keras variables) and shapes, by part; {} is the number of a block. A checkpoint
# has a part wholly or not at all; the encoder is always there.
PARTS = {
    ENCODER: {
        "word_embeddings/embeddings": "VH",
        "token_type_embeddings/embeddings": "TH",
        "position_embeddings/embeddings": "LH",
        "embeddings_layer_norm/gamma": "H",
        "embeddings_layer_norm/beta": "H",
        "layer_{}_attention_query/kernel": "HH",
        "layer_{}_attention_query/bias": "H",
        "layer_{}_attention_key/kernel": "HH",
        "layer_{}_attention_key/bias": "H",
        "layer_{}_attention_value/kernel": "HH",
        "layer_{}_attention_value/bias": "H",
        "layer_{}_attention_output/kernel": "HH",
        "layer_{}_attention_output/bias": "H",
        "layer_{}_attention_layer_norm/gamma": "H",
        "layer_{}_attention_layer_norm/beta": "H",
        "layer_{}_intermediate/kernel": "HI",
        "layer_{}_intermediate/bias": "I",
        "layer_{}_output/kernel": "IH",
        "layer_{}_output/bias": "H",
        "layer_{}_output_layer_norm/gamma": "H",
        "layer_{}_output_layer_norm/beta": "H",
    },
    POOLER: {"pooler/kernel": "HH", "pooler/bias": "H"},
    MASKED_LM: {
        "masked_lm_transform/kernel": "HH",
        "masked_lm_transform/bias": "H",
        "masked_lm_layer_norm/gamma": "H",
        "masked_lm_layer_norm/beta": "H",
        "masked_lm_output/bias": "V",
    },
    NEXT_SENTENCE: {"next_sentence/kernel": "H2", "next_sentence/bias": "2"},
    SEQUENCE_CLASSIFIER: {"sequence_classifier/kernel": "HC", "sequence_classifier/bias": "C"},
    TOKEN_CLASSIFIER: {"token_classifier/kernel": "HC", "token_classifier/bias": "C"},
    MULTIPLE_CHOICE: {"multiple_choice/kernel": "H1", "multiple_choice/bias": "1"},
    QUESTION_ANSWERING: {"question_answering/kernel": "H2", "question_answering/bias": "2"},
}
PRETRAINING = frozenset({ENCODER, POOLER, MASKED_LM, NEXT_SENTENCE})
SLOTS = ("adam_m", "adam_v")
# Where a classifier's classes can be counted.
CLASSIFIER_BIASES = ("sequence_classifier/bias", "token_classifier/bias")

_MOST_NAMES_SHOWN = 10
_EXACT_IN_FLOAT32 = ("float32", "float16", "bfloat16")
_PADDED_TO = (8, 64, 128)  # what some enlarge the word table to, for the speed of their devices


@dataclasses.dataclass(frozen=True)
class Inventory:
    """What became of the tensors in a file.

    Attributes:
        loaded: our name of each that was taken, by the format's.
        left_behind: the format's names of the others, by what they are.
    """

    loaded: Mapping[str, str]
    left_behind: Mapping[str, list[str]]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model in files, as every format's reader returns it and every writer takes it.

    Attributes:
        config: sizes, rates, activation, epsilon.
        weights: float32 arrays by our names, as in `PARTS`.
        vocab: the text of a vocab.txt, or None.
        do_lower_case: whether the vocabulary is uncased.
        slots: the optimizer's averages, by our names with /adam_m or /adam_v; empty without them.
        step: the number of steps trained, where it is known.
        labels: the classes' names, where they are known.
        notes: what the user should know of how it was read.
        inventory: what became of the tensors in the file that it was read from.
    """

    config: BertConfig
    weights: dict[str, Array]
    vocab: str | None = None
    do_lower_case: bool = True
    slots: dict[str, Array] = dataclasses.field(default_factory=dict)
    step: int | None = None
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    inventory: Inventory | None = None

    @property
    def parts(self) -> list[str]:
        """The parts that it has."""
        return [part for part, shapes in PARTS.items() if next(iter(shapes)).format(0) in self.weights]


@dataclasses.dataclass(frozen=True)
class Given:
    """What a user says of a checkpoint that does not say it itself.

    Attributes:
        bert_config_file: for a folder without a configuration.
        vocab_file: for a folder without a vocabulary.
        do_lower_case: whether the vocabulary is uncased; None where the folder says it, or to find out.
        optimizer: whether to read the optimizer's averages and the step.
    """

    bert_config_file: str | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    optimizer: bool = False


@dataclasses.dataclass(frozen=True)
class Source:
    """Tensors in a file, by the format's names.

    Attributes:
        path: the file, for errors.
        shapes: what it holds.
        read: returns one tensor, or raises a UserError that names file and tensor.
    """

    path: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Array]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a format stores a tensor: whether transposed, and in what shape."""

    transposed: bool
    shape: tuple[int, ...]

    def theirs(self, value: Array) -> Array:
        """Our tensor as the format stores it."""
        return np.ascontiguousarray(value.T if self.transposed else value).reshape(self.shape)

    def ours(self, value: Array, shape: tuple[int, ...]) -> Array:
        """The format's tensor in our shape."""
        return np.ascontiguousarray(value.reshape(shape[::-1]).T if self.transposed else value.reshape(shape))


# Returns the layout of a tensor from our name of it and its shape here.
LayoutRule = Callable[[str, tuple[int, ...]], Layout]


def as_it_is(name: str, shape: tuple[int, ...]) -> Layout:
    """The layout rule of a format that stores every tensor as we do."""
    return Layout(False, shape)


def with_head_axis(config: BertConfig) -> LayoutRule:
    """Returns the layout rule of formats whose tensors of attention have an axis for the heads, as Keras' own layer."""
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads

    def rule(name: str, shape: tuple[int, ...]) -> Layout:
        if re.search(r"attention_(query|key|value)/", name):
            return Layout(False, (*shape[:-1], heads, size))
        if name.endswith("attention_output/kernel"):
            return Layout(False, (heads, size, *shape[1:]))
        return Layout(False, shape)

    return rule


def numbered(table: Mapping[str, str], config: BertConfig) -> dict[str, str]:
    """Returns a table of names with a row for each block of the model."""
    return {
        ours.format(number): theirs.format(number)
        for ours, theirs in table.items()
        for number in range(config.num_hidden_layers if "{}" in ours else 1)
    }


def shapes_of(part: str, config: BertConfig, classes: int = 0) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a part's tensors, by our names."""
    sizes = {
        "V": config.vocab_size,
        "H": config.hidden_size,
        "T": config.type_vocab_size,
        "L": config.max_position_embeddings,
        "I": config.intermediate_size,
        "C": classes,
        "1": 1,
        "2": 2,
    }
    letters = numbered(PARTS[part], config)
    return {name: tuple(sizes[letter] for letter in letters[name]) for name in letters}


def collect(
    source: Source, config: BertConfig, table: Mapping[str, str], layout: LayoutRule, ignored: Mapping[str, str]
) -> dict[str, Array]:
    """Returns the weights that a file holds, by our names, after checking that it holds them wholly and nothing else.

    Args:
        source: the file.
        config: the sizes that the tensors must have.
        table: the format's names, by ours.
        layout: how the format stores them.
        ignored: regular expressions of names that are not weights, by what they are.

    Raises:
        UserError: a tensor is missing, unexpected, of another shape or damaged.
    """
    names = numbered(table, config)
    shapes: dict[str, tuple[int, ...]] = {}
    for part in PARTS:
        expected = shapes_of(part, config, _classes_in(source, part, names))
        held = {name: shape for name, shape in expected.items() if names.get(name) in source.shapes}
        if held or part == ENCODER:
            shapes |= {name: shape for name, shape in expected.items() if name in names}
    missing = [names[name] for name in shapes if names[name] not in source.shapes]
    wanted = {names[name] for name in shapes}
    unexpected = [name for name in source.shapes if name not in wanted and _kind(name, ignored) is None]
    layouts = {name: layout(name, shape) for name, shape in shapes.items()}
    misshapen = [
        f"{names[name]} has shape {list(source.shapes[names[name]])}; expected {list(layouts[name].shape)}"
        for name in shapes
        if names[name] in source.shapes and tuple(source.shapes[names[name]]) != layouts[name].shape
    ]
    if missing or unexpected or misshapen:
        raise UserError(
            f"{source.path} does not fit its configuration: {len(wanted) - len(missing)} tensors expected and found; "
            f"{len(missing)} missing{_listed(missing)}; {len(unexpected)} unexpected{_listed(unexpected)}; "
            f"{len(misshapen)} of another shape{_listed(misshapen)}"
        )
    return {
        name: layouts[name].ours(checked(source.read(names[name]), names[name], source.path), shape)
        for name, shape in shapes.items()
    }


def take_inventory(source: Source, loaded: Mapping[str, str], ignored: Mapping[str, str]) -> Inventory:
    """Returns what became of a file's tensors: `loaded` as in `Inventory`, `ignored` as for `collect`."""
    left_behind: dict[str, list[str]] = {}
    for name in sorted(set(source.shapes) - set(loaded)):
        left_behind.setdefault(_kind(name, ignored) or "others", []).append(name)
    return Inventory(loaded, left_behind)


def _kind(name: str, kinds: Mapping[str, str]) -> str | None:
    """The first kind whose regular expression the name matches."""
    return next((kind for kind, pattern in kinds.items() if re.fullmatch(pattern, name)), None)


def checked(value: Array, name: str, path: str) -> Array:
    """Returns a tensor read from a file as float32; raises a UserError if it is of another kind or not finite."""
    if value.dtype.name not in _EXACT_IN_FLOAT32:
        raise UserError(f"{name} in {path} is {value.dtype.name}; expected one of {', '.join(_EXACT_IN_FLOAT32)}")
    value = value.astype(np.float32)
    if not np.isfinite(value).all():
        raise UserError(f"{name} in {path} holds values that are not finite; restore the file from a copy")
    return value


def _classes_in(source: Source, part: str, names: Mapping[str, str]) -> int:
    """The number of classes that a head was made for, which no configuration says."""
    bias = next((name for name, shape in PARTS[part].items() if shape == "C"), None)
    shape = source.shapes.get(names.get(bias, ""), ()) if bias else ()
    return shape[0] if len(shape) == 1 else 0


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(names[:_MOST_NAMES_SHOWN])
    more = f" and {len(names) - _MOST_NAMES_SHOWN} more" if len(names) > _MOST_NAMES_SHOWN else ""
    return f": {shown}{more}" if names else ""


def as_theirs(
    weights: Mapping[str, Array], config: BertConfig, table: Mapping[str, str], layout: LayoutRule, format_name: str
) -> dict[str, Array]:
    """Returns weights under a format's names, as it stores them.

    Raises:
        UserError: the format has no name for one of them.
    """
    names = numbered(table, config)
    homeless = [name for name in weights if name not in names]
    if homeless:
        raise UserError(f"the {format_name} format has no place for {', '.join(homeless)}; choose another --to_format")
    return {names[name]: layout(name, value.shape).theirs(value) for name, value in weights.items()}


def only(checkpoint: Checkpoint, parts: Iterable[str], format_name: str) -> Checkpoint:
    """Returns the checkpoint with these parts alone, and a note of what was left out, if anything was."""
    parts = set(parts)
    left_out = [part for part in checkpoint.parts if part not in parts]
    if not left_out:
        return checkpoint
    names = {name for part in parts for name in numbered(dict.fromkeys(PARTS[part], ""), checkpoint.config)}
    return dataclasses.replace(
        checkpoint,
        weights={name: value for name, value in checkpoint.weights.items() if name in names},
        notes=(
            *checkpoint.notes,
            f"left out, since the {format_name} format has no place for it: {', '.join(left_out)}",
        ),
    )


def lines_of(vocab: str) -> list[str]:
    """Returns the tokens of a vocab.txt's text, one a line."""
    return [line.strip() for line in vocab.removesuffix("\n").split("\n")]


def check_vocabulary(vocab: str, config: BertConfig, path: str) -> tuple[str, ...]:
    """Raises a UserError unless the vocabulary fits the word table; returns a note where the table is padded."""
    tokens = lines_of(vocab)
    check_special_tokens({token: index for index, token in enumerate(tokens)}, path)
    if len(tokens) == config.vocab_size:
        return ()
    if any(config.vocab_size == -(-len(tokens) // multiple) * multiple for multiple in _PADDED_TO):
        return (f"the vocabulary has {len(tokens):,} tokens, the word table {config.vocab_size:,} rows: it is padded",)
    raise UserError(
        f"{path} has {len(tokens)} tokens, but the configuration has vocab_size {config.vocab_size}; they must belong "
        "together"
    )


def is_uncased(vocab: str) -> bool:
    """Whether a vocabulary looks uncased: fewer than one token in a thousand has a capital from A to Z.

    Tokens in brackets, as [MASK], do not count. The released uncased ones have up to two others.
    """
    tokens = lines_of(vocab)
    return sum(bool(re.search("[A-Z]", token)) and not token.startswith("[") for token in tokens) * 1000 < len(tokens)
