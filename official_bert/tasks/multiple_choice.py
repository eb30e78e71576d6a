"""SWAG (arXiv:1808.05326) and CODAH (arXiv:1904.04365), which has the same task, as tasks of fine-tuning.

SWAG's prompt is its first sentence; the beginning of the second one, that all endings share, goes with the ending.
"""

import csv
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.tasks import data_files
from official_bert.tasks.heads.choices import NUM_CHOICES, Example, MultipleChoiceHead, chosen
from official_bert.tasks.heads.features import Array
from official_bert.tasks.options import CODAH, SWAG, MultipleChoiceOptions
from official_bert.tasks.task import DEV, TEST, TRAIN, Task
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import BadRows

# What the files of each part are called, without the ending: SWAG's are train.csv, val.csv and test.csv.
_NAMES = {TRAIN: ("train",), DEV: ("dev", "val"), TEST: ("test",)}
_ENDINGS = {SWAG: (".csv", ".jsonl"), CODAH: (".tsv",)}

_SWAG_COLUMNS = ("sent1", "sent2", *(f"ending{number}" for number in range(NUM_CHOICES)))
_CODAH_COLUMNS = 7
_MOST_SHOWN = 60  # characters of a label in a message


class MultipleChoiceTask(Task):
    """SWAG or CODAH; CODAH's test part has labels.

    Args:
        name: swag or codah.
        options: where the data are.
    """

    def __init__(self, name: str, options: MultipleChoiceOptions) -> None:
        super().__init__(name, MultipleChoiceHead(head_input=options.head_input))
        self._options = options
        self._test_has_labels = name == CODAH
        self.eval_splits = (DEV, TEST) if self._test_has_labels else (DEV,)
        self.test_splits = () if self._test_has_labels else (TEST,)

    def read(self, split: str, bad_rows: BadRows) -> list[Example]:
        names = [f"{part}{ending}" for part in _NAMES[split] for ending in _ENDINGS[self.name]]
        path = data_files.find(self._options.data_dir, split, names)
        return read(path, bad_rows, need_labels=split != TEST or self._test_has_labels)

    def write_predictions(self, folder: str, split: str, predictions: Array, examples: Sequence[Example]) -> list[str]:
        """Writes the number of the chosen ending of each example, a line each: what the leaderboard takes."""
        path = os.path.join(folder, f"{split}_predictions.csv")
        files.write_text(path, "".join(f"{choice}\n" for choice in chosen(predictions)))
        return [path]


def read(path: str, bad_rows: BadRows, need_labels: bool = True) -> list[Example]:
    """Reads a file of SWAG (*.csv with a header, *.jsonl) or CODAH (*.tsv: category, prompt, four endings, label).

    Args:
        path: the file.
        bad_rows: gets each example that is wrong.
        need_labels: whether an example without a label is of no use. In JSON, -1 means that it is not known.

    Raises:
        UserError: the file has another layout, or no good example.
    """
    readers: dict[str, Callable[[str, str], Iterator[tuple[int, Any]]]] = {
        ".csv": _swag_csv, ".jsonl": _swag_json, ".tsv": _codah,
    }  # fmt: skip
    reader = next((reader for ending, reader in readers.items() if path.endswith(ending)), None)
    if reader is None:
        raise UserError(f"{path}: expected SWAG's *.csv or *.jsonl, or CODAH's *.tsv")
    examples = []
    for line, row in reader(path, files.read_text(path)):
        reason = row if isinstance(row, str) else _problem(row, need_labels)
        if reason:
            bad_rows.add(path, line, reason)
        else:
            examples.append(row)
    if not examples:
        raise UserError(f"{path} has no examples{bad_rows.first_reason(path)}")
    return examples


def _problem(example: Example, need_label: bool) -> str | None:
    """Why the example cannot be used, or None."""
    for name, text in (("prompt", example.prompt), *((f"ending {n}", text) for n, text in enumerate(example.endings))):
        if not text.strip():
            return f"the {name} is empty"
    if example.label is not None and not 0 <= example.label < NUM_CHOICES:
        return f"the label is {example.label}; expected 0 to {NUM_CHOICES - 1}"
    return "there is no label" if need_label and example.label is None else None


def _swag_csv(path: str, text: str) -> Iterator[tuple[int, Example | str]]:
    rows = csv.DictReader(io.StringIO(text, newline=""))
    absent = [name for name in _SWAG_COLUMNS if name not in (rows.fieldnames or ())]
    if absent:
        header = tables.names_shown(list(rows.fieldnames or ()))
        raise UserError(f"{path} has no column {', '.join(absent)}; its header is {header}")
    while True:
        line = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{path}, line {line}: {error}") from error
        if None in row or None in row.values():
            yield (
                line,
                f"it has {'more' if None in row else 'fewer'} columns than the header, {len(rows.fieldnames or ())}",
            )
        else:
            yield line, _swag(row)


def _swag_json(path: str, text: str) -> Iterator[tuple[int, Example | str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = files.parse_json_line(line)
        except UserError as error:
            yield number, str(error)
            continue
        absent = [name for name in _SWAG_COLUMNS if not (isinstance(row, dict) and isinstance(row.get(name), str))]
        yield number, f"there is no text named {', '.join(absent)}" if absent else _swag(row)


def _swag(row: dict[str, Any]) -> Example | str:
    endings = tuple(f"{row['sent2']} {row[name]}" for name in _SWAG_COLUMNS[2:] if row[name].strip())
    if len(endings) < NUM_CHOICES:
        return "an ending is empty"
    return _with_label(row["sent1"], endings, row.get("label"))


def _codah(path: str, text: str) -> Iterator[tuple[int, Example | str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line:
            continue
        row = line.split("\t")  # quotes stand for themselves
        if len(row) != _CODAH_COLUMNS:
            yield number, f"it has {len(row)} columns; expected category, prompt, four endings and label"
        else:
            yield number, _with_label(row[1], tuple(row[2:6]), row[6])


def _with_label(prompt: str, endings: tuple[str, ...], label: object) -> Example | str:
    if label in (None, "", -1):
        return Example(prompt, endings, None)
    if isinstance(label, bool) or not re.fullmatch(r"-?[0-9]{1,9}", str(label).strip()):
        return f"the label is {str(label)[:_MOST_SHOWN]!r}; expected 0 to {NUM_CHOICES - 1}"
    return Example(prompt, endings, int(str(label)))
