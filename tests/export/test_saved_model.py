import ast
import json
import pathlib
import re
import shutil
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.formats import finetuned
from official_bert.export import operations, warmup
from official_bert.export.options import SAVED_MODEL
from official_bert.export.source import read_source
from official_bert.export.warmup import EXAMPLES
from official_bert.inference import backends
from official_bert.kinds.graph_model import GraphModel
from official_bert.kinds.names import CLASSIFICATION, ENCODER, FILL_MASK, KINDS
from tests.conftest import ROOT, slow_after
from tests.export.exported_models import TEXTS, build_model, export, make_source, save_finetuned
from tests.make import VOCAB, assert_mentions, assert_rejected, flip_bits
from tests.serving.serving_client import running


@pytest.fixture(scope="module")
def exported(export_kind) -> pathlib.Path:
    """The only version of an exported text classifier."""
    return pathlib.Path(export_kind(CLASSIFICATION, SAVED_MODEL))


@pytest.fixture(scope="module")
def signatures(exported: pathlib.Path) -> Any:
    """The functions of the export, loaded by TensorFlow."""
    return tf.saved_model.load(str(exported)).signatures


def test_export_has_metadata_and_warm_up_requests_and_no_local_paths(exported: pathlib.Path, save_kind):
    assert json.loads((exported / "assets.extra" / "official_bert.json").read_text()) == {
        "kind": "classification",
        "task": "a classification",
        "inputs": ["text"],
        "labels": ["no", "perhaps", "yes"],
        "max_seq_length": 20,
        "do_lower_case": True,
        "version_of_official_bert": "0.1.0",
        "task_spec": finetuned.read_task_spec(save_kind(CLASSIFICATION)),
        "tensorflow_serving": ["2.17", "2.18", "2.19", "2.20", "2.21"],
    }
    assert (exported / "assets" / "vocab.txt").read_text() == VOCAB
    content = (exported / "saved_model.pb").read_bytes()
    for place in (str(ROOT), str(exported.parent.parent.parent), sys.prefix):
        assert place.encode() not in content
    assert [path.name for path in exported.parent.iterdir()] == ["1"]
    requests = tf.data.TFRecordDataset(str(exported / "assets.extra" / "tf_serving_warmup_requests"))
    for request, text in zip(requests.as_numpy_iterator(), EXAMPLES, strict=True):
        assert request.count(text.encode()) == 1
        assert b"serving_default" in request


@pytest.mark.parametrize("name", ["saved_model.pb", "variables", "assets/vocab.txt", "assets.extra/official_bert.json"])
def test_flipped_byte_is_detected_at_loading(name: str, exported: pathlib.Path, tmp_path: pathlib.Path):
    version = shutil.copytree(exported, tmp_path / "1")
    path = next((version / name).glob("*.data*")) if name == "variables" else version / name
    flip_bits(path, path.stat().st_size // 2)
    assert_rejected((path, version / "checksums.json"), backends.load_predictor, str(version))


def test_signatures_agree_with_each_other(signatures: Any):
    texts = {"text": tf.constant(TEXTS)}
    features = signatures["tokenize"](**texts)
    assert {value.dtype for value in features.values()} == {tf.int32}
    answers, from_ids = signatures["serving_default"](**texts), signatures["serving_ids"](**features)
    assert set(answers) == {"label", "probability", "labels", "probabilities", "is_truncated"}
    assert set(from_ids) == {*answers, "logits"} - {"is_truncated"}
    for name in answers.keys() & from_ids.keys():
        np.testing.assert_array_equal(answers[name], from_ids[name])


def test_ids_that_the_model_cannot_read_are_rejected(signatures: Any, exported: pathlib.Path):
    good = {"input_ids": [2, 7, 3], "input_mask": [1, 1, 1], "segment_ids": [0, 0, 1]}
    with running({"m": exported.parent}) as (_, client):
        for changes, *expected in (
            ({"segment_ids": [0, 0, 7]}, "segment_ids", "0 to 1"),
            ({"input_mask": [1, 1, 1, 1]}, "input_mask", "input_ids"),
            ({name: [1] * 65 for name in good}, "input_ids", "1 to 64"),
        ):
            row = good | changes
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                signatures["serving_ids"](**{name: tf.constant([values]) for name, values in row.items()})
            assert_mentions(str(caught.value), *expected)
            refused = client.predict("m", {"signature_name": "serving_ids", "instances": [row]})
            refused.assert_rejected(400, *expected)
        assert client.predict("m", {"signature_name": "serving_ids", "instances": [good]}).status == 200


def find_block(page: str, word: str) -> str:
    """Returns the Python block of a guide that contains a word."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guides" / page).read_text(), re.DOTALL)
    (block,) = (block for block in blocks if word in block)
    return block


@pytest.mark.slow
def test_documented_python_clients_get_answers(exported: pathlib.Path, tmp_path: pathlib.Path, capsys, monkeypatch):
    shutil.copytree(exported, tmp_path / "exports" / "sst2" / "1")
    monkeypatch.chdir(tmp_path)
    load = find_block("export.md", "tf.saved_model.load")
    found: dict[str, Any] = {}
    exec(load.replace('model.signatures["', 'found = model.signatures["'), found)
    client = find_block("serving.md", "urllib")
    with running({"sst2": tmp_path / "exports" / "sst2"}) as (server, _):
        exec(client.replace("http://localhost:8501", server.url), {})
    (answer,) = ast.literal_eval(capsys.readouterr().out)
    assert answer["label"] == found["found"]["label"].numpy()[0].decode()
    np.testing.assert_allclose(answer["probabilities"], found["found"]["probabilities"][0], rtol=1e-5)


def test_a_failed_export_leaves_no_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(GraphModel, "signatures", lambda self: {})
    monkeypatch.setattr(operations, "find_missing", lambda folder: {"2.19": ["Softmax"]})
    for release, name in (("2.19", "Softmax"), ("2.3", "2.19")):
        given = (make_source(CLASSIFICATION), tmp_path / "exports")
        assert_rejected((release, name), export, *given, for_serving=release)
    assert list((tmp_path / "exports").iterdir()) == []


def test_a_separate_process_that_fails_is_reported(run_separate_process, tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    assert_rejected((tmp_path, 1), run_separate_process, str(tmp_path), [])


def test_a_pretraining_run_is_exported_as_masked_lm_or_encoder(save_kind):
    source = read_source(save_kind(FILL_MASK))
    assert (source.kind, source.task_spec["max_seq_length"]) == ("fill_mask", 64)
    source = read_source(save_kind(ENCODER), encoder=True, max_seq_length=8)
    assert (source.kind, source.task_spec["max_seq_length"]) == ("encoder", 8)
    ids = np.array([[2, 7, 8, 3]], np.int32)
    features = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    expected = build_model(ENCODER)(features)
    for name, value in source.model(features).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


def test_max_seq_length_is_between_8_and_the_models_maximum(save_kind):
    for length in (7, 65):
        names = ("max_seq_length", length, 8, 64)
        assert_rejected(names, read_source, save_kind(ENCODER), encoder=True, max_seq_length=length)
    assert_rejected("nowhere", read_source, "nowhere")


@pytest.mark.parametrize("kind", slow_after(1, KINDS))
def test_encoder_of_a_finetuned_model_has_its_weights(kind: str, save_kind):
    source = read_source(save_kind(kind), encoder=True)
    trained = {variable.path: variable for variable in build_model(kind).variables}
    assert len(source.model.variables) > 30
    for variable in source.model.variables:
        np.testing.assert_array_equal(variable, trained[variable.path])
    assert ("pooled_output" in source.model.output) == ("pooler/kernel" in trained)


def test_encoder_without_all_outputs_is_rejected(tmp_path: pathlib.Path):
    folder = save_finetuned(tmp_path / "model", CLASSIFICATION, head="embeddings", lstm_units=3)
    assert_rejected((folder, "layer_0_attention_query/kernel", "embeddings"), read_source, folder, encoder=True)


TEXT = b"b" * 140  # long enough for two-byte lengths
# A PredictionLog with one text for serving_default.
PLAIN = (
    b"2\xb9\x01\n\xb6\x01\n\x11\x1a\x0fserving_default\x12\xa0\x01\n\x04text"
    b"\x12\x97\x01\x08\x07\x12\x04\x12\x02\x08\x01B\x8c\x01" + TEXT
)


def test_requests_are_written_as_tensorflow_serving_reads_them(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warmup, "EXAMPLES", (TEXT,))
    path = tmp_path / "requests"
    warmup.write_requests(str(path), {"text": tf.TensorSpec([None], tf.string)})
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == [PLAIN]
