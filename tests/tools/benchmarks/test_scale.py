"""Copies of a text up to a size, and what is measured of processes and folders."""

import pathlib

import pytest

from official_bert.errors import UserError
from tools.benchmarks import scale


def test_copies_end_after_a_document_and_are_as_large_as_asked_for(tmp_path: pathlib.Path):
    document = "the cat sat .\n" * 10 + "\n"
    text = tmp_path / "text.txt"
    text.write_text(document * 2000)  # 0.28 MB
    paths = [pathlib.Path(path) for path in scale.write_copies(str(text), str(tmp_path), 1)]
    sizes = [path.stat().st_size for path in paths]
    assert sizes[:-1] == [len(document) * 2000] * 3
    assert 1_000_000 - len(document) <= sum(sizes) <= 1_000_000
    assert all(path.read_text().rstrip("\n").endswith("sat .") for path in paths)
    assert scale._size(tmp_path) == sum(sizes) + len(document) * 2000


def test_wrong_sizes_are_refused():
    with pytest.raises(UserError, match="--sizes_mb is '20,x'; expected whole numbers"):
        scale.Options(sizes_mb=["20", "x"])
