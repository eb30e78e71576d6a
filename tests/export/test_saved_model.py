"""SavedModels: their files, signatures and warm-up requests, and the reference answers of every export."""

import ast
import dataclasses
import json
import math
import pathlib
import re
import shutil
import sys
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.formats import all_formats, finetuned
from official_bert.export import operations, options, verification, warmup
from official_bert.export.source import ExportSource, read_source
from official_bert.inference import backends, reference_answers
from official_bert.inference import exports as layout
from official_bert.inference.predictor import Signature, Tensor
from official_bert.kinds import graph_inputs, graph_model
from official_bert.kinds.names import CLASSIFICATION, ENCODER, FILL_MASK, KINDS, MULTIPLE_CHOICE, QUESTION_ANSWERING
from official_bert.modeling.encoder import build_encoder
from official_bert.tokenization.exact import FullTokenizer
from tests.checkpoints.checkpoint_samples import sample
from tests.export import exported_models as samples
from tests.export.exported_models import export, make_source
from tests.make import ROOT, VOCAB, assert_mentions, assert_rejected, flip_bits, refusal, slow_after, tiny_config
from tests.serving.serving_client import running


@pytest.fixture(scope="module")
def exported(export_kind) -> pathlib.Path:
    """The only version of an exported text classifier."""
    return pathlib.Path(export_kind(CLASSIFICATION, options.SAVED_MODEL))


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
    for request, text in zip(requests.as_numpy_iterator(), warmup.EXAMPLES, strict=True):
        assert request.count(text.encode()) == 1
        assert b"serving_default" in request


FILES = ["saved_model.pb", "variables", "assets/vocab.txt", "assets.extra/official_bert.json", layout.REPLAY_FILE]


@pytest.mark.parametrize("name", FILES)
def test_flipped_byte_is_detected_at_loading(name: str, exported: pathlib.Path, tmp_path: pathlib.Path):
    version = shutil.copytree(exported, tmp_path / "1")
    path = next((version / name).glob("*.data*")) if name == "variables" else version / name
    flip_bits(path, path.stat().st_size // 2)
    assert_rejected((path, version / "checksums.json"), backends.load_predictor, str(version))


def test_signatures_agree_with_each_other(signatures: Any):
    texts = {"text": tf.constant(samples.TEXTS)}
    features = signatures["tokenize"](**texts)
    assert {value.dtype for value in features.values()} == {tf.int32}
    answers, from_ids = signatures["serving_default"](**texts), signatures["serving_ids"](**features)
    assert set(answers) == {"label", "probability", "labels", "probabilities", "is_truncated"}
    assert set(from_ids) == {*answers, "logits"} - {"is_truncated"}
    for name in answers.keys() & from_ids.keys():
        np.testing.assert_array_equal(answers[name], from_ids[name])


def test_more_ids_than_the_model_has_positions_are_rejected(exported: pathlib.Path):
    with running({"m": exported.parent}) as (_, client):
        for length, status in ((64, 200), (65, 400)):
            row = {name: [1] * length for name in ("input_ids", "input_mask", "segment_ids")}
            answer = client.predict("m", {"signature_name": "serving_ids", "instances": [row]})
            assert answer.status == status
    answer.assert_rejected(400, "input_ids", "1 to 64")


@pytest.mark.slow
def test_documented_python_clients_get_answers(exported: pathlib.Path, tmp_path: pathlib.Path, capsys, monkeypatch):
    shutil.copytree(exported, tmp_path / "exports" / "sst2" / "1")
    monkeypatch.chdir(tmp_path)
    pages = "".join((ROOT / "docs" / "guides" / name).read_text() for name in ("export.md", "serving.md"))
    blocks = re.findall(r"```python\n(.*?)```", pages, re.DOTALL)
    load, client = (next(each for each in blocks if word in each) for word in ("tf.saved_model.load", "urllib"))
    found: dict[str, Any] = {}
    exec(load.replace('model.signatures["', 'found = model.signatures["'), found)
    with running({"sst2": tmp_path / "exports" / "sst2"}) as (server, _):
        exec(client.replace("http://localhost:8501", server.url), {})
    (answer,) = ast.literal_eval(capsys.readouterr().out)
    assert answer["label"] == found["found"]["label"].numpy()[0].decode()
    np.testing.assert_allclose(answer["probabilities"], found["found"]["probabilities"][0], rtol=1e-5)


def test_a_failed_export_leaves_no_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graph_model.GraphModel, "signatures", lambda self: {})
    monkeypatch.setattr(operations, "find_missing", lambda folder: {"2.19": ["Softmax"]})
    for release, name in (("2.19", "Softmax"), ("2.3", "2.19")):
        given = (make_source(CLASSIFICATION), tmp_path / "exports")
        assert_rejected((release, name), export, *given, for_serving=release)
    assert list((tmp_path / "exports").iterdir()) == []


def test_a_separate_process_that_fails_is_reported(run_separate_process, tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    assert_rejected((tmp_path, 1), run_separate_process, str(tmp_path), [])


def test_a_pretraining_run_is_exported_as_masked_lm_or_encoder(save_kind, tmp_path: pathlib.Path):
    all_formats.FORMATS["official_bert"].write(sample(tiny_config(causal_attention=True)), str(tmp_path))
    assert read_source(str(tmp_path)).kind == "encoder"
    source = read_source(save_kind(FILL_MASK))
    assert (source.kind, source.task_spec["max_seq_length"]) == ("fill_mask", 64)
    source = read_source(save_kind(ENCODER), encoder=True, max_seq_length=8)
    assert (source.kind, source.task_spec["max_seq_length"]) == ("encoder", 8)
    features = samples.random_features(2, 4)
    expected = samples.build_model(ENCODER)(features)
    for name, value in source.model(features).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


def test_max_seq_length_is_between_8_and_the_models_maximum(save_kind, tmp_path: pathlib.Path):
    for length in (7, 65):
        names = ("max_seq_length", length, 8, 64)
        assert_rejected(names, export, save_kind(ENCODER), tmp_path, encoder=True, max_seq_length=length)
    assert_rejected("nowhere", read_source, "nowhere")


@pytest.mark.parametrize("kind", slow_after(1, KINDS))
def test_encoder_of_a_finetuned_model_has_its_weights(kind: str, save_kind):
    source = read_source(save_kind(kind), encoder=True)
    trained = {variable.path: variable for variable in samples.build_model(kind).variables}
    assert len(source.model.variables) > 30
    assert source.task_spec["max_seq_length"] == 20  # of fine-tuning
    for variable in source.model.variables:
        np.testing.assert_array_equal(variable, trained[variable.path])
    assert ("pooled_output" in source.model.output) == ("pooler/kernel" in trained)


def test_encoder_without_all_outputs_is_rejected(tmp_path: pathlib.Path):
    folder = samples.save_finetuned(tmp_path / "model", CLASSIFICATION, head="embeddings", lstm_units=3)
    assert_rejected((folder, "layer_0_attention_query/kernel", "embeddings"), read_source, folder, encoder=True)


TEXT = b"b" * 118  # so that a field has 128 bytes, the shortest length of two bytes
# A PredictionLog with one text for serving_default.
PLAIN = b"2\xa2\x01\n\x9f\x01\n\x11\x1a\x0fserving_default\x12\x89\x01\n\x04text\x12\x80\x01\x08\x07\x12\x04\x12\x02"
PLAIN += b"\x08\x01Bv" + TEXT


def test_requests_are_written_as_tensorflow_serving_reads_them(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warmup, "EXAMPLES", (TEXT,))
    path = str(tmp_path / "requests")
    warmup.write_requests(path, {"text": tf.TensorSpec([None], tf.string)})
    assert list(tf.data.TFRecordDataset(path).as_numpy_iterator()) == [PLAIN]
    warmup.write_requests(path, {"endings": tf.TensorSpec([None, 4], tf.string)})
    (request,) = tf.data.TFRecordDataset(path).as_numpy_iterator()
    assert request.count(TEXT) == 4


LENGTH = 20
EXPECTED = {"label": ["yes", "no"], "probability": [0.9, 0.5003], "starts": [[0, 4], []]}
REFERENCE = reference_answers.ReferenceAnswers({"text": ["a", "b"]}, EXPECTED, ("label",), [0.8, 0.0006], 5e-4)
ANSWERED = {"label": "yes", "probability": 0.9001, "starts": [0, 4], "logits": [1.0]}
ANSWERS = [ANSWERED, {"label": "yes", "probability": 0.5001, "starts": []}]
TOKENIZER = FullTokenizer.from_vocab(VOCAB)


def make_texts(kind: str, **changes: Any) -> dict[str, list[Any]]:
    """Returns the synthetic texts for a model of a kind. This needs no weights."""
    task_spec = samples.make_task_spec(kind, **changes)
    return verification.synthetic_texts(ExportSource(keras.Model(), samples.CONFIG, TOKENIZER, "", kind, task_spec))


def lengths(texts: list[str]) -> list[int]:
    return [len(TOKENIZER.tokenize(text)) for text in texts]


def test_synthetic_texts_have_exactly_the_maximum_lengths():
    room, texts = LENGTH - 2, make_texts(CLASSIFICATION)
    assert {0, 1, room - 1, room, room + 1, 5 * room // 2} <= {*lengths(texts["text"])}
    assert make_texts(CLASSIFICATION) == texts
    pairs = make_texts(CLASSIFICATION, pair=True)
    counts, room = set(zip(lengths(pairs["text"]), lengths(pairs["text_pair"]), strict=True)), LENGTH - 3
    assert {room, room + 1} <= {first + second for first, second in counts}
    assert {(0, 0), (0, room), (room, 1), (2 * room, 2 * room)} <= counts
    questions, room = make_texts(QUESTION_ANSWERING, max_query_length=6), LENGTH - 3 - 7
    assert {0, 1, 6, 7} <= {*lengths(questions["question"])}
    assert {room - 1, room, room + 1} <= {*lengths(questions["context"])}
    assert {len(endings) for endings in make_texts(MULTIPLE_CHOICE)["endings"]} == {4}
    masks = make_texts(FILL_MASK)["text"]
    assert all("[MASK]" in text for text in masks)
    assert max(len(TOKENIZER.tokenize(text, special_tokens=True)) for text in masks) == LENGTH - 2


def test_rounding_is_not_a_difference():
    assert not list(REFERENCE.differences(ANSWERS, "it"))  # the probabilities of both labels are almost equal
    other = {**ANSWERED, "probability": 0.902}
    (line,) = REFERENCE.differences([other], "it")
    assert_mentions(line, '{"text": "a"}', "probability", 0.9, 0.902)
    nan = {"probability": float("nan")}
    for change in ({"label": "no"}, {"starts": [0, 5]}, {"starts": [0]}, {"probability": "0.9"}, nan):
        assert len(list(REFERENCE.differences([{**ANSWERED, **change}], "it"))) == 1
    verification.check_answers(REFERENCE, ANSWERS, ANSWERS)
    assert "batch" not in refusal(verification.check_answers, REFERENCE, [other], ANSWERS)
    assert_rejected(("batch", 1), verification.check_answers, REFERENCE, [], [{**other, "label": "no"}])
    assert_rejected((0.902, "batch"), verification.check_answers, REFERENCE, ANSWERS, [other])
    assert REFERENCE.largest_difference([other]) == pytest.approx(0.002 / 1.9)
    (line,) = REFERENCE.differences([{"label": "yes", "probability": 0.9}], "it")
    assert_mentions(line, "starts", '{"text": "a"}')


def test_answers_of_a_model_in_mixed_precision_have_a_larger_tolerance(monkeypatch: pytest.MonkeyPatch):
    answer = mock.Mock(return_value=({}, []))
    monkeypatch.setattr(verification, "_make_predictor", lambda source: mock.Mock(answer=answer))
    exact = make_source(CLASSIFICATION)
    mixed = dataclasses.replace(exact, model=build_encoder(samples.CONFIG, dtype="mixed_bfloat16"))
    assert [verification.record_answers(source).tolerance for source in (exact, mixed)] == [5e-4, 3e-2]


def test_replay_files_are_read_back_without_overlong_answers(tmp_path: pathlib.Path):
    (tmp_path / "assets.extra").mkdir()
    REFERENCE.write(str(tmp_path))
    assert reference_answers.read(str(tmp_path)) == REFERENCE
    answers = {**EXPECTED, "starts": [[0.5] * 30_000, []]}
    long = dataclasses.replace(REFERENCE, answers=answers, margins=[0.8, math.inf])
    long.write(str(tmp_path))
    kept = reference_answers.read(str(tmp_path))
    assert (kept.texts, kept.margins) == ({"text": ["b"]}, [1.0])  # JSON has no infinity
    dataclasses.replace(long, answers={"starts": [[0.5] * 30_000] * 2}).write(str(tmp_path))
    assert reference_answers.read(str(tmp_path)).texts == {"text": []}
    model = mock.Mock(signatures={"serving_default": Signature({"text": Tensor("string", (None,))}, {})})
    reference_answers.check_answers(str(tmp_path), model)
    assert not model.run.called  # no text is left to answer
    model.signatures["serving_default"] = Signature({"context": Tensor("string", (None,))}, {})
    assert_rejected((layout.REPLAY_FILE, "text", "context"), reference_answers.check_answers, str(tmp_path), model)


def test_invalid_replay_file_is_rejected(tmp_path: pathlib.Path):
    assert_rejected((tmp_path, layout.REPLAY_FILE), reference_answers.read, str(tmp_path))
    (tmp_path / "assets.extra").mkdir()
    columns = '{"texts": {"text": ["a"]}, "answers": {"label": []}, "decisions": [], "margins": [1], "tolerance": 0.1}'
    for content, reason in (("{}", "'texts'"), (columns, "length")):
        (tmp_path / layout.REPLAY_FILE).write_text(content)
        assert_rejected((tmp_path / layout.REPLAY_FILE, reason), reference_answers.read, str(tmp_path))


@pytest.mark.slow
def test_export_with_another_truncation_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    truncate = graph_inputs.truncate
    monkeypatch.setattr(graph_inputs, "truncate", lambda first, second, length: truncate(first, second, length - 1))
    assert_rejected(("predict", '{"text"'), export, make_source(CLASSIFICATION), tmp_path)
    assert not list(tmp_path.iterdir())


def test_texts_of_an_evaluation_file_become_reference_inputs(tmp_path: pathlib.Path):
    table = tmp_path / "dev.csv"
    table.write_text("text,label\n" + "".join(f"the cat {number},yes\n" for number in range(100)))
    path = export(make_source(CLASSIFICATION), tmp_path / "exports", "onnx", eval_file=str(table))
    texts, synthetic = reference_answers.read(path).texts["text"], make_texts(CLASSIFICATION)["text"]
    assert texts[: len(synthetic)] == synthetic
    assert texts[len(synthetic) :] == [f"the cat {number}" for number in range(0, 96, 3)]
    assert_rejected("--eval_file=dev.csv", verification.record_answers, make_source(ENCODER), "dev.csv")


def test_missing_operations_of_a_release_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    module = tf.Module()
    module.add = tf.function(lambda x: tf.nn.relu(x) + 1.0, input_signature=[tf.TensorSpec([None])])
    tf.saved_model.save(module, str(tmp_path))
    used = operations.find_used(str(tmp_path))
    assert "Relu" in used
    assert "PartitionedCall" in used or "StatefulPartitionedCall" in used
    assert not [name for name in used if name.startswith("__inference")]
    assert [*operations.find_missing(str(tmp_path)).values()] == [[]] * 5
    known = dict(operations._load_operations()["2.19"])
    known["AddV2"] = frozenset()
    del known["Relu"]
    monkeypatch.setattr(operations, "_load_operations", lambda: {"2.19": known})
    assert operations.find_missing(str(tmp_path)) == {"2.19": ["AddV2 with T", "Relu"]}


def test_no_operation_of_this_tensorflow_is_missing_in_the_list():
    release = ".".join(tf.__version__.split(".")[:2])
    public = {name for name in dir(tf.raw_ops) if name[0].isupper()}
    assert public - {"PyFunc", "PyFuncStateless", "EagerPyFunc"} <= set(operations._load_operations()[release])
