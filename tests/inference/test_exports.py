import dataclasses
import pathlib

import fsspec
import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.export import separate_process
from official_bert.inference import exports, predictor, reference_answers, saved_model
from official_bert.inference.keras_model import KerasRunner, compute_outputs
from official_bert.kinds.features import concatenate_rows, gather_rows
from official_bert.utils import files
from tests.inference.batch_models import export_batches
from tests.make import assert_rejected, write_text


def test_newest_version_has_the_greatest_number(tmp_path: pathlib.Path):
    for name in ("2", "010", "9x", "²", "12.writing-3", "1" * 19):
        (tmp_path / name).mkdir()
    assert exports.list_versions(str(tmp_path)) == {2: f"{tmp_path}/2", 10: f"{tmp_path}/010"}
    assert exports.find_newest_version(str(tmp_path)) == f"{tmp_path}/010"
    (tmp_path / "10").mkdir()
    assert exports.find_newest_version(str(tmp_path)) == f"{tmp_path}/10"
    (tmp_path / "2" / exports.GRAPH_FILE).touch()
    assert exports.find_newest_version(str(tmp_path / "2")) == str(tmp_path / "2")
    assert_rejected((tmp_path / "none", "saved_model.pb"), exports.find_newest_version, str(tmp_path / "none"))
    write_text(tmp_path / "run[1]" / "mine" / "1" / exports.ONNX_FILE, "")
    assert_rejected(tmp_path / "run[1]" / "mine", exports.find_newest_version, str(tmp_path / "run[1]"))
    file = write_text(tmp_path / "file", "")
    assert_rejected((file, "folder"), exports.list_versions, file)


def test_the_files_that_determine_the_answers_are_listed(tmp_path: pathlib.Path):
    names = ["saved_model.pb", "variables/a", "assets/vocab.txt", exports.METADATA_FILE, exports.REPLAY_FILE]
    for name in (*names, "checksums.json", exports.WARMUP_FILE):
        write_text(tmp_path / name, "")
    assert sorted(exports.list_model_files(str(tmp_path))) == sorted(f"{tmp_path}/{name}" for name in names)


@pytest.mark.parametrize("name", ["run[1]", "back\\slash", "memory://run"])
def test_export_is_loaded_from_a_path_that_tensorflow_does_not_open(name: str, tmp_path: pathlib.Path):
    if files.is_remote(name):
        fsspec.filesystem("memory").put(export_batches(tmp_path), name, recursive=True)
    folder = name if files.is_remote(name) else export_batches(tmp_path / name)
    assert saved_model.load_saved_model(folder).signatures
    alone, together = separate_process.answer_without_package(folder, [{"text": "a"}, {"text": "bç中"}])
    assert [row["text"] for row in (*alone, *together)] == ["a", "bç中", "a", "bç中"]


def test_model_of_another_tool_needs_no_signature_with_a_usual_name(tmp_path: pathlib.Path):
    module = tf.Module()
    module.double = tf.function(lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None], tf.int32, "x")])
    module.bytes = tf.function(lambda x: {"y": tf.fill(tf.shape(x), b"a\xff")}, [tf.TensorSpec(None, tf.int32, "x")])
    tf.saved_model.save(module, str(tmp_path), signatures={"double": module.double, "bytes": module.bytes})
    model = saved_model.SavedModelPredictor(str(tmp_path))
    reference_answers.check_answers(str(tmp_path), model)
    assert model.call("double", {"x": np.array([1, 2])})["y"].tolist() == [2, 4]
    assert list(model.signatures) == ["bytes", "double"]
    assert model.signatures["bytes"].inputs["x"].shape is None
    assert model.call("bytes", {"x": np.array([1])})["y"].tolist() == ["a\ufffd"]
    assert model.parallel_batches == predictor.PARALLEL_BATCHES
    assert not model.supports_batching("double")  # padding may change its answers


def test_truncated_fingerprint_is_rejected_without_a_traceback(tmp_path: pathlib.Path, capfd):
    tf.saved_model.save(tf.Module(), str(tmp_path))
    path = tmp_path / "fingerprint.pb"
    assert saved_model.load_saved_model(str(tmp_path))
    assert_rejected(tmp_path, saved_model.SavedModelPredictor, str(tmp_path))  # has no signatures
    path.write_bytes(path.read_bytes()[:7])
    assert_rejected(path, saved_model.load_saved_model, str(tmp_path))
    assert "Traceback" not in capfd.readouterr().err
    path.unlink()  # TensorFlow also loads old exports without a fingerprint
    assert saved_model.load_saved_model(str(tmp_path))


def test_rows_are_split_without_padding_and_joined_with_it():
    outputs = {"words": np.array([["a", "b"], ["c", ""]], object), "starts": np.array([[0, 2], [0, -1]])}
    outputs["probabilities"] = np.array([[0.5, 0.25], [0.75, 0.0]])
    rows = exports.split_rows(outputs)
    long, short = ({name: value.tolist() for name, value in row.items()} for row in rows)
    assert long == {"words": [["a", "b"]], "starts": [[0, 2]], "probabilities": [[0.5, 0.25]]}
    assert short == {"words": [["c"]], "starts": [[0]], "probabilities": [[0.75]]}
    for name, value in exports.join_rows(rows).items():
        np.testing.assert_array_equal(value, outputs[name])


def test_pooled_vectors_are_not_truncated_like_padding():
    outputs = {"input_mask": np.array([[1, 1, 0, 0]]), "sequence_output": np.ones([1, 4, 3])}
    outputs["pooled_output"] = np.ones([1, 4])
    (row,) = exports.split_rows(outputs)
    shapes = {name: value.shape for name, value in row.items()}
    assert shapes == {"input_mask": (1, 2), "sequence_output": (1, 2, 3), "pooled_output": (1, 4)}
    (row,) = exports.to_rows({**outputs, "is_truncated": np.array([True])})
    assert list(row.items()) == [("is_truncated", True), ("pooled_output", [1.0] * 4)]  # sorted by name


def test_outputs_have_the_order_of_the_texts_and_no_padding():
    expected = [[10.0 * number] * length for number, length in enumerate((5, 2, 7, 3, 1))]
    ids = [np.array(row, np.int32) for row in expected]
    features = concatenate_rows(ids, [np.zeros_like(each) for each in ids], {}, {}, has_token_outputs=True)
    of_tokens = compute_outputs(lambda inputs: tf.stack([inputs["input_ids"]] * 2, -1), features, 2, 8)  # [B, S, C]
    assert [row.tolist() for row in of_tokens] == [[[each] * 2 for each in row] for row in expected]
    named = compute_outputs(lambda inputs: {"tokens": inputs["input_ids"]}, features, 2, 8)  # [B, S]
    assert [row.tolist() for row in named["tokens"]] == expected
    assert gather_rows([(features, 1)]).has_token_outputs
    features = dataclasses.replace(features, has_token_outputs=False)
    of_rows = compute_outputs(lambda inputs: {"classes": tf.repeat(inputs["input_ids"][:, :1], 9, 1)}, features, 2, 8)
    assert [row.tolist() for row in of_rows["classes"]] == [row[:1] * 9 for row in expected]  # [B, C]


def test_layers_with_new_variables_are_traced_again():
    names = ("input_ids", "segment_ids", "input_mask")
    inputs = {name: keras.Input([None], dtype="int32", name=name) for name in names}
    features = concatenate_rows([np.arange(4, 9)], [np.zeros(5, np.int32)], {}, {}, has_token_outputs=True)
    layer = keras.layers.Embedding(9, 2)
    runner = KerasRunner(keras.Model(inputs, layer(inputs["input_ids"])), None, 8)
    for change in (lambda: None, lambda: layer.enable_lora(1), lambda: layer.lora_embeddings_b.assign([[2.0, 3.0]])):
        change()
        np.testing.assert_allclose(runner.compute_outputs(features, 1)[0], layer(np.arange(4, 9)), rtol=1e-6)
