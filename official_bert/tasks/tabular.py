"""Your own data: texts or pairs with labels in named columns, of CSV, TSV, JSON lines or TensorFlow Datasets."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.modeling import task_models
from official_bert.tasks import scores, sequences
from official_bert.tasks.options import TABLE, TFDS, TableOptions
from official_bert.tasks.sequences import SequenceTask, TextExample
from official_bert.tasks.task import DEV, TEST, TRAIN, Array
from official_bert.tasks.tfds_data import DataSet
from official_bert.utils import tables
from official_bert.utils.bad_rows import SKIP, BadRows

_MOST_LABELS_SHOWN = 10


def part_of(options: TableOptions, split: str) -> str:
    """Returns the file (of TensorFlow Datasets, the part) that the options name for train, dev or test.

    Raises:
        UserError: they name none.
    """
    path = {TRAIN: options.train_file, DEV: options.eval_file, TEST: options.predict_file}[split]
    if path is None:
        raise UserError(f"no file was given for {split}; see --train_file, --eval_file and --predict_file")
    return path


def source_name(options: TableOptions, part: str) -> str:
    """Returns what errors call a file, or a part of a data set of TensorFlow Datasets."""
    return f"{options.tfds_name}, part {part}" if options.source == TFDS else part


def rows_in(options: TableOptions, source: str, bad_rows: BadRows) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """As `tables.read_rows`, for a file or a part of the data set of TensorFlow Datasets, as the options say."""
    if options.source == TFDS:
        if not options.tfds_name:
            raise UserError("--task=table --source=tfds needs --tfds_name, such as imdb_reviews")
        for number, values in enumerate(DataSet(options.tfds_name, options.data_dir).rows(source), start=1):
            yield f"row {number}", values
        return
    for line, values in tables.read_rows(source, bad_rows, options.columns or None):
        yield line, {options.text_column: values[tables.TEXT]} if source.lower().endswith(".txt") else values


def check_columns(options: TableOptions, part: str, wanted: Sequence[str], columns: Sequence[str]) -> None:
    """Raises a UserError if a part of the data, in whose rows all columns are, lacks some that are wanted."""
    absent = [name for name in wanted if name not in columns]
    if not absent or (options.source != TFDS and part.lower().endswith((".jsonl", ".json"))):
        return
    where = source_name(options, part) if options.source == TFDS or options.columns else f"{part}, line 1"
    if len(columns) == 1 and (";" in columns[0] or "\t" in columns[0]):
        between = "semicolons" if ";" in columns[0] else "tabs"
        raise UserError(
            f"{where}: there is one column, {columns[0][:60]!r}; are the columns separated by {between}? Expected "
            "commas in .csv and tabs in .tsv"
        )
    raise UserError(
        f"{where}: no column {', '.join(absent)} among {tables.names_shown(columns)}; name yours with --text_column, "
        "--text_pair_column and --label_column, and those of a file without a header with --columns"
    )


def _labels_of_training(options: TableOptions) -> tuple[str, ...]:
    """The classes' names in the training data, sorted: numbers by value, else by the alphabet."""
    path, column = options.train_file, options.label_column
    if path is None:
        raise UserError(
            "--task=table needs --train_file, which gives the classes too, or a fine-tuned model as --init or --teacher"
        )
    labels: set[str] = set()
    rows = 0
    # Bad rows are shown when the file is read for training.
    for _, values in rows_in(options, path, BadRows(SKIP, silent=True)):
        rows += 1
        check_columns(options, path, [column], list(values))
        labels |= set(_label_names(values.get(column), options)[0])
    if not rows:
        raise UserError(f"{path} has no rows; expected texts with labels below the header")
    if not labels:
        raise UserError(f"{path} has no labels in {column!r}: see --label_column")
    if len(labels) < 2 and options.label_kind == task_models.CLASSIFICATION:
        raise UserError(f"{path} has only the label {labels.pop()!r}; there is nothing to learn")
    return tuple(
        sorted(labels, key=lambda name: (not _is_number(name), float(name) if _is_number(name) else 0.0, name))
    )


def _is_number(text: str) -> bool:
    try:
        return np.isfinite(float(text)).item()
    except ValueError:
        return False


def _label_names(value: Any, options: TableOptions) -> tuple[list[str], str]:
    """The names in a label's cell, and what is wrong with it."""
    column = options.label_column
    if options.label_kind == task_models.MULTI_LABEL:
        parts = value if isinstance(value, list) else str("" if value is None else value).split(options.label_separator)
    else:
        parts = [value]
    names = []
    for part in parts:
        if isinstance(part, list | dict) or (part is None and len(parts) > 1):
            return [], f"label {json.dumps(part)[:60]} in {column}; expected the name of a class"
        name = "" if part is None else str(part).strip()
        if name.lower() == "nan":
            return [], f"label {name!r} in {column} stands for a missing one; expected the name of a class"
        names += [name] if name else []
    if not names and options.label_kind == task_models.CLASSIFICATION:
        return [], f"no label in {column}"
    return names, ""


class TableTask(SequenceTask):
    """The task of the table that the options describe.

    Args:
        options: the files, their columns, and what a label is (anything but tagging, see tagging_task).
        labels: the classes' names of a model that is there; None for those of the training data.
        needs_labels: whether rows to train on need labels; a teacher's answers may be all that is learned.

    Raises:
        UserError: the labels are to come from a training file, and there is none, or it has no labels.
    """

    def __init__(self, options: TableOptions, labels: Sequence[str] | None = None, needs_labels: bool = True) -> None:
        self._options, self._needs_labels = options, needs_labels
        kind = options.label_kind
        values = tuple(options.label_values or labels or ())
        if kind != task_models.REGRESSION and labels is None:
            values = _labels_of_training(options)
            labels = tuple(options.label_names) or values
            if len(labels) != len(values):
                raise UserError(
                    f"--label_names has {len(labels)} names; the training data have {len(values)} labels: "
                    f"{tables.names_shown(values)}"
                )
        super().__init__(
            name=TABLE,
            kind=kind,
            labels=None if kind == task_models.REGRESSION else tuple(labels or ()),
            pair=options.text_pair_column is not None,
            doc_stride=options.doc_stride,
        )
        self._label_values = values
        # A label is what the training data call it, or its name.
        self._number_of = {name: number for names in (self.labels or (), values) for number, name in enumerate(names)}
        self.best_metric = {task_models.REGRESSION: "pearson", task_models.MULTI_LABEL: "f1_micro"}.get(
            kind, "accuracy"
        )
        self.eval_splits = (DEV,) if options.eval_file else ()
        self.test_splits = (TEST,) if options.predict_file else ()

    @property
    def title(self) -> str:
        return f"table of {source_name(self._options, self._options.train_file or self._options.eval_file or 'texts')}"

    def notes(self) -> list[str]:
        return [f"{len(self.labels)} classes: {tables.names_shown(self.labels)}"] if self.labels else []

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        names = ("columns", "text_column", "text_pair_column", "label_column", "label_separator", "label_names")
        remembered = {name: getattr(self._options, name) for name in names}
        return {**super().task_spec(max_seq_length), "table": {**remembered, "label_values": list(self._label_values)}}

    def read(self, split: str, bad_rows: BadRows) -> list[TextExample]:
        options = self._options
        part = part_of(options, split)
        labelled = split == DEV or (split == TRAIN and self._needs_labels)
        examples = []
        rows = 0
        source = source_name(options, part)
        for line, values in rows_in(options, part, bad_rows):
            rows += 1
            texts = self._text_columns(values)
            wanted = [name for names in texts for name in names] + ([options.label_column] if labelled else [])
            check_columns(options, part, wanted, list(values))
            label = None
            problem = self._text_problem(values, wanted[: len(wanted) - labelled])
            if not problem and labelled and options.label_column not in values:
                problem = f"no key {options.label_column}"
            if not problem and (labelled or values.get(options.label_column) not in (None, "")):
                label, problem = self._label(values.get(options.label_column))
            if problem:
                bad_rows.add(source, line, problem)
                continue
            first, *second = (" ".join(values[name] for name in names) for names in texts)
            # A row to learn from goes by its line; answers go by the id that the user knows, where there is one.
            name = values.get("id", line) if split != TRAIN and "id" not in wanted else line
            examples.append(TextExample(str(name).removeprefix("row "), first, second[0] if second else None, label))
        if not examples:
            raise UserError(f"{part} has no {'good ' if rows else ''}rows; expected texts below the header")
        if not labelled and any(example.label is None for example in examples):
            examples = [TextExample(each.id, each.text_a, each.text_b) for each in examples]
        return examples

    def _text_columns(self, values: Mapping[str, Any]) -> list[list[str]]:
        """The columns of the text, or of both texts, each of which may be several that are joined."""
        options = self._options
        names = [name for name in (options.text_column, options.text_pair_column) if name is not None]
        return [[name] if name in values else name.split(",") for name in names]

    def _text_problem(self, values: Mapping[str, Any], columns: Sequence[str]) -> str:
        for name in columns:
            if name not in values:
                return f"no key {name}"
            if not isinstance(values[name], str):
                return f"{name} is {type(values[name]).__name__}; expected a text"
            if not values[name].strip():
                return f"an empty text in {name}"
        return ""

    def _label(self, value: Any) -> tuple[Any, str]:
        """The label as in TextExample, and what is wrong with it."""
        if self.labels is None:
            if value in (None, ""):
                return None, f"no label in {self._options.label_column}"
            is_number = not isinstance(value, bool | list | dict) and _is_number(str(value))
            return (float(value), "") if is_number else (None, f"label {value!r}; expected a number")
        names, problem = _label_names(value, self._options)
        unknown = [name for name in names if name not in self._number_of]
        if problem or unknown:
            known = ", ".join(self.labels[:_MOST_LABELS_SHOWN])
            more = ", ..." if len(self.labels) > _MOST_LABELS_SHOWN else ""
            shown = ", ".join(map(repr, unknown))
            return None, problem or f"unknown label {shown}; the training data have {len(self.labels)}: {known}{more}"
        numbers = tuple(sorted({self._number_of[name] for name in names}))
        return (numbers, "") if self.kind == task_models.MULTI_LABEL else (numbers[0], "")

    def metrics(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, float]:
        predicted = sequences.predicted_labels(self.kind, predictions)
        expected = [example.label for example in examples]
        if self.kind == task_models.REGRESSION:
            return {
                "pearson": scores.pearson(np.array(predicted), np.array(expected)),
                "spearman": scores.spearman(np.array(predicted), np.array(expected)),
                "mean_absolute_error": float(np.abs(np.array(predicted) - np.array(expected)).mean()),
            }
        if self.kind == task_models.MULTI_LABEL:
            rows, expected_rows = (
                sequences.several_hot(each, len(self.labels or ())) for each in (predicted, expected)
            )
            return {
                "f1_micro": scores.f1(rows, expected_rows, average="micro"),
                "f1_macro": scores.f1(rows, expected_rows, average="macro"),
                "exact_match": float(np.mean([a == b for a, b in zip(predicted, expected, strict=True)])),
            }
        return {
            "accuracy": scores.accuracy(predicted, expected),
            "f1_macro": scores.f1(predicted, expected, average="macro"),
            "matthews_correlation": scores.matthews(predicted, expected),
        }
