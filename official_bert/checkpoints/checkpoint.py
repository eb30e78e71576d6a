"""The contents of a checkpoint in memory, independent of the file format.

Tensors are named by the paths of their Keras variables in this library's models, such as pooler/kernel. A part is a
group of tensors that a checkpoint contains completely or not at all: the encoder, the pooler, or one head.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
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

# The beginning of the names of each part's layers. A checkpoint has either all tensors of a part or none. The encoder,
# which every checkpoint has, consists of all layers that are in no other part.
PARTS = {
    ENCODER: "",
    POOLER: "pooler",
    MASKED_LM: "masked_lm",
    NEXT_SENTENCE: "next_sentence",
    SEQUENCE_CLASSIFIER: "sequence_classifier",
    TOKEN_CLASSIFIER: "token_classifier",
    MULTIPLE_CHOICE: "multiple_choice",
    QUESTION_ANSWERING: "question_answering",
}
PRETRAINING = frozenset({ENCODER, POOLER, MASKED_LM, NEXT_SENTENCE})
SLOTS = ("adam_m", "adam_v")
# The heads of fine-tuned models.
TASK_HEADS = (SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER, MULTIPLE_CHOICE, QUESTION_ANSWERING)
# Of these, the heads that read the pooler's output. The others read the vectors of the tokens.
POOLED_HEADS = (SEQUENCE_CLASSIFIER, MULTIPLE_CHOICE)
# The number of outputs of the heads that are not classifiers.
NUM_OUTPUTS = {MULTIPLE_CHOICE: 1, QUESTION_ANSWERING: 2}
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
        weights: float32 arrays by path of the Keras variable.
        vocab: The text of the vocab.txt, if known.
        casing: The tokenizer's settings: lower-casing, stripping of accents, and added tokens.
        states_casing: Whether the checkpoint's files state the casing. Otherwise it was set by the user or inferred
            from the vocabulary.
        slots: Adam's moments, by the variable's name followed by /adam_m or /adam_v. Empty if they were not read.
        step: The number of training steps, if known.
        labels: The classes' names in the order of the logits, or None if unknown.
        kind: What a sequence classifier was trained for (classification, multi_label or regression), or None if
            unknown.
        task_spec: The contents of task.json if this library fine-tuned the model. Otherwise None.
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
    task_spec: Mapping[str, Any] | None = None
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
        found = {find_part(path) for path in self.weights}
        return [part for part in PARTS if part in found]


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


def find_part(path: str) -> str:
    """Returns the part that a variable belongs to, given its path."""
    return next(part for part in reversed(PARTS) if path.startswith(PARTS[part]))
