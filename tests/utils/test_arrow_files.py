"""Folders written by Hugging Face datasets."""

import json
import pathlib

import pytest

from official_bert.errors import UserError
from official_bert.utils import row_files
from tests import stored_texts


def test_a_folder_with_several_splits_is_rejected_and_they_are_listed(tmp_path: pathlib.Path):
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(UserError, match=rf"has several splits; .*: {tmp_path}/train, {tmp_path}/test"):
        row_files.expand([str(tmp_path)], "input_file")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "state.json does not name the files"),
        (
            {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, {"filename": "gone.arrow"}]},
            "gone.arrow is missing, although .*state.json lists it",
        ),
        ({"_data_files": [], "_indices_files": [{"filename": "indices.arrow"}]}, "a selection of rows"),
    ],
)
def test_an_incomplete_folder_is_an_error(state: dict[str, object], message: str, tmp_path: pathlib.Path):
    folder = stored_texts.hugging_face(tmp_path, ["a", "b"])
    (pathlib.Path(folder) / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=message):
        row_files.expand([folder], "input_file")
