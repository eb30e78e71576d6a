"""Multiple choice: which of several endings continues a text (SWAG; paper, section 4.4).

For each ending, the model scores the sequence [CLS] prompt [SEP] ending [SEP]. The highest score wins.

N choices
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import class_labels, input_adapters
from official_bert.kinds.features import EXAMPLE, LABELS, Array, Features, Outputs, check_length, from_rows
from official_bert.kinds.names import MULTIPLE_CHOICE
from official_bert.kinds.probabilities import compute_margins, softmax
from official_bert.kinds.spec import KindSpec, Outcome
from official_bert.kinds.synthetic_texts import SyntheticTexts
from official_bert.tokenization import pairs, truncation
from official_bert.tokenization.exact import CLS, SEP, FullTokenizer

NUM_CHOICES = 4

_LEAST_LENGTH = 4  # [CLS], two [SEP] and one token of text


@dataclasses.dataclass(frozen=True)
class Example:
    """A prompt, its possible endings, and the index of the correct ending, or None if it is unknown."""

    prompt: str
    endings: tuple[str, ...]
    label: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoiceSpec(KindSpec):
    """The KindSpec of multiple choice. A prediction is the probability of each ending, [N]."""

    kind: ClassVar[str] = MULTIPLE_CHOICE
    decoding: ClassVar[str] = "Apply softmax to the logits of the choices. The choice is the most probable one."
    best_metric: ClassVar[str] = "accuracy"
    score_names: ClassVar[tuple[str, ...]] = ("accuracy",)
    discrete_outputs: ClassVar[tuple[str, ...]] = ("choice",)
    answer_dtypes: ClassVar[Mapping[str, Any]] = {"choice": np.int32, "probabilities": np.float32}
    required_settings: ClassVar[tuple[str, ...]] = ("num_choices",)

    pair: bool = True
    num_choices: int = NUM_CHOICES

    def examples(self, x: Any, y: Any) -> list[Example]:
        is_columns = isinstance(x, tuple) and len(x) == 2 and not isinstance(x[0], tuple)  # a tuple of two rows is not
        if is_columns:
            columns = [input_adapters.to_list(each, f"x[{number}]") for number, each in enumerate(x)]
            input_adapters.check_same_length(len(columns[0]), columns[1], "x[1]")
            rows: list[Any] = list(zip(*columns, strict=True))
        else:
            rows = input_adapters.to_list(x)
        for number, row in enumerate(rows):
            if not isinstance(row, list | tuple | np.ndarray) or len(row) != 2:
                raise UserError(
                    f"x[{number}] is {input_adapters.format_value(row)}; expected a prompt and its {self.num_choices} "
                    "endings"
                )
        numbers: list[Any] = [None] * len(rows)
        if y is not None:
            numbers = class_labels.class_numbers(
                input_adapters.to_list(y, "y"), [str(number) for number in range(self.num_choices)]
            )
        input_adapters.check_same_length(len(rows), numbers, "y")
        examples = []
        for number, ((prompt, endings), label) in enumerate(zip(rows, numbers, strict=True)):
            texts = input_adapters.to_texts(endings, f"x[{number}]")
            if len(texts) != self.num_choices:
                raise UserError(f"x[{number}] has {len(texts)} endings; expected {self.num_choices}")
            examples.append(Example(input_adapters.to_texts([prompt], f"x[{number}]")[0], tuple(texts), label))
        return examples

    @property
    def text_inputs(self) -> tuple[str, ...]:
        return ("prompt", "endings")

    def synthetic_texts(self, texts: SyntheticTexts, max_seq_length: int) -> dict[str, list[Any]]:
        prompts, seconds = zip(*texts.pairs(max_seq_length - 3), strict=True)
        count = len(seconds)
        endings = [[seconds[(row + choice) % count] for choice in range(self.num_choices)] for row in range(count)]
        return {"prompt": list(prompts), "endings": endings}

    def collect_texts(self, examples: Sequence[Example]) -> dict[str, list[Any]]:
        prompts, endings = [example.prompt for example in examples], [list(example.endings) for example in examples]
        return {"prompt": prompts, "endings": endings}

    def named_answers(self, predictions: Array, examples: Sequence[Example]) -> dict[str, list[Any]]:
        return {"choice": choose_endings(predictions), "probabilities": [row.tolist() for row in predictions]}

    def margins(self, outputs: Outputs, features: Features, examples: Sequence[Example]) -> list[float]:
        return compute_margins(self.decode(outputs, features, examples))

    def featurize(self, examples: Sequence[Example], tokenizer: FullTokenizer, max_seq_length: int) -> Features:
        """Returns the Features of examples, with one sequence for each ending.

        They have targets only if all labels are known.
        """
        check_length(max_seq_length, _LEAST_LENGTH)
        packed = [pack(example, tokenizer, max_seq_length) for example in examples]
        sequences = [sequence for sequences, _ in packed for sequence in sequences]
        labels = [example.label for example in examples]
        return from_rows(
            [np.array(ids, np.int32) for ids, _ in sequences],
            [np.array(segment_ids, np.int32) for _, segment_ids in sequences],
            {} if None in labels else {LABELS: np.array(labels, np.int32)},
            {EXAMPLE: np.arange(len(examples))},
            self.num_choices,
            [is_truncated for _, is_truncated in packed],
        )

    def blank_targets(self, tokens: int) -> dict[str, Array]:
        return {LABELS: np.zeros(1, np.int32)}

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[Example]) -> Array:
        return softmax(np.asarray(outputs, np.float64).reshape(-1, self.num_choices))

    def scores(self, predictions: Array, examples: Sequence[Example]) -> dict[str, float]:
        return {"accuracy": accuracy(choose_endings(predictions), examples)}

    def outcomes(self, predictions: Array, examples: Sequence[Example]) -> list[Outcome]:
        return [
            Outcome(
                example.prompt, example.endings[example.label or 0], example.endings[choice], example.label == choice
            )
            for example, choice in zip(examples, choose_endings(predictions), strict=True)
        ]


def pack(
    example: Example, tokenizer: FullTokenizer, max_seq_length: int
) -> tuple[list[tuple[list[int], list[int]]], bool]:
    """Tokenizes an example into one sequence [CLS] prompt [SEP] ending [SEP] for each ending.

    Sequences that are too long lose tokens at the end of the longer text, as in the original. They have no padding.

    Returns:
        The token ids and segment ids of each sequence, and whether any sequence was truncated.
    """
    cls, sep = tokenizer.convert_tokens_to_ids([CLS, SEP])
    prompt = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(example.prompt))
    sequences, is_truncated = [], False
    for text in example.endings:
        a, b = prompt, tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
        is_truncated |= len(a) + len(b) > max_seq_length - 3
        sequences.append(pairs.join(cls, sep, *truncation.truncate_pair(a, b, max_seq_length - 3)))
    return sequences, is_truncated


def choose_endings(predictions: Array) -> list[int]:
    """Returns the index of the most probable ending of each example.

    Args:
        predictions: Probabilities of the endings, [E, N].
    """
    return [int(np.argmax(row)) for row in predictions]


def accuracy(choices: Sequence[int], examples: Sequence[Example]) -> float:
    """Returns the share of correct choices, from 0 to 1.

    Args:
        choices: The index of the chosen ending of each example.
        examples: The examples, with labels.

    Raises:
        UserError: If the label of an example is unknown.
    """
    for number, example in enumerate(examples):
        if example.label is None:
            raise UserError(f"example {number} has no label to compare with; evaluate on a file with labels")
    right = sum(choice == example.label for choice, example in zip(choices, examples, strict=True))
    return right / max(len(examples), 1)
