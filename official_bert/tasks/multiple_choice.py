"""The tasks SWAG (arXiv:1808.05326) and CODAH (arXiv:1904.04365): choose one of four endings.

In SWAG, the prompt is the first sentence. The start of the second sentence, which all endings share, is added to each
ending.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.kinds.features import Array
from official_bert.kinds.multiple_choice.spec import NUM_CHOICES, Example, MultipleChoiceSpec, choose_endings
from official_bert.tasks import data_files
from official_bert.tasks.options import CODAH, SWAG, MultipleChoiceOptions
from official_bert.tasks.task import DEV, TEST, TRAIN, Task
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import BadRowError, BadRows

# File names without extensions by split. SWAG has train.csv, val.csv and test.csv.
_NAMES = {TRAIN: ("train",), DEV: ("dev", "val"), TEST: ("test",)}
_EXTENSIONS = {SWAG: (".csv", ".jsonl"), CODAH: (".tsv",)}

_ENDINGS = tuple(f"ending{number}" for number in range(NUM_CHOICES))
_SWAG_TEXTS, _CODAH_TEXTS = ("sent1", "sent2", *_ENDINGS), ("sent1", *_ENDINGS)
_CODAH_COLUMNS = ("category", *_CODAH_TEXTS, "label")  # CODAH's files have no header.
_MAX_CHARACTERS = 60  # Of a label in a message.


class MultipleChoiceTask(Task):
    """The task SWAG or CODAH. CODAH's test split has labels.

    Args:
        name: swag or codah.
        options: The options of the task, such as the data folder.
    """

    def __init__(self, name: str, options: MultipleChoiceOptions) -> None:
        super().__init__(name, options.make_spec(MultipleChoiceSpec))
        self._options = options
        self._test_has_labels = name == CODAH
        self.eval_splits = (DEV, TEST) if self._test_has_labels else (DEV,)

    def read(self, split: str, bad_rows: BadRows) -> list[Example]:
        names = [f"{part}{ending}" for part in _NAMES[split] for ending in _EXTENSIONS[self.name]]
        path = data_files.find(self._options.data_dir, split, names)
        return read(path, bad_rows, need_labels=split != TEST or self._test_has_labels)

    def write_predictions(self, folder: str, split: str, predictions: Array, examples: Sequence[Example]) -> list[str]:
        """Writes the index of each example's chosen ending to a file, one per line. Returns [path]."""
        path = os.path.join(folder, f"predictions_{split}.csv")
        files.write_text(path, "".join(f"{choice}\n" for choice in choose_endings(predictions)))
        return [path]


def read(path: str, bad_rows: BadRows, need_labels: bool = True) -> list[Example]:
    """Reads examples from a file of SWAG (*.csv with a header, *.jsonl) or CODAH (*.tsv without a header).

    CODAH's columns are category, prompt, four endings and label.

    Args:
        path: The file.
        bad_rows: Handles invalid examples.
        need_labels: Whether examples without labels are invalid. In JSON, the label -1 means a missing label.

    Raises:
        UserError: If the file has another format or no valid example.
    """
    ending = next((each for each in (".csv", ".jsonl", ".tsv") if path.endswith(each)), None)
    if ending is None:
        raise UserError(f"{path}: expected SWAG's *.csv or *.jsonl, or CODAH's *.tsv")
    columns, texts = (_CODAH_COLUMNS, _CODAH_TEXTS) if ending == ".tsv" else (None, _SWAG_TEXTS)
    examples = []
    for line, row in tables.read_rows(path, bad_rows, columns, texts):
        with bad_rows.handle_error(path, line):
            examples.append(_parse_row(row, texts, need_labels))
    if not examples:
        raise UserError(f"{path} has no examples{bad_rows.first_reason(path)}")
    return examples


def _parse_row(row: dict[str, Any], texts: Sequence[str], need_label: bool) -> Example:
    """Returns the example in a row of SWAG or CODAH.

    Args:
        row: The values by column.
        texts: The columns that must contain texts.
        need_label: Whether a missing label is an error.

    Raises:
        BadRowError: If a text or the label is missing or invalid.
    """
    if absent := [name for name in texts if not isinstance(row.get(name), str)]:
        raise BadRowError(f"the texts {', '.join(absent)} are missing")
    for number, name in enumerate(_ENDINGS):
        if not row[name].strip():
            raise BadRowError(f"ending {number} is empty")
    if not row["sent1"].strip():
        raise BadRowError("the prompt is empty")
    start = f"{row['sent2']} " if "sent2" in row else ""  # Shared by all endings of SWAG.
    example, label = Example(row["sent1"], tuple(f"{start}{row[name]}" for name in _ENDINGS), None), row.get("label")
    if label in (None, "", -1):
        if need_label:
            raise BadRowError("the label is missing")
        return example
    if str(label).strip() not in map(str, range(NUM_CHOICES)):
        raise BadRowError(f"the label is {str(label)[:_MAX_CHARACTERS]!r}; expected 0 to {NUM_CHOICES - 1}")
    return dataclasses.replace(example, label=int(label))
