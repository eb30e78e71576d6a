"""Parses the labels in a column of a table: the name of a class, several names, or a number."""

import collections
import json
import math
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from official_bert.errors import UserError
from official_bert.kinds import input_adapters
from official_bert.kinds.class_labels import class_name
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.text_spec import TextSpec
from official_bert.tasks.options import TableOptions
from official_bert.utils import tables
from official_bert.utils.bad_rows import BadRowError, format_position

_MAX_LISTED = 10
_MISSING = {"none", "n/a", "na", "null"}  # "nan" is not a valid class
_SEPARATORS = ",;|\t"  # Common separators of labels.


def is_number(text: str) -> bool:
    """Returns whether a text is a finite number."""
    return math.isfinite(input_adapters.to_number(text))


def find_doubtful_classes(labels: Iterable[str]) -> list[str]:
    """Returns notes about class names that may be mistakes.

    There is a note for each group of names that differ only by case, white space or Unicode normalization, and one for
    names that often mean a missing label.
    """
    groups = collections.defaultdict(list)
    for label in labels:
        composed = unicodedata.normalize("NFC", label)
        shown = repr(label) if composed == label else ascii(label)
        groups["".join(composed.split()).casefold()].append(shown)
    similar = [names for names in groups.values() if len(names) > 1]
    notes = [
        f"classes differ only by case, blanks or Unicode normalization: {tables.format_names(names)}"
        for names in similar
    ]
    if missing := [label for label in labels if label.casefold() in _MISSING]:
        notes.append(f"classes may mean missing labels: {tables.quote_names(missing)}")
    return notes


class LabelColumn:
    """A column of a table whose cells contain the name of one class.

    Args:
        options: Options of the table.

    Attributes:
        spec_class: The KindSpec class of the models that learn such labels.
        has_classes: Whether labels are names of classes. If false, they are numbers.
        min_classes: Minimum number of classes in the training data.
    """

    spec_class: ClassVar[type[TextSpec]] = ClassificationSpec
    has_classes: ClassVar[bool] = True
    min_classes: ClassVar[int] = 2

    def __init__(self, options: TableOptions) -> None:
        self._name, self._separator = options.label_column, options.label_separator

    def parse_names(self, value: Any) -> list[str]:
        """Returns the class names in a cell.

        Raises:
            BadRowError: If the cell is invalid.
        """
        names = self._parse_parts([value])
        if not names:
            raise BadRowError(f"no label in {self._name}")
        return names

    def parse_label(self, value: Any, label_numbers: Mapping[str, int]) -> Any:
        """Parses a cell into a label for TextExample.

        Args:
            value: Value of the cell.
            label_numbers: The number of each class, by name.

        Raises:
            BadRowError: If the cell is invalid.
        """
        names = self.parse_names(value)
        if unknown := [name for name in names if name not in label_numbers]:
            labels = list(label_numbers)[: len(set(label_numbers.values()))]  # Other names of the classes follow.
            known = ", ".join(labels[:_MAX_LISTED])
            more = ", ..." if len(labels) > _MAX_LISTED else ""
            listed = ", ".join(map(repr, unknown))
            raise BadRowError(f"unknown label {listed}; the training data have {len(labels)}: {known}{more}")
        numbers = tuple(sorted({label_numbers[name] for name in names}))
        return numbers[0] if self.spec_class.is_single_label else numbers

    def check_separator(self, path: str, lines: Mapping[str, int | str], sizes: set[int]) -> None:
        """Raises a UserError if class names seem to be separated by another character than the options state.

        Args:
            path: The file of the table.
            lines: Position in the file of the first row of each class.
            sizes: The different numbers of classes that rows have.
        """

    def _parse_parts(self, parts: list[Any]) -> list[str]:
        names = []
        for part in parts:
            if isinstance(part, list | dict) or (part is None and len(parts) > 1):
                raise BadRowError(f"label {json.dumps(part)[:60]} in {self._name}; expected the name of a class")
            name = "" if part is None else class_name(str(part).strip())
            if name.lower() == "nan":
                raise BadRowError(f"label {name!r} in {self._name} means a missing value; expected the name of a class")
            names += [name] if name else []
        return names


class SeveralLabelsColumn(LabelColumn):
    """A column of a table whose cells contain any number of class names, with a separator or as a JSON list."""

    spec_class = MultiLabelSpec
    min_classes = 1

    def parse_names(self, value: Any) -> list[str]:
        if value is None:
            raise BadRowError(
                f"label null in {self._name} means a missing value; for a row without labels, write an "
                "empty list [] (in CSV, an empty cell)"
            )
        return self._parse_parts(value if isinstance(value, list) else str(value).split(self._separator))

    def check_separator(self, path: str, lines: Mapping[str, int | str], sizes: set[int]) -> None:
        for name, line in lines.items():
            for separator in _SEPARATORS:
                parts = {part.strip() for part in name.split(separator)}
                if len(parts) > 1 and (max(sizes) < 2 or parts & lines.keys()):
                    raise UserError(
                        f"{format_position(path, line)}: the label {name!r} contains {separator!r}; expected "
                        f"{self._separator!r} between labels. Pass --label_separator={separator!r} if that separates "
                        "them"
                    )
        if sizes == {1}:
            raise UserError(
                f"{format_position(path, next(iter(lines.values())))}: every row has a single label, like "
                f"{next(iter(lines))!r} here; expected several labels separated by {self._separator!r} in some rows. "
                "Pass another --label_separator, or --label_kind=classification for one label per row"
            )


class ValueColumn(LabelColumn):
    """A column of a table whose cells contain a number."""

    spec_class = RegressionSpec
    has_classes = False

    def parse_label(self, value: Any, label_numbers: Mapping[str, int]) -> Any:
        if value in (None, ""):
            raise BadRowError(f"no label in {self._name}")
        number = input_adapters.to_number(value)
        if isinstance(value, bool | list | dict) or not abs(number) <= input_adapters.MAX_MAGNITUDE:
            raise BadRowError(f"label {value!r}; expected a number, at most {input_adapters.MAX_MAGNITUDE:g}")
        return number


COLUMNS: dict[str, type[LabelColumn]] = {
    column.spec_class.kind: column for column in (LabelColumn, SeveralLabelsColumn, ValueColumn)
}
