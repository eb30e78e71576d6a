"""Exports of every kind verify themselves when they are written, and answer like the Python library."""

import dataclasses
import json
import pathlib

import keras
import numpy as np
import pytest

import official_bert
from official_bert.export import proof
from official_bert.export.options import ONNX, SAVED_MODEL
from official_bert.inference import batch_prediction, exports, loading, replays
from official_bert.inference.options import BatchPredictionOptions
from official_bert.kinds.names import CLASSIFICATION, ENCODER, FILL_MASK, KINDS, TAGGING
from official_bert.tokenization.exact import FullTokenizer
from tests.export.answers_in_python import TEXTS_FOR, answers_in_python, as_text, assert_answers, create_model
from tests.export.exported_models import BILSTM, CONFIG, build_model, export, make_task_spec, save_finetuned, scattered
from tests.make import VOCAB
from tests.serving.serving_client import running


def assert_answers_as_python(path: str, kind: str, model: keras.Model) -> None:
    spec = make_task_spec(kind, max_seq_length=64 if kind in (ENCODER, FILL_MASK) else 20)
    expected = answers_in_python(kind, model, FullTokenizer.from_vocab(VOCAB), TEXTS_FOR[kind], spec)
    assert_answers(loading.load(path).run(exports.to_columns(TEXTS_FOR[kind])), list(expected))


IN_ONNX = [(ONNX, kind) for kind in KINDS]
AS_SAVED_MODELS = [pytest.param(SAVED_MODEL, kind, marks=pytest.mark.slow) for kind in TEXTS_FOR]


@pytest.mark.parametrize(("format_name", "kind"), [*IN_ONNX, *AS_SAVED_MODELS])
def test_an_export_of_every_kind_answers_as_python(format_name: str, kind: str, export_kind, run_separate_process):
    path = export_kind(kind, format_name)
    replay = replays.read(path)
    assert len(replay) >= 12
    if format_name == SAVED_MODEL:
        proof.compare(replay, *run_separate_process(path, replay.rows()))
    assert exports.is_onnx(path) == (format_name == ONNX)
    assert exports.find_newest_version(str(pathlib.Path(path).parent)) == path
    assert exports.read_metadata(path)["kind"] == kind
    assert_answers_as_python(path, kind, create_model(kind))


@pytest.mark.slow
def test_a_left_to_right_model_with_a_bilstm_answers_as_python(tmp_path: pathlib.Path):
    config = dataclasses.replace(CONFIG, causal_attention=True)
    folder = save_finetuned(tmp_path / "model", TAGGING, config, **BILSTM.to_dict())
    assert_answers_as_python(export(folder, tmp_path / "exports"), TAGGING, build_model(TAGGING, config, BILSTM))


@pytest.mark.slow
def test_every_interface_gives_the_label_of_the_threshold(tmp_path: pathlib.Path):
    labels, texts = ["no", "yes"], [text for text in TEXTS_FOR[CLASSIFICATION]["text"] if text]
    model = scattered(official_bert.TextClassifier(CONFIG, VOCAB, labels=labels, max_seq_length=20))
    of_yes = model.predict(texts)[:, 1]
    likeliest = model.classify(texts)
    threshold = float(np.mean(np.sort(of_yes)[-2:]))  # so that only one text is "yes"
    model.thresholds = [1 - threshold, threshold]
    expected = [labels[int(each > threshold)] for each in of_yes]
    assert model.classify(texts) == expected != likeliest
    model.save(tmp_path / "model.keras")
    model.save_checkpoint(str(tmp_path / "folder"))
    read = official_bert.TextClassifier
    for loaded in (
        read.load(tmp_path / "model.keras"),
        read.from_checkpoint(str(tmp_path / "folder")),
        read.from_checkpoint(str(tmp_path / "folder"), labels=labels[::-1]),
    ):
        assert loaded.classify(texts) == expected
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    for format_name in (ONNX, SAVED_MODEL):
        path = export(tmp_path / "folder", tmp_path / format_name, format_name)
        answers = loading.load(path).run(exports.to_columns({"text": texts}))
        assert [as_text(label) for label in answers["label"]] == expected
        chosen = [of_yes[row] if label == "yes" else 1 - of_yes[row] for row, label in enumerate(expected)]
        np.testing.assert_allclose(answers["probability"], chosen, rtol=1e-5)
        table = tmp_path / f"{format_name}.jsonl"
        batch_prediction.predict(BatchPredictionOptions(path, str(tmp_path / "texts.txt"), str(table)))
        assert [json.loads(line)["label"] for line in table.read_text().splitlines()] == expected
        with running({"m": pathlib.Path(path).parent}) as (_, client):
            served = client.predict("m", {"instances": texts}).json["predictions"]
        assert [answer["label"] for answer in served] == expected
