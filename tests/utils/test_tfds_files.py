"""TensorFlow Datasets data sets: finding them by name, and reading them file by file."""

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from official_bert.utils import row_files
from tests.make import assert_mentions, assert_rejected, refusal
from tests.stored_texts import prepare_tfds, prepare_tfds_rows

TEXTS = [f"Text {number}, “quoted”." for number in range(7)]


@pytest.fixture
def data_dir(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    return tmp_path


def read(name: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
    rows = []
    for path in row_files.expand([name], "input_file"):
        assert row_files.detect_kind(path) == "tfds"
        (part,) = row_files.find_ranges(path, "tfds", 1)
        rows += [row for _, row in row_files.read_rows(path, "tfds", columns, part)]
    return rows


def test_a_prepared_dataset_is_read_without_network(data_dir: pathlib.Path):
    name = f"tfds:{prepare_tfds(data_dir, TEXTS)}"
    assert read(name, ["text"]) == read(f"{name}#train", ["text"]) == [{"text": text} for text in TEXTS]
    assert read(name)[5] == {"text": TEXTS[5], "number": 5}
    assert_rejected(("prose/small", "'test'", "train"), read, f"{name}#test")
    (line,) = refusal(read, "tfds:no_such").splitlines()
    assert_mentions(line, "no_such")
    assert_rejected(("'body'", "'text'"), read, name, ["body"])
    assert_rejected(("'number'", "int64"), read, name, ["number"])


def test_values_are_converted_to_python_types_and_classes_to_names(data_dir: pathlib.Path):
    names = tfds.features.ClassLabel(names=["bad", "good"])
    rows = [
        {"text": "a", "label": 1, "words": ["b", "é"], "tags": [0, 1], "answers": {"start": [3, 4]}, "score": 0.5},
        {"text": "b", "label": -1, "words": [], "tags": [], "answers": {"start": []}, "score": 0.0},
    ]
    name = prepare_tfds_rows(
        data_dir, rows, text=tfds.features.Text(), label=names, words=tfds.features.Sequence(tfds.features.Text()),
        tags=tfds.features.Sequence(names), answers=tfds.features.Sequence({"start": np.int32}), score=np.float32,
    )  # fmt: skip
    first, second = read(f"tfds:{name}")
    assert first == {**rows[0], "label": "good", "tags": ["bad", "good"]}
    assert second == {**rows[1], "label": None}


def test_files_without_rows_are_omitted(data_dir: pathlib.Path):
    assert read(f"tfds:{prepare_tfds(data_dir, TEXTS[:1])}", ["text"]) == [{"text": TEXTS[0]}]


def test_a_damaged_file_is_an_error(data_dir: pathlib.Path):
    name = f"tfds:{prepare_tfds(data_dir, TEXTS)}"
    path = pathlib.Path(row_files.expand([name], "input_file")[1])
    content = path.read_bytes()
    for row, damaged in ((3, content[:-3]), (0, content[:20] + b"?" + content[21:])):
        path.write_bytes(damaged)
        (line,) = refusal(read, name).splitlines()
        assert_mentions(line, path, f"row {row}")
    other = path.rename(path.with_name("prose-train.tfrecord-00002-of-00002"))
    assert_rejected((other, "tfds:NAME"), list, row_files.read_rows(str(other), "tfds"))
    (path.parent / "dataset_info.json").write_text("{")
    assert_rejected((path.parent, "JSON"), list, row_files.read_rows(str(other), "tfds"))
