"""The labels in a table's column: a class's name, several names, or a number."""

import collections
import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import input_adapters
from official_bert.kinds.class_labels import class_name
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.text_spec import TextSpec
from official_bert.tasks.options import TableOptions
from official_bert.utils import tables
from official_bert.utils.bad_rows import format_position

_MOST_LABELS_SHOWN = 10
_SEPARATORS = ",;|\t"  # usual between the labels of a row


def is_number(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return np.isfinite(float(text)).item()
    except ValueError:
        return False


def find_similar_classes(labels: Iterable[str]) -> list[str]:
    """Returns a note for each group of classes that differ only by case or blanks."""
    groups = collections.defaultdict(list)
    for label in labels:
        groups["".join(label.split()).casefold()].append(repr(label))
    alike = [names for names in groups.values() if len(names) > 1]
    return [f"classes differ only by case or blanks: {tables.format_names(names)}; are they one?" for names in alike]


class LabelColumn:
    """A column with the name of a class in each cell.

    Args:
        options: of the table.

    Attributes:
        head: the class of the head that learns such labels.
        has_classes: whether labels are names.
        least_classes: how many there must be to learn something.
    """

    head: ClassVar[type[TextSpec]] = ClassificationSpec
    has_classes: ClassVar[bool] = True
    least_classes: ClassVar[int] = 2

    def __init__(self, options: TableOptions) -> None:
        self._name, self._separator = options.label_column, options.label_separator

    def names_in(self, value: Any) -> tuple[list[str], str]:
        """Returns the names in a cell, and what is wrong with it."""
        names, problem = self._names([value])
        return names, problem or ("" if names else f"no label in {self._name}")

    def label_of(self, value: Any, number_of: Mapping[str, int]) -> tuple[Any, str]:
        """Returns the label as in TextExample, and what is wrong with the cell.

        Args:
            value: of the cell.
            number_of: the number of each class, by its names.
        """
        numbers, problem = self._numbers(value, number_of)
        return (None, problem) if problem else (numbers[0], "")

    def check_separator(self, path: str, lines: Mapping[str, int | str], sizes: set[int]) -> None:
        """Raises a UserError if the names of several classes seem to have been read as one.

        Args:
            path: The table.
            lines: The position of the first row of each class.
            sizes: How many classes the rows have.
        """

    def _names(self, parts: list[Any]) -> tuple[list[str], str]:
        names = []
        for part in parts:
            if isinstance(part, list | dict) or (part is None and len(parts) > 1):
                return [], f"label {json.dumps(part)[:60]} in {self._name}; expected the name of a class"
            name = "" if part is None else class_name(str(part).strip())
            if name.lower() == "nan":
                return [], f"label {name!r} in {self._name} stands for a missing one; expected the name of a class"
            names += [name] if name else []
        return names, ""

    def _numbers(self, value: Any, number_of: Mapping[str, int]) -> tuple[tuple[int, ...], str]:
        names, problem = self.names_in(value)
        unknown = [name for name in names if name not in number_of]
        if problem or unknown:
            labels = list(number_of)[: len(set(number_of.values()))]  # other names of the same classes come after
            known = ", ".join(labels[:_MOST_LABELS_SHOWN])
            more = ", ..." if len(labels) > _MOST_LABELS_SHOWN else ""
            shown = ", ".join(map(repr, unknown))
            return (), problem or f"unknown label {shown}; the training data have {len(labels)}: {known}{more}"
        return tuple(sorted({number_of[name] for name in names})), ""


class SeveralLabelsColumn(LabelColumn):
    """A column with any number of classes' names in each cell, separated, or as a list of JSON."""

    head = MultiLabelSpec
    least_classes = 1

    def names_in(self, value: Any) -> tuple[list[str], str]:
        return self._names(
            value if isinstance(value, list) else str("" if value is None else value).split(self._separator)
        )

    def label_of(self, value: Any, number_of: Mapping[str, int]) -> tuple[Any, str]:
        numbers, problem = self._numbers(value, number_of)
        return (None, problem) if problem else (numbers, "")

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
                f"{format_position(path, next(iter(lines.values())))}: this row and all others have one label each, "
                f"such as {next(iter(lines))!r}; expected several, with {self._separator!r} between. Pass "
                "--label_separator, or --label_kind=classification"
            )


class ValueColumn(LabelColumn):
    """A column with a number in each cell."""

    head = RegressionSpec
    has_classes = False

    def label_of(self, value: Any, number_of: Mapping[str, int]) -> tuple[Any, str]:
        if value in (None, ""):
            return None, f"no label in {self._name}"
        is_value = not isinstance(value, bool | list | dict) and is_number(str(value))
        if not is_value or abs(float(value)) > input_adapters.MAX_MAGNITUDE:
            return None, f"label {value!r}; expected a number, at most {input_adapters.MAX_MAGNITUDE:g}"
        return float(value), ""


COLUMNS: dict[str, type[LabelColumn]] = {
    column.head.kind: column for column in (LabelColumn, SeveralLabelsColumn, ValueColumn)
}
