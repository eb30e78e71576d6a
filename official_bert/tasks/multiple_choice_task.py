"""SWAG and CODAH as tasks of run_finetuning."""

import os
from collections.abc import Sequence

import numpy as np

from official_bert import files, task_models
from official_bert.fast_tokenization import FastTokenizer
from official_bert.tasks import data_files, multiple_choice
from official_bert.tasks.bad_rows import BadRows
from official_bert.tasks.multiple_choice import NUM_CHOICES, Example
from official_bert.tasks.task import (
    DEV,
    EXAMPLE,
    LABELS,
    TEST,
    TRAIN,
    Defaults,
    Features,
    Outcome,
    Task,
    check_length,
    from_rows,
)  # fmt: skip

# What the files of each part are called, without the ending: SWAG's are train.csv, val.csv and test.csv.
_NAMES = {TRAIN: ("train",), DEV: ("dev", "val"), TEST: ("test",)}
_LEAST_LENGTH = 4  # [CLS], two [SEP] and one more


def _task(name: str, endings: Sequence[str], test_has_labels: bool) -> Task:
    def read(data_dir: str, split: str, bad_rows: BadRows) -> list[Example]:
        path = data_files.find(data_dir, split, [f"{part}{ending}" for part in _NAMES[split] for ending in endings])
        return multiple_choice.read(path, bad_rows, need_labels=split != TEST or test_has_labels)

    return Task(
        name=name,
        kind=task_models.MULTIPLE_CHOICE,
        labels=None,
        pair=True,
        read=read,
        featurize=featurize,
        decode=lambda outputs, features, examples: multiple_choice.choices_from_logits(outputs),
        metrics=lambda choices, examples: {"accuracy": multiple_choice.accuracy(choices, examples)},
        best_metric="accuracy",
        write_predictions=write_predictions,
        outcomes=outcomes,
        eval_splits=(DEV, TEST) if test_has_labels else (DEV,),
        test_splits=() if test_has_labels else (TEST,),
        num_choices=NUM_CHOICES,
        defaults=Defaults(train_batch_size=16, learning_rate=2e-5),
    )


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


def write_predictions(folder: str, split: str, choices: Sequence[int], examples: Sequence[Example]) -> list[str]:
    """Writes the number of the chosen ending of each example, a line each: what the leaderboard takes."""
    path = os.path.join(folder, f"{split}_predictions.csv")
    files.write_text(path, "".join(f"{choice}\n" for choice in choices))
    return [path]


def outcomes(choices: Sequence[int], examples: Sequence[Example]) -> list[Outcome]:
    """Returns for each example its prompt, the ending expected and the one chosen."""
    return [
        Outcome(example.prompt, example.endings[example.label or 0], example.endings[choice], example.label == choice)
        for example, choice in zip(examples, choices, strict=True)
    ]


TASKS = {
    "swag": _task("swag", (".csv", ".jsonl"), test_has_labels=False),
    "codah": _task("codah", (".tsv",), test_has_labels=True),
}
