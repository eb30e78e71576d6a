"""GLUE (Wang et al., arXiv:1804.07461): the nine tasks and the diagnostic set, in the files of its release.

The classes are in the original's order. The files are tab-separated and know no quotes.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from official_bert import files, task_models
from official_bert.errors import UserError
from official_bert.tasks import scores, sequences
from official_bert.tasks.bad_rows import BadRows
from official_bert.tasks.sequences import TextExample
from official_bert.tasks.task import DEV, TEST, TRAIN, Array, Task
from official_bert.tasks.tfds_data import DataSet

_BINARY = ("0", "1")
_ENTAILS = ("entailment", "not_entailment")
_RELATIONS = ("contradiction", "entailment", "neutral")
_LONGEST_SCORE = 5.0  # STS-B: from 0 to 5

Metrics = Callable[[Array, Array], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class _Source:
    """Where the files and tensorflow-datasets have the examples of a task.

    Attributes:
        submission: names of the leaderboard's file for each test split.
        text_a: the column of the first text.
        text_b: of the second one, or None.
        label: of the label, in files that have labels.
        labels: the classes' names, as the files and the submissions have them; None for a number.
        splits: file names without .tsv, by split; the first that is there is taken.
        without_header: for files that have no header, by split: the columns' names.
        tfds_name: of the configuration in tensorflow-datasets.
        tfds_text: its names of the texts.
        tfds_labels: where its labels have other names: ours by theirs.
    """

    submission: dict[str, str]
    text_a: str
    text_b: str | None
    label: str
    labels: tuple[str, ...] | None
    tfds_name: str
    tfds_text: tuple[str, ...]
    splits: dict[str, tuple[str, ...]] = dataclasses.field(
        default_factory=lambda: {split: (split,) for split in (TRAIN, DEV, TEST)}
    )
    without_header: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    tfds_labels: dict[str, str] = dataclasses.field(default_factory=dict)


def _reader(source: _Source) -> Callable[[str, str, BadRows], list[TextExample]]:
    def read(data_dir: str, split: str, bad_rows: BadRows) -> list[TextExample]:
        path = _path(source, data_dir, split)
        lines = files.read_text(path).removeprefix("\ufeff").removesuffix("\n").split("\n")
        columns = source.without_header.get(split)
        first = 1
        if columns is None:
            columns, first = tuple(lines[0].rstrip("\r").split("\t")), 2
        wanted = [source.text_a, *([source.text_b] if source.text_b else [])]
        is_scored = split.startswith(DEV)
        absent = [name for name in (*wanted, *([source.label] if is_scored else [])) if name not in columns]
        if absent:
            raise UserError(f"{path}, line 1: no column {', '.join(absent)} among {', '.join(columns)}")
        examples = []
        for number, line in enumerate(lines[first - 1 :], first):
            # Some releases have a column more at the end of some rows; none may be missing.
            values = dict(zip(columns, line.rstrip("\r").split("\t"), strict=False))
            if len(values) < len(columns):
                bad_rows.add(path, number, f"{len(values)} columns; expected {len(columns)}: {', '.join(columns)}")
                continue
            label = None
            if source.label in columns:
                label, problem = _label(values[source.label], source.labels)
                if problem:
                    bad_rows.add(path, number, problem)
                    continue
            # Every row of a test part is predicted: leaderboards want all of them.
            if not split.startswith(TEST) and not all(values[name].strip() for name in wanted):
                bad_rows.add(path, number, f"an empty text in {' or '.join(wanted)}; expected a sentence")
                continue
            text_b = values[source.text_b] if source.text_b else None
            examples.append(TextExample(values.get("index", str(number - first)), values[source.text_a], text_b, label))
        if not examples:
            raise UserError(f"{path} has no examples")
        return examples

    return read


def _path(source: _Source, data_dir: str, split: str) -> str:
    names = source.splits.get(split)
    if names is None:
        raise UserError(
            f"there is no {split} part of this task, which has only {', '.join(source.splits)}; for the diagnostic set "
            "give the --output_dir of a run on mnli as --init, and --do_predict"
        )
    paths = [os.path.join(data_dir, f"{name}.tsv") for name in names]
    found = [path for path in paths if files.exists(path)]
    if not found:
        raise UserError(f"there is no {' or '.join(paths)}; give the folder of the task's files as --data_dir")
    return found[0]


def _label(text: str, labels: tuple[str, ...] | None) -> tuple[Any, str]:
    """The label, and what is wrong with it."""
    if labels is not None:
        if text in labels:
            return labels.index(text), ""
        return None, f"unknown label {text!r}; expected one of {', '.join(labels)}"
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if 0.0 <= value <= _LONGEST_SCORE:
        return value, ""
    return None, f"score {text!r}; expected a number from 0 to {_LONGEST_SCORE:g}"


def _tfds_reader(source: _Source) -> Callable[[str | None, str, BadRows], list[TextExample]]:
    def read_tfds(data_dir: str | None, split: str, bad_rows: BadRows) -> list[TextExample]:
        data = DataSet(f"glue/{source.tfds_name}", data_dir)
        examples = []
        for row in data.rows(split.replace(f"{DEV}_", "validation_")):
            texts = [row[name] for name in source.tfds_text]
            label = row["label"]
            if source.labels is None:
                label = label if label >= 0 else None
            elif label is not None:
                label = source.labels.index(source.tfds_labels.get(label, label))
            examples.append(TextExample(str(row["idx"]), texts[0], texts[1] if len(texts) > 1 else None, label))
        return sorted(examples, key=lambda example: int(example.id))

    return read_tfds


def _writer(source: _Source, kind: str) -> Callable[[str, str, Array, Sequence[TextExample]], list[str]]:
    """The leaderboard's file for test splits; for others a file of predictions beside what was expected."""

    def write(folder: str, split: str, predictions: Array, examples: Sequence[TextExample]) -> list[str]:
        labels = sequences.predicted_labels(kind, predictions)
        if split in source.submission:
            shown = [
                f"{min(max(label, 0.0), _LONGEST_SCORE):.3f}" if source.labels is None else source.labels[label]
                for label in labels
            ]
            rows = [f"{example.id}\t{name}" for example, name in zip(examples, shown, strict=True)]
            path = os.path.join(folder, f"{source.submission[split]}.tsv")
            files.write_text(path, "\n".join(["index\tprediction", *rows]) + "\n")
        else:
            path = sequences.write_table(folder, split, kind, source.labels, predictions, examples)
        return [path]

    return write


def _accuracy(predicted: Array, expected: Array) -> dict[str, float]:
    return {"accuracy": scores.accuracy(predicted, expected)}


def _accuracy_and_f1(predicted: Array, expected: Array) -> dict[str, float]:
    return {**_accuracy(predicted, expected), "f1": scores.f1(predicted, expected)}


def _matthews(predicted: Array, expected: Array) -> dict[str, float]:
    return {"matthews_correlation": scores.matthews(predicted, expected), **_accuracy(predicted, expected)}


def _correlations(predicted: Array, expected: Array) -> dict[str, float]:
    return {"pearson": scores.pearson(predicted, expected), "spearman": scores.spearman(predicted, expected)}


def _task(name: str, source: _Source, compute: Metrics, best_metric: str, **more: Any) -> Task:
    kind = task_models.REGRESSION if source.labels is None else task_models.CLASSIFICATION

    def metrics(predictions: Array, examples: Sequence[TextExample]) -> dict[str, float]:
        expected = np.array([example.label for example in examples])
        return compute(np.array(sequences.predicted_labels(kind, predictions)), expected)

    return Task(
        name=name,
        kind=kind,
        labels=source.labels,
        pair=source.text_b is not None,
        read=_reader(source),
        featurize=sequences.featurizer(kind, len(source.labels or ())),
        decode=sequences.decoder(kind),
        metrics=metrics,
        best_metric=best_metric,
        write_predictions=_writer(source, kind),
        outcomes=sequences.outcomes_of(kind, source.labels),
        read_tfds=_tfds_reader(source),
        **more,
    )


_MATCHED, _MISMATCHED = "{}_matched", "{}_mismatched"
_MNLI_SPLITS = [TRAIN, *(name.format(split) for split in (DEV, TEST) for name in (_MATCHED, _MISMATCHED))]

TASKS = {
    task.name: task
    for task in (
        _task(
            "cola",
            _Source(
                {TEST: "CoLA"}, "sentence", None, "label", _BINARY, "cola", ("sentence",),
                without_header=dict.fromkeys((TRAIN, DEV), ("source", "label", "star", "sentence")),
                tfds_labels={"unacceptable": "0", "acceptable": "1"},
            ),
            _matthews,
            "matthews_correlation",
        ),
        _task(
            "sst-2",
            _Source(
                {TEST: "SST-2"}, "sentence", None, "label", _BINARY, "sst2", ("sentence",),
                tfds_labels={"negative": "0", "positive": "1"},
            ),
            _accuracy,
            "accuracy",
        ),
        _task(
            "mrpc",
            _Source(
                {TEST: "MRPC"}, "#1 String", "#2 String", "Quality", _BINARY, "mrpc", ("sentence1", "sentence2"),
                tfds_labels={"not_equivalent": "0", "equivalent": "1"},
            ),
            _accuracy_and_f1,
            "accuracy",
        ),
        _task(
            "sts-b",
            _Source({TEST: "STS-B"}, "sentence1", "sentence2", "score", None, "stsb", ("sentence1", "sentence2")),
            _correlations,
            "pearson",
        ),
        _task(
            "qqp",
            _Source(
                {TEST: "QQP"}, "question1", "question2", "is_duplicate", _BINARY, "qqp", ("question1", "question2"),
                tfds_labels={"not_duplicate": "0", "duplicate": "1"},
            ),
            _accuracy_and_f1,
            "accuracy",
        ),
        _task(
            "mnli",
            _Source(
                {_MATCHED.format(TEST): "MNLI-m", _MISMATCHED.format(TEST): "MNLI-mm"},
                "sentence1", "sentence2", "gold_label", _RELATIONS, "mnli", ("premise", "hypothesis"),
                splits={split: (split,) for split in _MNLI_SPLITS},
            ),
            _accuracy,
            "accuracy",
            eval_splits=(_MATCHED.format(DEV), _MISMATCHED.format(DEV)),
            test_splits=(_MATCHED.format(TEST), _MISMATCHED.format(TEST)),
        ),
        _task(
            "qnli",
            _Source({TEST: "QNLI"}, "question", "sentence", "label", _ENTAILS, "qnli", ("question", "sentence")),
            _accuracy,
            "accuracy",
        ),
        _task(
            "rte",
            _Source({TEST: "RTE"}, "sentence1", "sentence2", "label", _ENTAILS, "rte", ("sentence1", "sentence2")),
            _accuracy,
            "accuracy",
        ),
        _task(
            "wnli",
            _Source(
                {TEST: "WNLI"}, "sentence1", "sentence2", "label", _BINARY, "wnli", ("sentence1", "sentence2"),
                tfds_labels={"not_entailment": "0", "entailment": "1"},
            ),
            _accuracy,
            "accuracy",
        ),
        # The diagnostic set has no training data: it is for models of mnli.
        _task(
            "ax",
            _Source(
                {TEST: "AX"}, "sentence1", "sentence2", "label", _RELATIONS, "ax", ("premise", "hypothesis"),
                splits={TEST: ("AX", "diagnostic")},
            ),
            _matthews,
            "matthews_correlation",
            eval_splits=(),
        ),
    )
}  # fmt: skip


def with_windows(task: Task, doc_stride: int) -> Task:
    """Returns the task with windows of long texts, whose logits are averaged, in place of cut texts."""
    featurize = sequences.featurizer(task.kind, len(task.labels or ()), doc_stride)
    return dataclasses.replace(task, featurize=featurize, settings={**task.settings, "doc_stride": doc_stride})
