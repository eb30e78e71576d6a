import pathlib

import fsspec
import numpy as np
import pytest
import tensorflow as tf

from official_bert.export import separate_process
from official_bert.inference import exports, reference_answers
from official_bert.inference.saved_model import SavedModelPredictor, load_saved_model
from official_bert.utils import files
from tests.inference.batch_models import export_batches
from tests.make import assert_rejected, run_python, write_text


def test_newest_version_has_the_greatest_number(tmp_path: pathlib.Path):
    for name in ("2", "010", "9x", "²", "12.writing-3"):
        (tmp_path / name).mkdir()
    assert exports.list_versions(str(tmp_path)) == {2: f"{tmp_path}/2", 10: f"{tmp_path}/010"}
    assert exports.find_newest_version(str(tmp_path)) == f"{tmp_path}/010"
    (tmp_path / "10").mkdir()
    assert exports.find_newest_version(str(tmp_path)) == f"{tmp_path}/10"
    (tmp_path / "2" / exports.GRAPH_FILE).touch()
    assert exports.find_newest_version(str(tmp_path / "2")) == str(tmp_path / "2")
    assert_rejected((tmp_path / "none", "saved_model.pb"), exports.find_newest_version, str(tmp_path / "none"))
    file = write_text(tmp_path / "file", "")
    assert_rejected((file, "folder"), exports.list_versions, file)


@pytest.mark.parametrize("name", ["run[1]", "back\\slash", "memory://run"])
def test_export_is_loaded_from_a_path_that_tensorflow_does_not_open(name: str, tmp_path: pathlib.Path):
    if files.is_remote(name):
        fsspec.filesystem("memory").put(export_batches(tmp_path), name, recursive=True)
    folder = name if files.is_remote(name) else export_batches(tmp_path / name)
    assert load_saved_model(folder).signatures
    alone, together = separate_process.answer_without_package(folder, [{"text": "a"}, {"text": "bc"}])
    assert [row["text"] for row in (*alone, *together)] == ["a", "bc", "a", "bc"]


def test_model_of_another_tool_needs_no_signature_with_a_usual_name(tmp_path: pathlib.Path):
    module = tf.Module()
    module.double = tf.function(lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None], tf.int32, "x")])
    tf.saved_model.save(module, str(tmp_path), signatures={"double": module.double})
    model = SavedModelPredictor(str(tmp_path))
    reference_answers.check_answers(str(tmp_path), model)
    assert model.call("double", {"x": np.array([1, 2])})["y"].tolist() == [2, 4]
    assert list(model.signatures) == ["double"]


def test_truncated_fingerprint_is_rejected_without_a_traceback(tmp_path: pathlib.Path, capfd):
    tf.saved_model.save(tf.Module(), str(tmp_path))
    path = tmp_path / "fingerprint.pb"
    assert load_saved_model(str(tmp_path))
    path.write_bytes(path.read_bytes()[:7])
    assert_rejected(path, load_saved_model, str(tmp_path))
    assert "Traceback" not in capfd.readouterr().err
    path.unlink()  # TensorFlow also loads old exports without a fingerprint
    assert load_saved_model(str(tmp_path))


def test_models_of_other_tools_have_no_metadata(tmp_path: pathlib.Path):
    assert exports.read_metadata(str(tmp_path)) == {}
    write_text(tmp_path / exports.METADATA_FILE, '{"kind": "tagging"}')
    assert exports.read_metadata(str(tmp_path)) == {"kind": "tagging"}


def test_rows_are_split_without_padding_and_joined_with_it():
    outputs = {
        "words": np.array([["a", "b"], ["c", ""]], object),
        "starts": np.array([[0, 2], [0, -1]]),
        "probabilities": np.array([[0.5, 0.25], [0.75, 0.0]]),
    }
    rows = exports.split_rows(outputs)
    assert [{name: value.tolist() for name, value in row.items()} for row in rows] == [
        {"words": [["a", "b"]], "starts": [[0, 2]], "probabilities": [[0.5, 0.25]]},
        {"words": [["c"]], "starts": [[0]], "probabilities": [[0.75]]},
    ]
    for name, value in exports.join_rows(rows).items():
        np.testing.assert_array_equal(value, outputs[name])


def test_pooled_vectors_are_not_truncated_like_padding():
    outputs = {"input_mask": [[1, 1, 0, 0]], "sequence_output": np.ones([1, 4, 3]), "pooled_output": np.ones([1, 4])}
    (row,) = exports.split_rows({name: np.array(value) for name, value in outputs.items()})
    shapes = {name: value.shape for name, value in row.items()}
    assert shapes == {"input_mask": (1, 2), "sequence_output": (1, 2, 3), "pooled_output": (1, 4)}


def test_layout_does_not_import_tensorflow():
    code = "import sys; from official_bert.inference import exports; print('tensorflow' in sys.modules)"
    assert run_python("-c", code, check=True).stdout.split() == ["False"]
