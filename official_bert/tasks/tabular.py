"""Your own data: texts or pairs with labels in named columns, of CSV, TSV, JSON lines or TensorFlow Datasets."""

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from official_bert import files, finetuned, task_models
from official_bert.errors import UserError
from official_bert.finetuning_options import TFDS, Options
from official_bert.tasks import scores, sequences
from official_bert.tasks.bad_rows import BadRows
from official_bert.tasks.sequences import TextExample
from official_bert.tasks.task import DEV, TEST, TRAIN, Array, Task
from official_bert.tasks.tfds_data import DataSet

_MOST_LABELS_SHOWN = 10
csv.field_size_limit(2**31 - 1)  # of characters; Python's own limit is shorter than some documents


def rows_of(path: str, bad_rows: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the first line's number and the values of each row, by column.

    Args:
        path: .csv (commas; quotes may hold commas and line ends), .tsv (tabs; quotes mean nothing) or .jsonl (an
            object a line).
        bad_rows: told of rows that cannot be read.

    Raises:
        UserError: the file is missing, or its name ends otherwise, or it has no header.
    """
    extension = os.path.splitext(path)[1].lower()
    if extension not in (".csv", ".tsv", ".jsonl", ".json"):
        raise UserError(f"{path} ends in {extension or 'nothing'}; expected .csv, .tsv or .jsonl")
    text = files.read_text(path).removeprefix("\ufeff")
    if extension in (".jsonl", ".json"):
        yield from _json_rows(path, text, bad_rows)
        return
    if extension == ".csv":
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    else:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
    columns: list[str] | None = None
    before = 0
    while True:
        line = before + 1
        try:
            values = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            problem = f"{error}; a quote within a quoted text is written twice"
            if reader.line_num > line:
                problem += f"; all up to line {reader.line_num} was read as one text"
            bad_rows.add(path, line, problem)
            before = reader.line_num
            continue
        before = reader.line_num
        if columns is None:
            columns = values
            twice = sorted({name for name in columns if columns.count(name) > 1})
            if twice:
                raise UserError(f"{path}, line 1: two columns are named {', '.join(twice)}; name each once")
        elif len(values) == len(columns):
            yield line, dict(zip(columns, values, strict=True))
        elif values:  # an empty line is none
            bad_rows.add(path, line, f"{len(values)} columns; expected {len(columns)}: {', '.join(columns)}")
    if columns is None:
        raise UserError(f"{path} is empty; expected a header with the columns' names")


def part_of(options: Options, split: str) -> str:
    """Returns the file (of TensorFlow Datasets, the part) that the options name for train, dev or test.

    Raises:
        UserError: they name none.
    """
    path = {TRAIN: options.train_file, DEV: options.eval_file, TEST: options.predict_file}[split]
    if path is None:
        raise UserError(f"no file was given for {split}; see --train_file, --eval_file and --predict_file")
    return path


def source_name(options: Options, part: str) -> str:
    """Returns what errors call a file, or a part of a data set of TensorFlow Datasets."""
    return f"{options.tfds_name}, part {part}" if options.source == TFDS else part


def rows_in(options: Options, source: str, bad_rows: BadRows) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """As `rows_of`, for a file or a part of the data set of TensorFlow Datasets, as the options say."""
    if options.source != TFDS:
        yield from rows_of(source, bad_rows)
        return
    if not options.tfds_name:
        raise UserError("--task=table --source=tfds needs --tfds_name, such as imdb_reviews")
    for number, values in enumerate(DataSet(options.tfds_name, options.data_dir).rows(source), start=1):
        yield f"row {number}", values


def _json_rows(path: str, text: str, bad_rows: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            bad_rows.add(path, number, f"not valid JSON: {error}")
            continue
        if isinstance(values, dict):
            yield number, values
        else:
            bad_rows.add(path, number, f"{type(values).__name__}; expected an object with the columns as keys")


def _labels_in(options: Options) -> tuple[str, ...]:
    """The classes' names in the training data, sorted: numbers by value, else by the alphabet."""
    known = [options.teacher] if options.teacher else [] if options.train_file else [options.output_dir, options.init]
    for folder in known:
        if finetuned.is_finetuned(folder):
            return tuple(finetuned.load_description(folder)["labels"] or ())
    if options.train_file is None:
        raise UserError(
            "--task=table needs --train_file, which gives the classes too, or a fine-tuned model as --init or --teacher"
        )
    found = set()
    # Bad rows are told of when the file is read for training.
    for _, values in rows_in(options, options.train_file, BadRows("skip", silent=True)):
        if values.get(options.label_column) not in (None, ""):
            found |= set(_names(values[options.label_column], options))
    if not found:
        raise UserError(f"{options.train_file} has no labels in a column {options.label_column!r}: see --label_column")
    if len(found) < 2 and options.label_kind == task_models.CLASSIFICATION:
        raise UserError(f"{options.train_file} has only the label {found.pop()!r}; there is nothing to learn")
    return tuple(sorted(found, key=lambda name: (not _is_number(name), float(name) if _is_number(name) else 0.0, name)))


def _is_number(text: str) -> bool:
    try:
        return np.isfinite(float(text)).item()
    except ValueError:
        return False


def _names(value: Any, options: Options) -> list[str]:
    """The names in a label's cell."""
    if options.label_kind == task_models.CLASSIFICATION:
        return [str(value).strip()]
    parts = value if isinstance(value, list) else str(value).split(options.label_separator)
    return [name for name in (str(part).strip() for part in parts) if name]


class _Reader:
    """Reads the files that the options name; columns and labels as they say."""

    def __init__(self, options: Options, labels: tuple[str, ...] | None) -> None:
        self._options, self._labels = options, labels

    def __call__(self, data_dir: str | None, split: str, bad_rows: BadRows) -> list[TextExample]:
        options = self._options
        path = part_of(options, split)
        wanted = [options.text_column, *([options.text_pair_column] if options.text_pair_column else [])]
        # Where all is learned from a teacher, texts to train on need no labels.
        labelled = split == DEV or (split == TRAIN and not (options.teacher and options.teacher_weight == 1.0))
        required = [*wanted, *([options.label_column] if labelled else [])]
        examples = []
        source = source_name(options, path)
        for line, values in rows_in(options, path, bad_rows):
            absent = [name for name in required if name not in values]
            if absent and (options.source == TFDS or path.endswith((".csv", ".tsv"))):
                place = source if options.source == TFDS else f"{source}, line 1"
                raise UserError(
                    f"{place}: no column {', '.join(absent)} among {', '.join(values)}; see --text_column, "
                    "--text_pair_column and --label_column"
                )
            problem = f"no key {', '.join(absent)}" if absent else self._text_problem(values, wanted)
            label = None
            if not problem and values.get(options.label_column) is not None and (labelled or self._is_given(values)):
                label, problem = self._label(values[options.label_column])
            elif not problem and labelled:
                problem = f"no label in {options.label_column}"
            if problem:
                bad_rows.add(source, line, problem)
                continue
            texts = [values[name] for name in wanted]
            examples.append(
                TextExample(str(line).removeprefix("row "), texts[0], texts[1] if len(texts) > 1 else None, label)
            )
        if not examples:
            raise UserError(f"{path} has no examples")
        if not labelled and any(example.label is None for example in examples):
            examples = [TextExample(each.id, each.text_a, each.text_b) for each in examples]
        return examples

    def _is_given(self, values: dict[str, Any]) -> bool:
        return values.get(self._options.label_column) not in (None, "")

    def _text_problem(self, values: dict[str, Any], wanted: Sequence[str]) -> str:
        for name in wanted:
            if not isinstance(values[name], str):
                return f"{name} is {type(values[name]).__name__}; expected a text"
            if not values[name].strip():
                return f"an empty text in {name}"
        return ""

    def _label(self, value: Any) -> tuple[Any, str]:
        """The label as in TextExample, and what is wrong with it."""
        options = self._options
        if self._labels is None:
            number = float(value) if _is_number(str(value)) else None
            least = -np.inf if options.label_min is None else options.label_min
            greatest = np.inf if options.label_max is None else options.label_max
            if number is None or not least <= number <= greatest:
                return None, f"label {value!r}; expected a number from {least:g} to {greatest:g}"
            return number, ""
        names = _names(value, options)
        unknown = [name for name in names if name not in self._labels]
        if unknown:
            known = ", ".join(self._labels[:_MOST_LABELS_SHOWN])
            more = ", ..." if len(self._labels) > _MOST_LABELS_SHOWN else ""
            shown = ", ".join(map(repr, unknown))
            return None, f"unknown label {shown}; the training data have {len(self._labels)}: {known}{more}"
        numbers = tuple(sorted({self._labels.index(name) for name in names}))
        return (numbers, "") if options.label_kind == task_models.MULTI_LABEL else (numbers[0], "")


def make_task(options: Options) -> Task:
    """Returns the task of the table that the options describe.

    Raises:
        UserError: there is no training file, or it has no labels.
    """
    kind = options.label_kind
    labels = None if kind == task_models.REGRESSION else _labels_in(options)
    read = _Reader(options, labels)

    def metrics(predictions: Array, examples: Sequence[TextExample]) -> dict[str, float]:
        predicted = sequences.predicted_labels(kind, predictions)
        expected = [example.label for example in examples]
        if kind == task_models.REGRESSION:
            errors = np.array(predicted) - np.array(expected)
            return {
                "pearson": scores.pearson(np.array(predicted), np.array(expected)),
                "spearman": scores.spearman(np.array(predicted), np.array(expected)),
                "mean_absolute_error": float(np.abs(errors).mean()),
            }
        if kind == task_models.MULTI_LABEL:
            found, given = (sequences.several_hot(each, len(labels or ())) for each in (predicted, expected))
            return {
                "f1_micro": scores.f1(found, given, average="micro"),
                "f1_macro": scores.f1(found, given, average="macro"),
                "exact_match": float(np.mean([a == b for a, b in zip(predicted, expected, strict=True)])),
            }
        return {
            "accuracy": scores.accuracy(predicted, expected),
            "f1_macro": scores.f1(predicted, expected, average="macro"),
            "matthews_correlation": scores.matthews(predicted, expected),
        }

    def write(folder: str, split: str, predictions: Array, examples: Sequence[TextExample]) -> list[str]:
        return [sequences.write_table(folder, split, kind, labels, predictions, examples)]

    best = {task_models.REGRESSION: "pearson", task_models.MULTI_LABEL: "f1_micro"}
    return Task(
        name="table",
        kind=kind,
        labels=labels,
        pair=options.text_pair_column is not None,
        read=read,
        read_tfds=read,
        featurize=sequences.featurizer(kind, len(labels or ()), options.doc_stride),
        decode=sequences.decoder(kind),
        metrics=metrics,
        best_metric=best.get(kind, "accuracy"),
        write_predictions=write,
        outcomes=sequences.outcomes_of(kind, labels),
        eval_splits=(DEV,) if options.eval_file else (),
        test_splits=(TEST,) if options.predict_file else (),
        settings={"doc_stride": options.doc_stride} if options.doc_stride else {},
    )
