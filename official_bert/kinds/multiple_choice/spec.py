"""Multiple choice: which of several endings continues a text (SWAG; paper, section 4.4).

For each ending, the model scores the sequence [CLS] prompt [SEP] ending [SEP]. The highest score wins.

N choices
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import class_labels, input_adapters, scores, text_spec
from official_bert.kinds.features import EXAMPLE, LABELS, Array, Features, Outputs
from official_bert.kinds.names import MULTIPLE_CHOICE
from official_bert.kinds.probabilities import compute_margins, softmax
from official_bert.kinds.spec import KindSpec, Outcome
from official_bert.kinds.synthetic_texts import SyntheticTexts
from official_bert.kinds.text_spec import TextExample
from official_bert.tokenization.exact import FullTokenizer

NUM_CHOICES = 4


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
    score_names: ClassVar[tuple[str, ...]] = ("accuracy",)
    discrete_outputs: ClassVar[tuple[str, ...]] = ("choice",)
    answer_dtypes: ClassVar[Mapping[str, Any]] = {"choice": np.int32, "probabilities": np.float32}
    required_settings: ClassVar[tuple[str, ...]] = ("num_choices",)
    text_inputs: ClassVar[tuple[str, ...]] = ("prompt", "endings")

    pair: bool = True
    num_choices: int = NUM_CHOICES

    def make_examples(self, x: Any, y: Any) -> list[Example]:
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
            examples.append(Example(input_adapters.to_text(prompt, f"x[{number}]"), tuple(texts), label))
        return examples

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
        rows = [TextExample("", example.prompt, ending) for example in examples for ending in example.endings]
        features = text_spec.featurize(rows, tokenizer, max_seq_length)
        labels = [example.label for example in examples]
        targets = {} if None in labels else {LABELS: np.array(labels, np.int32)}
        return features.group_rows(self.num_choices, targets, {EXAMPLE: np.arange(len(examples))})

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[Example]) -> Array:
        return softmax(np.asarray(outputs, np.float64).reshape(-1, self.num_choices))

    def scores(self, predictions: Array, examples: Sequence[Example]) -> dict[str, float]:
        return {"accuracy": scores.accuracy(choose_endings(predictions), np.array([each.label for each in examples]))}

    def outcomes(self, predictions: Array, examples: Sequence[Example]) -> list[Outcome]:
        return [
            Outcome(
                example.prompt, example.endings[example.label or 0], example.endings[choice], example.label == choice
            )
            for example, choice in zip(examples, choose_endings(predictions), strict=True)
        ]


def choose_endings(predictions: Array) -> list[int]:
    """Returns the index of the most probable ending of each example.

    Args:
        predictions: Probabilities of the endings, [E, N].
    """
    return [int(np.argmax(row)) for row in predictions]
