"""Which of several endings follows a text.

B examples, N endings
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from official_bert.errors import UserError
from official_bert.keras_models import inputs
from official_bert.keras_models.base import BaseTextModel
from official_bert.modeling.task_models import MULTIPLE_CHOICE, build_multiple_choice_model
from official_bert.tasks import multiple_choice, multiple_choice_task, sequences
from official_bert.tasks.multiple_choice import NUM_CHOICES, Example
from official_bert.tasks.task import Features


@keras.saving.register_keras_serializable(package="official_bert")
class MultipleChoice(BaseTextModel):
    """Which of four endings follows (SWAG; paper, section 4.4).

    x is prompts with their endings: a tuple of a column of texts and a column of lists of four texts, or rows of both;
    y is the number of the right ending. predict returns probabilities, float64 [B, N]; choose returns numbers.

    Args:
        config: the encoder's sizes.
        vocab: the text of its vocab.txt.
        settings: as of BaseTextModel.
    """

    kind = MULTIPLE_CHOICE
    default_name = "multiple_choice"
    pair = True

    def _build_core(self, encoder: keras.Model, seed: int) -> keras.Model:
        return build_multiple_choice_model(encoder, NUM_CHOICES, seed=seed)

    def _task_spec(self) -> dict[str, Any]:
        return {**super()._task_spec(), "pair": True, "num_choices": NUM_CHOICES}

    def _examples(self, x: Any, y: Any) -> list[Example]:
        rows = (
            list(zip(inputs.as_list(x[0]), inputs.as_list(x[1]), strict=True)) if _is_columns(x) else inputs.as_list(x)
        )
        numbers: list[Any] = [None] * len(rows)
        if y is not None:
            numbers = inputs.numbers_of(inputs.as_list(y), [str(number) for number in range(NUM_CHOICES)])
        inputs.check_same_length(len(rows), numbers, "y")
        examples = []
        for number, (row, label) in enumerate(zip(rows, numbers, strict=True)):
            prompt, endings = row
            texts = inputs.as_texts(endings, f"x[{number}]")
            if len(texts) != NUM_CHOICES:
                raise UserError(f"x[{number}] has {len(texts)} endings; expected {NUM_CHOICES}")
            examples.append(Example(inputs.as_texts([prompt], f"x[{number}]")[0], tuple(texts), label))
        return examples

    def _featurize(self, examples: Sequence[Example]) -> Features:
        return multiple_choice_task.featurize(examples, self._tokenizer, self.max_seq_length)

    def _decode(self, outputs: Any, features: Features, examples: Sequence[Example]) -> Any:
        return sequences.softmax(np.asarray(outputs, np.float64).reshape(-1, NUM_CHOICES))

    def _weights_by_class(self, class_weight: Mapping[Any, float]) -> Any:
        raise UserError("endings are no classes; leave out class_weight")

    def choose(self, x: Any, batch_size: int | None = None) -> list[int]:
        """Returns the number of the likeliest ending of each prompt."""
        return multiple_choice.choices_from_logits(self.predict(x, batch_size))


def _is_columns(x: Any) -> bool:
    """Whether x is a column of prompts and one of lists of endings, rather than rows of both."""
    return isinstance(x, tuple) and len(x) == 2 and not isinstance(x[0], tuple)
