"""Exports of every kind prove themselves when they are written, and answer as the library in Python does."""

import dataclasses
import pathlib

import keras
import pytest

from official_bert.export.options import ONNX, SAVED_MODEL
from official_bert.inference import exports, loading, replays
from official_bert.kinds.names import ENCODER, FILL_MASK, KINDS, TAGGING
from official_bert.tokenization.exact import FullTokenizer
from tests.export.answers_in_python import TEXTS_FOR, answers_in_python, assert_answers, create_model
from tests.export.exported_models import BILSTM, CONFIG, build_model, export, make_task_spec, save_finetuned
from tests.make import VOCAB


def assert_answers_as_python(path: str, kind: str, model: keras.Model) -> None:
    spec = make_task_spec(kind, max_seq_length=64 if kind in (ENCODER, FILL_MASK) else 20)
    expected = answers_in_python(kind, model, FullTokenizer.from_vocab(VOCAB), TEXTS_FOR[kind], spec)
    assert_answers(loading.load(path).run(exports.to_columns(TEXTS_FOR[kind])), list(expected))


IN_ONNX = [(ONNX, kind) for kind in KINDS]
AS_SAVED_MODELS = [pytest.param(SAVED_MODEL, kind, marks=pytest.mark.slow) for kind in TEXTS_FOR]


@pytest.mark.parametrize(("format_name", "kind"), [*IN_ONNX, *AS_SAVED_MODELS])
def test_an_export_of_every_kind_answers_as_python(format_name: str, kind: str, export_kind):
    path = export_kind(kind, format_name)
    assert len(replays.read(path)) >= 12
    assert exports.is_onnx(path) == (format_name == ONNX)
    assert exports.find_newest_version(str(pathlib.Path(path).parent)) == path
    assert exports.read_metadata(path)["kind"] == kind
    assert_answers_as_python(path, kind, create_model(kind))


@pytest.mark.slow
def test_a_left_to_right_model_with_a_bilstm_answers_as_python(tmp_path: pathlib.Path):
    config = dataclasses.replace(CONFIG, causal_attention=True)
    folder = save_finetuned(tmp_path / "model", TAGGING, config, **BILSTM.to_dict())
    assert_answers_as_python(export(folder, tmp_path / "exports"), TAGGING, build_model(TAGGING, config, BILSTM))
