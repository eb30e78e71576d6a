"""What a checkpoint holds, whatever its format.

V vocabulary, H hidden size, T segment types, L longest sequence, I intermediate size, C classes
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt

from official_bert.modeling.config import BertConfig
from official_bert.tokenization.casing import UNCASED, Casing
from official_bert.tokenization.exact import FullTokenizer

Array = npt.NDArray[Any]

# The model files beside the weights: the first two as in Google's releases.
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
# Of fine-tuned models.
TASK_HEADS = (SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER, MULTIPLE_CHOICE, QUESTION_ANSWERING)
# Where a classifier's classes can be counted.
CLASSIFIER_BIASES = ("sequence_classifier/bias", "token_classifier/bias")


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
        casing: whether the vocabulary is uncased, and without accents.
        slots: the optimizer's moments, by our names with /adam_m or /adam_v; empty without them.
        step: the number of steps trained, where it is known.
        labels: the classes' names, where they are known.
        kind: of task the classifier of texts is for, one of modeling.task_models.KINDS, where that is known.
        task_spec: what the task.json of a fine-tuned model of ours holds; else None.
        notes: what the user should know of how it was read.
        inventory: what became of the tensors in the file that it was read from.
    """

    config: BertConfig
    weights: dict[str, Array]
    vocab: str | None = None
    casing: Casing = UNCASED
    slots: dict[str, Array] = dataclasses.field(default_factory=dict)
    step: int | None = None
    labels: tuple[str, ...] | None = None
    kind: str | None = None
    task_spec: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    inventory: Inventory | None = None

    def tokenizer(self, source: str) -> FullTokenizer:
        """Returns the tokenizer of its vocabulary, which it must have; `source` is what errors call it."""
        assert self.vocab is not None
        return FullTokenizer.from_vocab(self.vocab, source=source, **self.casing._asdict())

    @property
    def parts(self) -> list[str]:
        """The parts that it has."""
        return [part for part, shapes in PARTS.items() if next(iter(shapes)).format(0) in self.weights]


@dataclasses.dataclass(frozen=True)
class LoadOverrides:
    """What a user says of a checkpoint that does not say it itself.

    Attributes:
        bert_config_file: for a folder without a configuration.
        vocab_file: for a folder without a vocabulary.
        do_lower_case: whether the vocabulary is uncased; None where the folder says it, or to find out.
        strip_accents: whether texts lose their accents; None where the folder says it, or to go by do_lower_case.
        optimizer: whether to read the optimizer's moments and the step.
        replace: whether vocabulary and casing are taken where the folder says otherwise; else that is an error.
    """

    bert_config_file: str | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    optimizer: bool = False
    replace: bool = False


def numbered_labels(classes: int) -> tuple[str, ...]:
    """Returns what stands in the place of the names of classes that have none, as Hugging Face writes it."""
    return tuple(f"LABEL_{number}" for number in range(classes))


def names_by_variable(table: Mapping[str, str], suffixes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns a format's names of our variables, by our names.

    Args:
        table: its names of layers, by ours; of a variable that is not called by its layer, the whole name by ours.
        suffixes: what it calls a layer's variables, by ours (kernel, bias, ...); those that are missing are called so
            there too.
    """
    names = {}
    for name in (name for shapes in PARTS.values() for name in shapes):
        layer, variable = name.rsplit("/", 1)
        if name in table:
            names[name] = table[name]
        elif layer in table:
            names[name] = table[layer] + (suffixes or {}).get(variable, f"/{variable}")
    return names


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
