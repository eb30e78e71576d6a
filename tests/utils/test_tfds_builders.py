"""Data sets of TensorFlow Datasets as files."""

import pathlib

import pytest

from official_bert.errors import UserError
from official_bert.utils import row_files
from tests.stored_texts import prepare_tfds


def test_a_prepared_data_set_is_named_without_a_network(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    texts = [f"Text {number}." for number in range(7)]
    name = f"tfds:{prepare_tfds(tmp_path, texts)}"
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    paths = row_files.expand([name], "input_file")
    assert len(paths) == 2
    rows = [row["text"] for path in paths for _, row in row_files.read_rows(path, "tfrecord", ["text"])]
    assert rows == texts
    assert row_files.expand([f"{name}#train"], "input_file") == paths
    with pytest.raises(UserError, match="prose/small has no split 'test'; expected .* one of train"):
        row_files.expand([f"{name}#test"], "input_file")
    with pytest.raises(UserError, match=r"cannot get no_such from TensorFlow Datasets: .*") as caught:
        row_files.expand(["tfds:no_such"], "input_file")
    assert "\n" not in str(caught.value)
