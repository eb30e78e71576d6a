"""Leaves out documents that contain a text of an evaluation file, so that training and evaluation data do not overlap.

Texts are compared without white space, so line breaks and sentence boundaries do not matter. Case and accents matter.
"""

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import row_files, tables
from official_bert.utils.bad_rows import NoBadRows
from official_bert.utils.counting import pluralize

MIN_CHARACTERS = 20  # Without white space. Shorter texts occur in documents by chance.


class ExcludedTexts:
    """Texts that documents must not contain.

    Args:
        texts: The texts. White space is ignored.

    Attributes:
        texts: The texts of at least MIN_CHARACTERS characters, without white space, sorted.
        too_short: Number of shorter texts. They are ignored.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        squeezed = {_remove_white_space(text) for text in texts} - {""}
        self.texts = sorted(text for text in squeezed if len(text) >= MIN_CHARACTERS)
        self.too_short = len(squeezed) - len(self.texts)
        self._texts_by_start = collections.defaultdict(list)
        for text in self.texts:
            self._texts_by_start[text[:MIN_CHARACTERS]].append(text)

    def is_in(self, document: Sequence[str]) -> bool:
        """Returns whether a document contains one of the texts.

        Args:
            document: Lines or sentences.
        """
        text = _remove_white_space("".join(document))
        starts = self._texts_by_start
        for position in range(len(text) - MIN_CHARACTERS + 1):
            start = text[position : position + MIN_CHARACTERS]
            if start in starts and any(text.startswith(each, position) for each in starts[start]):
                return True
        return False


class DocumentFilter:
    """Removes documents that contain an excluded text, and counts them.

    Args:
        excluded: The excluded texts. None to remove nothing.

    Attributes:
        left_out: Number of documents removed so far.
    """

    def __init__(self, excluded: ExcludedTexts | None) -> None:
        self._excluded = excluded
        self.left_out = 0

    def __call__(self, documents: Iterable[list[str]]) -> Iterator[list[str]]:
        """Yields the documents, each a list of lines or sentences, that contain no excluded text."""
        for document in documents:
            if self._excluded and self._excluded.is_in(document):
                self.left_out += 1
            else:
                yield document

    @property
    def counts(self) -> dict[str, int]:
        """The number of removed documents, under the name that manifests use. Empty if no texts are excluded."""
        return {"excluded": self.left_out} if self._excluded else {}


def load(paths: list[str]) -> ExcludedTexts | None:
    """Reads the texts in the files of --exclude_texts. Returns None if `paths` is empty.

    In a table, each value is a text. So is each column name, because the file may have no header. In other files, each
    line is a text.

    Raises:
        UserError: If a file is missing or cannot be read.
    """
    return ExcludedTexts(text for path in paths for text in _read_texts(path)) if paths else None


def load_described(patterns: list[str]) -> tuple[list[str], ExcludedTexts | None]:
    """Reads the texts of --exclude_texts like `load`, and prints their number.

    Args:
        patterns: File names, glob patterns and datasets. May be empty.

    Returns:
        The paths of the files, and their texts.

    Raises:
        UserError: If a file is missing or cannot be read, or no text is long enough.
    """
    paths = row_files.expand(patterns, "exclude_texts") if patterns else []
    excluded = load(paths)
    if excluded:
        if not excluded.texts:
            raise UserError(
                f"--exclude_texts={','.join(patterns)} contains no text of at least {MIN_CHARACTERS} characters "
                "without white space; pass another file, or remove the flag"
            )
        print(
            f"--exclude_texts: leaving out documents that contain any of {pluralize(len(excluded.texts), 'text')} "
            f"(ignoring {excluded.too_short:,} of fewer than {MIN_CHARACTERS} characters)"
        )
    return paths, excluded


def _read_texts(path: str) -> Iterator[str]:
    is_table = tables.is_table(path)
    for number, (_, row) in enumerate(tables.read_rows(path, NoBadRows(), is_plain_text=not is_table)):
        if is_table and number == 0:
            yield from row
        yield from _find_strings(row)


def _find_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _find_strings(each)


def _remove_white_space(text: str) -> str:
    return "".join(text.split()).encode("utf-8", "ignore").decode()  # JSON can contain lone surrogates.
