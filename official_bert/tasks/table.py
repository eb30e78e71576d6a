"""The task "table": texts or pairs of texts with labels, in named columns of the user's table."""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from official_bert.errors import UserError
from official_bert.kinds.class_labels import numbers_by_name
from official_bert.kinds.text_spec import TextExample
from official_bert.tasks.options import TABLE, RowsOptions, TableOptions
from official_bert.tasks.table_labels import COLUMNS, LabelColumn, find_doubtful_classes, is_number
from official_bert.tasks.task import DEV, TEST, TRAIN
from official_bert.tasks.text_task import TextTask
from official_bert.utils import tables
from official_bert.utils.bad_rows import SKIP, BadRowError, BadRows

Example = TypeVar("Example")


def get_path(options: RowsOptions, split: str) -> str:
    """Returns the path of a split's file, from the options.

    Raises:
        UserError: If the options have no file for the split, or a folder that would not be used.
    """
    path = {TRAIN: options.train_file, DEV: options.eval_file, TEST: options.predict_file}[split]
    if path is None:
        raise UserError(f"the file of the {split} split is missing; see --train_file, --eval_file and --predict_file")
    if options.data_dir is not None:
        raise UserError(f"--data_dir is {options.data_dir}, but {path} is not searched in a folder; remove --data_dir")
    return path


def read_rows(options: RowsOptions, path: str, bad_rows: BadRows) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """Yields the rows of a file (see `tables.read_rows`). In a .txt file, the column is named as in --text_column."""
    for line, values in tables.read_rows(path, bad_rows, options.columns or None):
        yield line, {options.text_column: values[tables.TEXT]} if path.lower().endswith(".txt") else values


def check_columns(
    options: RowsOptions, part: str, wanted: Sequence[str], columns: Sequence[str], bad_rows: BadRows
) -> None:
    """Raises a UserError if a table lacks a required column.

    Args:
        options: The options of the task.
        part: Path of the table.
        wanted: The required columns.
        columns: The columns that the table has.
        bad_rows: Tells whether the command has flags that the message can suggest.
    """
    advice = (
        f"pass your columns' names as --text_column, --text_pair_column and {options.label_flags}, and the columns of "
        "a file without a header as --columns"
    )
    if not bad_rows.has_flags:
        advice = tables.RENAMING_ADVICE
    for name in wanted:
        if name not in columns and "," in name and set(name.split(",")) <= set(columns):
            advice = (
                "columns of 0 and 1 are not read; put the labels of each row into one column, such as 'a;b' (see "
                "--label_separator)"
            )
    tables.check_columns(part, wanted, columns, advice, has_header=not options.columns)


def read_examples(
    options: RowsOptions,
    split: str,
    bad_rows: BadRows,
    texts: Sequence[str],
    label: str | None,
    make_example: Callable[[str, list[str], dict[str, Any]], Example],
    rows: Iterable[tuple[int | str, dict[str, Any]]] | None = None,
) -> list[Example]:
    """Returns the examples of a split, from the rows of its table.

    Args:
        options: The options of the task.
        split: The split.
        bad_rows: Handles invalid rows.
        texts: For each text, the name of its column or several names separated by commas, whose texts are joined.
        label: The column of the label if it is required, or else None.
        make_example: Creates an example from its identifier, its texts and the values of the row, by column. It raises
            a BadRowError if the row is invalid.
        rows: Position and values of each row. Defaults to the rows of the file.

    Raises:
        UserError: If a column is missing, or the table has no valid row.
    """
    examples, has_rows, path = [], False, get_path(options, split)
    for line, values in rows or read_rows(options, path, bad_rows):
        has_rows = True
        columns = [[name] if name in values else name.split(",") for name in texts]
        text_columns = [*itertools.chain(*columns)]
        wanted = [*text_columns, *([label] if label else [])]
        check_columns(options, path, wanted, list(values), bad_rows)
        if label in text_columns:
            raise UserError(f"{path}: {label!r} is the label, but --text_column or --text_pair_column contains it, too")
        with bad_rows.handle_error(path, line):
            joined = [_join_texts(values, each) for each in columns]
            # Answers are written with the user's id, if there is one. Errors about training rows need the line.
            name = values.get("id", line) if split != TRAIN and "id" not in wanted else line
            examples.append(make_example(str(name).removeprefix("row "), joined, values))
    if not examples:
        reason = bad_rows.first_reason(path)
        raise UserError(f"{path} has no {'good ' if has_rows else ''}rows; expected texts below the header{reason}")
    return examples


def _join_texts(values: Mapping[str, Any], columns: Sequence[str]) -> str:
    if problem := tables.find_text_problem(values, columns):
        raise BadRowError(problem)
    text = tables.join_texts(values, columns)
    if not text.strip():
        raise BadRowError(f"an empty text in {', '.join(columns)}")
    return text


class _RecordedRows(BadRows):
    """All rows of a file, including the problems of invalid rows, in order. The file is read only once."""

    def __init__(self, options: RowsOptions, path: str) -> None:
        super().__init__(SKIP)
        self._path = path
        self._rows: list[tuple[int | str, dict[str, Any] | str]] = []
        for line, values in read_rows(options, path, self):
            self._rows.append((line, values))

    def add(self, path: str, line: int | str, problem: str) -> None:
        self._rows.append((line, problem))

    def replay(self, bad_rows: BadRows) -> Iterator[tuple[int | str, dict[str, Any]]]:
        """Yields the valid rows again, and passes the problems of invalid rows to `bad_rows`."""
        for line, row in self._rows:
            if isinstance(row, str):
                bad_rows.add(self._path, line, row)
            else:
                yield line, row


def _count_labels(options: TableOptions, column: LabelColumn, path: str, recorded: _RecordedRows) -> dict[str, int]:
    """Returns the number of training rows of each class. Classes are sorted by number or alphabetically.

    Args:
        options: The options of the task.
        column: The kind of label column.
        path: The file of the training data.
        recorded: The rows of this file.
    """
    labels: collections.Counter[str] = collections.Counter()
    lines: dict[str, int | str] = {}
    sizes = set()
    rows = 0
    bad_rows = BadRows(SKIP, silent=True)  # They are reported later, when the rows are read for training.
    for line, values in recorded.replay(bad_rows):
        rows += 1
        check_columns(options, path, [options.label_column], list(values), bad_rows)
        value = values.get(options.label_column)
        with bad_rows.handle_error(path, line):
            names = column.parse_names(value)
            labels.update(names)
            lines |= {name: line for name in names if name not in lines}
            if not isinstance(value, list):
                sizes.add(len(names))
    reason = bad_rows.first_reason(path)
    if not rows:
        raise UserError(f"{path} has no rows; expected texts with labels below the header{reason}")
    if not labels:
        raise UserError(f"{path} has no labels in {options.label_column!r}: see --label_column{reason}")
    if len(labels) < column.min_classes:
        raise UserError(
            f"{path} has only the label {next(iter(labels))!r}; expected at least {column.min_classes} labels{reason}"
        )
    if sizes:
        column.check_separator(path, lines, sizes)
    ordered = sorted(labels, key=lambda name: (not is_number(name), float(name) if is_number(name) else 0.0, name))
    return {name: labels[name] for name in ordered}


class TableTask(TextTask):
    """The task of learning labels in a user's table.

    Args:
        options: The files, their columns and the kind of labels. For tagging, see TaggingTask instead.
        labels: Class names of an existing model. None to read them from the training data.
        needs_labels: Whether training rows without labels are invalid. Distillation may use only the teacher's answers.

    Raises:
        UserError: If `labels` is None and the training data are missing or have no labels.
    """

    def __init__(self, options: TableOptions, labels: Sequence[str] | None = None, needs_labels: bool = True) -> None:
        self._options, self._needs_labels = options, needs_labels
        self._column = COLUMNS[options.label_kind](options)
        values = tuple(options.label_values or labels or ())
        self._class_notes: list[str] = []
        self._training_rows: _RecordedRows | None = None  # until they are read as examples
        if self._column.has_classes and labels is None:
            if options.train_file is None:
                raise UserError(
                    "--train_file is missing; --task=table reads the classes from it, unless --init or --teacher is "
                    "the folder of a fine-tuned model. For a model of another format, run official-bert convert first"
                )
            self._training_rows = _RecordedRows(options, options.train_file)
            counts = _count_labels(options, self._column, options.train_file, self._training_rows)
            values = tuple(counts)
            self._class_notes = find_doubtful_classes(counts)
            if once := [repr(name) for name, count in counts.items() if count == 1]:
                is_value = len(once) > 10 and all(map(is_number, counts))
                hint = ". If the labels are quantities, pass --label_kind=regression" if is_value else ""
                self._class_notes.append(f"classes with a single row ({len(once)}): {tables.format_names(once)}{hint}")
            labels = tuple(options.label_names) or values
            # The same names in another order are probably a wrong assumption about the order of the labels.
            is_permuted = labels != values and sorted(labels) == sorted(values)
            if is_permuted or len(set(labels)) < len(labels) or len(labels) != len(values):
                raise UserError(
                    f"--label_names is {','.join(labels)}; expected {len(values)} different new names for the labels "
                    f"of the training data, in this order: {tables.format_names(values)}"
                )
        elif options.label_names and tuple(options.label_names) != tuple(labels or ()):
            classes = f"the classes {', '.join(labels)}" if labels else "no classes"
            raise UserError(
                f"--label_names is {','.join(options.label_names)}; the model has {classes}. Remove --label_names"
            )
        names = tuple(labels or ()) if self._column.has_classes else None
        spec = options.make_spec(self._column.spec_class, labels=names, pair=options.text_pair_column is not None)
        super().__init__(TABLE, spec, options)
        self._label_values = values
        # A label may be written as in the training data or as its name in --label_names.
        self._label_numbers = numbers_by_name(spec.labels or ()) | numbers_by_name(values)

    @property
    def title(self) -> str:
        texts = (self._options.text_column, self._options.text_pair_column)
        columns = [column for name in texts if name for column in name.split(",")]
        return f"Predicting {self._options.label_column} from {' and '.join(columns)}"

    def notes(self) -> list[str]:
        labels = self.spec.labels or ()
        pairs = zip(labels, self._label_values, strict=False)
        names = [name if name == value else f"{name} ({value} in the table)" for name, value in pairs]
        shown = [f"{len(labels)} classes: {tables.format_names(names)}"] if labels else []
        return shown + self._class_notes

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        names = ("columns", "text_column", "text_pair_column", "label_column", "label_separator", "label_names")
        remembered = {name: getattr(self._options, name) for name in names}
        return {**super().task_spec(max_seq_length), "table": {**remembered, "label_values": list(self._label_values)}}

    def read(self, split: str, bad_rows: BadRows) -> list[TextExample]:
        options, column, rows = self._options, self._options.label_column, None
        labelled = split == DEV or (split == TRAIN and self._needs_labels)
        if split == TRAIN and self._training_rows:
            rows, self._training_rows = self._training_rows.replay(bad_rows), None

        def make_example(name: str, texts: list[str], values: dict[str, Any]) -> TextExample:
            if labelled and column not in values:
                raise BadRowError(f"no key {column!r}")
            has_label = labelled or values.get(column) not in (None, "")
            label = self._column.parse_label(values.get(column), self._label_numbers) if has_label else None
            return TextExample(name, texts[0], texts[1] if len(texts) > 1 else None, label)

        texts = [name for name in (options.text_column, options.text_pair_column) if name is not None]
        examples = read_examples(options, split, bad_rows, texts, column if labelled else None, make_example, rows)
        if not labelled and any(example.label is None for example in examples):
            examples = [TextExample(each.id, each.text_a, each.text_b) for each in examples]
        return examples
