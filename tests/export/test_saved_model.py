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

from official_bert.errors import UserError
from official_bert.export import formats
from official_bert.export.source import read_source
from official_bert.export.warmup import EXAMPLES
from official_bert.inference import batch_prediction, replays
from official_bert.inference.options import BatchPredictionOptions
from official_bert.inference.saved_model import SavedModelPredictor
from official_bert.keras_models.text_classifier import TextClassifier
from official_bert.kinds.graph_model import GraphModel
from official_bert.kinds.names import CLASSIFICATION, KINDS, TAGGING
from official_bert.modeling.pretraining_model import get_encoder
from tests.conftest import ROOT
from tests.export.exported_models import TEXTS, build_model, export, pretraining_model, save_finetuned, save_run
from tests.make import VOCAB, refusal
from tests.serving.serving_client import running


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The only version of an exported text-pair classifier."""
    folder = tmp_path_factory.mktemp("exports")
    model_dir = save_finetuned(folder / "model", CLASSIFICATION, pair=True)
    path = export(model_dir, str(folder / "here" / "name"))
    assert path == str(folder / "here" / "name" / "1")
    return pathlib.Path(path)


@pytest.fixture(scope="module")
def loaded(exported: pathlib.Path) -> Any:
    """The export, loaded by TensorFlow."""
    return tf.saved_model.load(str(exported))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a classifier. Tests must not change it."""
    return save_finetuned(tmp_path_factory.mktemp("models") / "classifier", CLASSIFICATION)


@pytest.mark.slow
def test_export_moves_and_loads_without_this_package(exported, tmp_path, run_separate_process):
    moved = str(shutil.copytree(exported, tmp_path / "elsewhere"))
    texts = replays.read(moved)
    alone, together = run_separate_process(moved, texts.rows())
    assert not list(texts.differences(alone, "alone")) + list(texts.differences(together, "together"))
    assert len(alone) == len(texts) > len(together) > 5
    with pytest.raises(UserError, match=r"a separate process cannot run .*: [^$]*none"):
        run_separate_process(str(tmp_path / "none"), texts.rows())


def test_export_has_metadata_and_no_local_paths(exported: pathlib.Path):
    assert json.loads((exported / "assets.extra" / "official_bert.json").read_text()) == {
        "kind": "classification",
        "task": "a classification",
        "inputs": ["text", "text_pair"],
        "labels": ["no", "perhaps", "yes"],
        "max_seq_length": 20,
        "do_lower_case": True,
        "version_of_official_bert": "0.1.0",
        "tensorflow_serving": ["2.17", "2.18", "2.19", "2.20", "2.21"],
    }
    assert (exported / "assets" / "vocab.txt").read_text() == VOCAB
    content = (exported / "saved_model.pb").read_bytes()
    for place in (str(ROOT), str(exported.parent.parent.parent), sys.prefix):
        assert place.encode() not in content
    assert sorted(path.name for path in exported.parent.iterdir()) == ["1"]


@pytest.mark.parametrize("name", ["saved_model.pb", "variables", "assets/vocab.txt", "assets.extra/official_bert.json"])
def test_flipped_byte_is_detected_at_loading(name: str, exported: pathlib.Path, tmp_path):
    version = shutil.copytree(exported, tmp_path / "1")
    path = next((version / name).glob("*.data*")) if name == "variables" else version / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert f"{path.name} does not match its checksum; restore the folder from a copy" in refusal(
        SavedModelPredictor, str(version)
    )


def test_signatures_agree_with_each_other(loaded: Any):
    signatures = loaded.signatures
    texts = {"text": tf.constant(TEXTS), "text_pair": tf.constant(TEXTS[::-1])}
    features = signatures["tokenize"](**texts)
    assert {value.dtype for value in features.values()} == {tf.int32}
    answers, from_ids = signatures["serving_default"](**texts), signatures["serving_ids"](**features)
    assert set(answers) == {"label", "probability", "labels", "probabilities", "is_truncated"}
    assert set(from_ids) == {*answers, "logits"} - {"is_truncated"}
    for name in answers.keys() & from_ids.keys():
        value = answers[name]
        np.testing.assert_array_equal(value, from_ids[name])


def test_segments_without_an_embedding_are_rejected(loaded: Any, exported: pathlib.Path):
    row = {"input_ids": [2, 7, 3], "input_mask": [1, 1, 1], "segment_ids": [0, 0, 7]}
    message = "segment_ids has values outside of 0 to 1"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        loaded.signatures["serving_ids"](**{name: tf.constant([values]) for name, values in row.items()})
    good = {**row, "segment_ids": [0, 0, 1]}
    with running({"pair": exported.parent}) as (_, client):
        refused = client.predict("pair", {"signature_name": "serving_ids", "instances": [good, row]})
        answered = client.predict("pair", {"signature_name": "serving_ids", "instances": [good]})
    assert (refused.status, answered.status) == (400, 200)
    assert refused.error.startswith(f"the model rejects the input: assertion failed: [{message}")


def test_the_export_has_warm_up_requests(exported: pathlib.Path):
    path = str(exported / "assets.extra" / "tf_serving_warmup_requests")
    requests = list(tf.data.TFRecordDataset(path).as_numpy_iterator())
    for request, text in zip(requests, EXAMPLES, strict=True):
        assert request.count(text.encode()) == 2  # text and text_pair
        assert b"serving_default" in request


def find_block(page: str, word: str) -> str:
    """Returns the Python block of a guide that contains a word."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guides" / page).read_text(), re.DOTALL)
    (block,) = (block for block in blocks if word in block)
    return block


@pytest.fixture(scope="module")
def sst2(classifier: str, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The export that docs/guides/export.md and serving.md use: a single-text classifier."""
    folder = tmp_path_factory.mktemp("docs")
    export(classifier, str(folder / "exports" / "sst2"))
    return folder


@pytest.mark.slow
def test_python_clients_of_the_docs_are_answered(sst2: pathlib.Path, capsys, monkeypatch):
    monkeypatch.chdir(sst2)
    load = find_block("export.md", "tf.saved_model.load")
    found: dict[str, Any] = {}
    exec(load.replace('model.signatures["', 'found = model.signatures["'), found)
    client = find_block("serving.md", "urllib")
    with running({"sst2": sst2 / "exports" / "sst2"}) as (server, _):
        exec(client.replace("http://localhost:8501", server.url), {})
    (answer,) = ast.literal_eval(capsys.readouterr().out)
    assert answer["label"] == found["found"]["label"].numpy()[0].decode()
    np.testing.assert_allclose(answer["probabilities"], found["found"]["probabilities"][0], rtol=1e-5)


@pytest.mark.slow
def test_an_empty_text_is_answered_alike_by_python_tables_and_the_server(classifier: str, sst2: pathlib.Path, tmp_path):
    texts = ["", " \t", "\u200b", "the cat"]
    expected = TextClassifier.from_checkpoint(classifier).predict(texts, verbose=0)
    np.testing.assert_array_equal(expected[1], expected[0])  # the others are empty, too
    table, answers = tmp_path / "texts.jsonl", tmp_path / "answers.jsonl"
    table.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    export_dir = sst2 / "exports" / "sst2"
    batch_prediction.predict(BatchPredictionOptions(str(export_dir), str(table), str(answers)))
    of_table = [json.loads(line)["probabilities"] for line in answers.read_text().splitlines()]
    np.testing.assert_allclose(of_table, expected, rtol=1e-5, atol=1e-6)
    with running({"sst2": export_dir}) as (_, client):
        of_server = [row["probabilities"] for row in client.predict("sst2", {"instances": texts}).json["predictions"]]
    np.testing.assert_allclose(of_server, expected, rtol=1e-5, atol=1e-6)


def test_versions_are_numbered_and_never_overwritten(classifier: str, tmp_path: pathlib.Path):
    assert formats.next_version(str(tmp_path / "none")) == 1
    for name in ("2", "11", "12.writing-5", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "11" / "saved_model.pb").touch()
    assert formats.next_version(str(tmp_path)) == 12
    assert "11 already exists" in refusal(export, classifier, str(tmp_path), version=11)


def test_an_export_that_fails_leaves_nothing(classifier: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def fails(module: Any, folder: str, signatures: Any) -> None:
        (pathlib.Path(folder) / "saved_model.pb").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", fails)
    monkeypatch.setattr(GraphModel, "signatures", lambda self: {})
    assert "No space left on device" in refusal(export, classifier, str(tmp_path / "exports"))
    assert list((tmp_path / "exports").iterdir()) == []


def test_run_is_exported_as_masked_lm_or_encoder(tmp_path: pathlib.Path):
    run = save_run(tmp_path / "run")
    source = read_source(run)
    assert (source.kind, source.task_spec["max_seq_length"]) == ("fill_mask", 64)
    for length in (8, 32):  # the minimum length, and another one
        assert read_source(run, max_seq_length=length).task_spec["max_seq_length"] == length
    source = read_source(run, encoder=True)
    assert source.kind == "encoder"
    ids = np.array([[2, 7, 8, 3]], np.int32)
    features = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    expected = get_encoder(pretraining_model())(features)
    for name, value in source.model(features).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=[] if kind in (CLASSIFICATION, TAGGING) else [pytest.mark.slow]) for kind in KINDS
])  # fmt: skip
def test_encoder_of_a_finetuned_model_has_its_weights(kind: str, tmp_path: pathlib.Path):
    source = read_source(save_finetuned(tmp_path / "model", kind), encoder=True)
    trained = {variable.path: variable for variable in build_model(kind).variables}
    assert len(source.model.variables) > 30
    for variable in source.model.variables:
        np.testing.assert_array_equal(variable, trained[variable.path])
    assert ("pooled_output" in source.model.output) == ("pooler/kernel" in trained)


def test_encoder_without_all_outputs_is_rejected(tmp_path: pathlib.Path):
    folder = save_finetuned(tmp_path / "model", CLASSIFICATION, head="embeddings", lstm_units=3)
    assert read_source(folder).kind == CLASSIFICATION
    with pytest.raises(UserError, match="has no layer_0_.*, since its head, embeddings, does not read the last block"):
        read_source(folder, encoder=True)


@pytest.mark.parametrize(("options", "message"), [
    ({"max_seq_length": 65}, "max_seq_length is 65; expected 8 to 64"),
    ({"max_seq_length": 2}, "max_seq_length is 2; expected 8 to 64"),
    ({"model_dir": "nowhere"}, "nowhere"),
])  # fmt: skip
def test_models_that_cannot_be_exported_are_reported(options: dict[str, Any], message: str, classifier: str, tmp_path):
    assert message in refusal(export, **{"model_dir": classifier, "export_dir": tmp_path / "exports", **options})
    assert not (tmp_path / "exports").exists()
