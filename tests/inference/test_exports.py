import pathlib

import numpy as np
import pytest
import tensorflow as tf

from official_bert.export import plain_answers
from official_bert.inference import exports
from official_bert.inference.saved_model import load_saved_model
from tests.make import refusal, run_python


def strings(*values: str) -> np.ndarray:
    return np.array(values, object)


def test_newest_version_has_the_greatest_number(tmp_path: pathlib.Path):
    for name in ("2", "010", "9x", "²", "12.writing-3"):
        (tmp_path / name).mkdir()
    assert exports.list_versions(str(tmp_path)) == {2: f"{tmp_path}/2", 10: f"{tmp_path}/010"}
    assert exports.find_newest_version(str(tmp_path)) == f"{tmp_path}/010"
    (tmp_path / "10").mkdir()
    assert exports.find_newest_version(str(tmp_path)) == f"{tmp_path}/10"
    (tmp_path / "2" / exports.GRAPH_FILE).touch()
    assert exports.find_newest_version(str(tmp_path / "2")) == str(tmp_path / "2")
    assert "holds no export" in refusal(exports.find_newest_version, str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["run[1]", "back\\slash"])
def test_export_is_loaded_from_a_path_that_looks_like_a_pattern(name: str, tmp_path: pathlib.Path):
    module = tf.Module()
    module.number = tf.Variable(3.0)
    answer = tf.function(lambda text: {"text": text}, input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    tf.saved_model.save(module, str(tmp_path / "model"), signatures={"serving_default": answer})
    (tmp_path / "model").rename(tmp_path / name)
    assert load_saved_model(str(tmp_path / name)).number.numpy() == 3.0
    rows = [{"text": "a"}, {"text": "b"}]
    assert plain_answers.answer_without_package(str(tmp_path / name), rows) == (rows, rows)


def test_truncated_fingerprint_is_rejected_without_a_traceback(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
):
    tf.saved_model.save(tf.Module(), str(tmp_path))
    path = tmp_path / "fingerprint.pb"
    assert load_saved_model(str(tmp_path))
    path.write_bytes(path.read_bytes()[:7])
    assert "fingerprint.pb is damaged" in refusal(load_saved_model, str(tmp_path))
    assert "Traceback" not in capfd.readouterr().err
    path.unlink()  # TensorFlow also loads old exports without a fingerprint
    assert load_saved_model(str(tmp_path))


def test_models_of_other_tools_have_no_metadata(tmp_path: pathlib.Path):
    assert exports.read_metadata(str(tmp_path)) == {}
    path = tmp_path / exports.METADATA_FILE
    path.parent.mkdir()
    path.write_text('{"kind": "tagging"}')
    assert exports.read_metadata(str(tmp_path)) == {"kind": "tagging"}


def test_rows_are_split_without_padding_and_joined_with_it():
    outputs = {"words": np.stack([strings("a", "b"), strings("c", "")]), "starts": np.array([[0, 2], [0, -1]]),
               "probabilities": np.array([[0.5, 0.25], [0.75, 0.0]])}  # fmt: skip
    first, second = exports.split_rows(outputs)
    assert {name: value.tolist() for name, value in first.items()} == {
        "words": [["a", "b"]], "starts": [[0, 2]], "probabilities": [[0.5, 0.25]]
    }  # fmt: skip
    assert {name: value.tolist() for name, value in second.items()} == {
        "words": [["c"]], "starts": [[0]], "probabilities": [[0.75]]
    }  # fmt: skip
    for name, value in exports.join_rows([first, second]).items():
        np.testing.assert_array_equal(value, outputs[name])


def test_pooled_vector_is_not_cut_like_padding():
    outputs = {"input_mask": np.array([[1, 1, 0, 0]]), "sequence_output": np.ones([1, 4, 3]),
               "pooled_output": np.ones([1, 4])}  # fmt: skip
    (row,) = exports.split_rows(outputs)
    shapes = {name: value.shape for name, value in row.items()}
    assert shapes == {"input_mask": (1, 2), "sequence_output": (1, 2, 3), "pooled_output": (1, 4)}


def test_layout_does_not_import_tensorflow():
    code = "import sys; from official_bert.inference import exports; print('tensorflow' in sys.modules)"
    done = run_python("-c", code, check=True)
    assert done.stdout.split() == ["False"]


def test_a_file_is_not_the_folder_of_an_export(tmp_path: pathlib.Path):
    (tmp_path / "file").touch()
    assert "file is a file" in refusal(exports.list_versions, str(tmp_path / "file"))
