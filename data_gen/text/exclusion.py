"""Documents that hold a text of an evaluation file are left out: what is trained on must not be scored on.

Texts are compared without white space, so that it does not matter where lines and sentences were cut; all else counts,
capital letters and accents too.
"""

import collections
import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.utils import files, row_files, tables
from official_bert.utils.bad_rows import NoBadRows
from official_bert.utils.counting import pluralize

MIN_CHARACTERS = 20  # of a text without white space; shorter ones stand in documents by chance

# A text is looked for by a hash of its first MIN_CHARACTERS characters: a polynomial, modulo 2**64.
_BASE = 0x9E3779B97F4A7C15
_SPREAD = np.uint64(0xD6E8FEB86659FD93)  # brings what differs in any bit to the upper ones
_TABLE_BITS = 20


class ExcludedTexts:
    """Texts that no document may hold.

    Args:
        texts: in any spelling of white space.

    Attributes:
        texts: those of MIN_CHARACTERS and more, without white space, sorted.
        too_short: how many others there are.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        squeezed = {_remove_white_space(text) for text in texts} - {""}
        self.texts = sorted(text for text in squeezed if len(text) >= MIN_CHARACTERS)
        self.too_short = len(squeezed) - len(self.texts)

    @functools.cached_property
    def _texts_by_start(self) -> dict[str, list[str]]:
        texts = collections.defaultdict(list)
        for text in self.texts:
            texts[text[:MIN_CHARACTERS]].append(text)
        return texts

    @functools.cached_property
    def _hash_table(self) -> np.ndarray:
        """Which hashes, of those brought to _TABLE_BITS, a text may begin with."""
        table = np.zeros(1 << _TABLE_BITS, bool)
        for start in self._texts_by_start:
            table[_hash_windows(start)] = True
        return table

    def is_in(self, document: Sequence[str]) -> bool:
        """Whether a document, given as its lines or sentences, holds one of the texts."""
        text = _remove_white_space("".join(document))
        if len(text) < MIN_CHARACTERS:
            return False
        for position in np.flatnonzero(self._hash_table[_hash_windows(text)]).tolist():
            starting = self._texts_by_start.get(text[position : position + MIN_CHARACTERS], ())
            if any(text.startswith(each, position) for each in starting):
                return True
        return False


class DocumentFilter:
    """Passes on the documents that hold no excluded text.

    Attributes:
        left_out: how many others there were so far.
    """

    def __init__(self, excluded: ExcludedTexts | None) -> None:
        self._excluded = excluded
        self.left_out = 0

    def __call__(self, documents: Iterable[list[str]]) -> Iterator[list[str]]:
        """Yields the documents to keep, each a list of lines or sentences."""
        for document in documents:
            if self._excluded and self._excluded.is_in(document):
                self.left_out += 1
            else:
                yield document

    @property
    def counts(self) -> dict[str, int]:
        """The number of documents left out, by the name that manifests have; nothing where no text is excluded."""
        return {"excluded": self.left_out} if self._excluded else {}


def load(paths: list[str]) -> ExcludedTexts | None:
    """Returns the texts of the files of --exclude_texts, or None where there are none.

    Of a table, as fine-tuning reads it, each value is a text, and the columns' names too, since a file may have no
    header; of other files each line.

    Raises:
        UserError: a file is missing or cannot be read.
    """
    return ExcludedTexts(text for path in paths for text in _read_texts(path)) if paths else None


def load_described(patterns: list[str]) -> tuple[list[str], ExcludedTexts | None]:
    """Returns the files of --exclude_texts and their texts, as `load`, and prints how many texts there are.

    Raises:
        UserError: as of `load`; or there is no text that is long enough.
    """
    paths = row_files.expand(patterns, "exclude_texts") if patterns else []
    excluded = load(paths)
    if excluded:
        if not excluded.texts:
            raise UserError(
                f"--exclude_texts={','.join(patterns)} holds no text of {MIN_CHARACTERS} characters or more, white "
                "space not counted; give another file, or none"
            )
        short = f"; {excluded.too_short:,} of fewer than {MIN_CHARACTERS} characters are not looked for"
        print(f"--exclude_texts: {pluralize(len(excluded.texts), 'text')}; documents that hold one are left out{short}")
    return paths, excluded


def describe_files(paths: list[str]) -> list[dict[str, str]]:
    """Returns what the manifest says of the files: names and hashes."""
    return [{"file": os.path.basename(path), "sha256": files.sha256(path)} for path in paths]


def _read_texts(path: str) -> Iterator[str]:
    is_table = tables.is_table(path)
    for number, (_, row) in enumerate(tables.read_rows(path, NoBadRows(), as_text=not is_table)):
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
    return "".join(text.split()).encode("utf-8", "ignore").decode()  # JSON may have halves of characters


def _hash_windows(text: str) -> np.ndarray:
    """Returns the hash of the MIN_CHARACTERS from each position of a text on, where there are so many."""
    values = np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.uint64)
    of_four = values
    for length in (1, 2, 4, 8):  # from the hashes of so many characters to those of twice as many
        values = values[:-length] * _compute_power(length) + values[length:]
        of_four = values if length == 2 else of_four
    values = values[:-4] * _compute_power(4) + of_four[16:]  # 16 and 4 are MIN_CHARACTERS
    return (values * _SPREAD) >> np.uint64(64 - _TABLE_BITS)


def _compute_power(exponent: int) -> np.uint64:
    return np.uint64(pow(_BASE, exponent, 1 << 64))
