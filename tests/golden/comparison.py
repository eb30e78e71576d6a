"""How tests compare what is answered today with what was answered when the golden files were made."""

import json
import pathlib
import tarfile
from typing import Any

import pytest

from tests.golden.make_older_models import FOLDER


def unpacked(archive: str, folder: pathlib.Path) -> pathlib.Path:
    """Unpacks an archive of older_models; returns the folder."""
    with tarfile.open(FOLDER / archive) as reader:
        reader.extractall(folder, filter="data")
    return folder


def golden(name: str) -> Any:
    """Returns what a JSON file of older_models holds."""
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def numbers_and_rest(value: Any) -> tuple[list[float], Any]:
    """Splits JSON into its numbers with a fraction, in order, and all else, with None in their place."""
    if isinstance(value, float):
        return [value], None
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        parts = [(key, *numbers_and_rest(each)) for key, each in items]
        return [number for _, numbers, _ in parts for number in numbers], [(key, rest) for key, _, rest in parts]
    return [], value


def assert_alike(found: Any, expected: Any, relative: float = 1e-4) -> None:
    """Asserts that two JSON values are the same but for the rounding of numbers."""
    (numbers, rest), (expected_numbers, expected_rest) = numbers_and_rest(found), numbers_and_rest(expected)
    assert rest == expected_rest
    assert numbers == pytest.approx(expected_numbers, rel=relative, abs=1e-6)


def words_of(text: str) -> list[Any]:
    """The words of a file of predictions, those that are numbers with a fraction as such."""

    def value(word: str) -> Any:
        try:
            return float(word) if "." in word or "e" in word else word
        except ValueError:
            return word

    return [value(word) for word in text.replace(",", " ").split()]
