"""SWAG and CODAH as tasks of run_finetuning."""

import os
from collections.abc import Sequence

import numpy as np

from official_bert.modeling import task_models
from official_bert.tasks import data_files, multiple_choice
from official_bert.tasks.multiple_choice import NUM_CHOICES, Example
from official_bert.tasks.options import CODAH, SWAG, MultipleChoiceOptions
from official_bert.tasks.task import (
    DEV,
    EXAMPLE,
    LABELS,
    TEST,
    TRAIN,
    Features,
    Outcome,
    Outputs,
    Task,
    check_length,
    from_rows,
)  # fmt: skip
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files
from official_bert.utils.bad_rows import BadRows

# What the files of each part are called, without the ending: SWAG's are train.csv, val.csv and test.csv.
_NAMES = {TRAIN: ("train",), DEV: ("dev", "val"), TEST: ("test",)}
_ENDINGS = {SWAG: (".csv", ".jsonl"), CODAH: (".tsv",)}
_LEAST_LENGTH = 4  # [CLS], two [SEP] and one more


class MultipleChoiceTask(Task):
    """SWAG or CODAH; CODAH's test part has labels.

    Args:
        name: swag or codah.
        options: where the data are.
    """

    kind = task_models.MULTIPLE_CHOICE
    pair = True
    num_choices = NUM_CHOICES
    best_metric = "accuracy"

    def __init__(self, name: str, options: MultipleChoiceOptions) -> None:
        self._options = options
        self.name = name
        self._test_has_labels = name == CODAH
        self.eval_splits = (DEV, TEST) if self._test_has_labels else (DEV,)
        self.test_splits = () if self._test_has_labels else (TEST,)

    def read(self, split: str, bad_rows: BadRows) -> list[Example]:
        names = [f"{part}{ending}" for part in _NAMES[split] for ending in _ENDINGS[self.name]]
        path = data_files.find(self._options.data_dir, split, names)
        return multiple_choice.read(path, bad_rows, need_labels=split != TEST or self._test_has_labels)

    def featurize(self, examples: Sequence[Example], tokenizer: FastTokenizer, max_seq_length: int) -> Features:
        return featurize(examples, tokenizer, max_seq_length)

    def decode(self, outputs: Outputs, features: Features, examples: Sequence[Example]) -> list[int]:
        return multiple_choice.choices_from_logits(outputs)

    def metrics(self, choices: Sequence[int], examples: Sequence[Example]) -> dict[str, float]:
        return {"accuracy": multiple_choice.accuracy(choices, examples)}

    def write_predictions(
        self, folder: str, split: str, choices: Sequence[int], examples: Sequence[Example]
    ) -> list[str]:
        """Writes the number of the chosen ending of each example, a line each: what the leaderboard takes."""
        path = os.path.join(folder, f"{split}_predictions.csv")
        files.write_text(path, "".join(f"{choice}\n" for choice in choices))
        return [path]

    def outcomes(self, choices: Sequence[int], examples: Sequence[Example]) -> list[Outcome]:
        return [
            Outcome(
                example.prompt, example.endings[example.label or 0], example.endings[choice], example.label == choice
            )
            for example, choice in zip(examples, choices, strict=True)
        ]


def featurize(examples: Sequence[Example], tokenizer: FastTokenizer, max_seq_length: int) -> Features:
    """Returns four sequences for each example; without targets if a label is not known."""
    check_length(max_seq_length, _LEAST_LENGTH)
    sequences = [
        pair for example in examples for pair in multiple_choice.pack(example, tokenizer.exact, max_seq_length)
    ]
    labels = [example.label for example in examples]
    return from_rows(
        [np.array(ids, np.int32) for ids, _ in sequences],
        [np.array(segment_ids, np.int32) for _, segment_ids in sequences],
        {} if None in labels else {LABELS: np.array(labels, np.int32)},
        {EXAMPLE: np.arange(len(examples))},
        NUM_CHOICES,
    )
