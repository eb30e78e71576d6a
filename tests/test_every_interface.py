"""A model of any kind gives the same answers through every interface, also for long, empty and odd texts."""

import functools
import json
import os
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

import official_bert
from official_bert.commands import FEATURES, PREDICT
from official_bert.export import verification
from official_bert.export.options import ONNX, SAVED_MODEL
from official_bert.inference import backends, exports, reference_answers
from official_bert.kinds import names
from official_bert.modeling.fast.verification import run_functions_eagerly
from tests.export.exported_models import TEXTS_FOR
from tests.make import slow_after, write_rows
from tests.serving.serving_client import running

Row = dict[str, Any]  # a text or an answer, by the name of the input or output


CLASSES = {
    names.CLASSIFICATION: "TextClassifier",
    names.MULTI_LABEL: "TextClassifier",
    names.TAGGING: "TokenTagger",
    names.MULTIPLE_CHOICE: "MultipleChoice",
    # Other fast tests compare the answers of these kinds.
    names.REGRESSION: "TextRegressor",
    names.QUESTION_ANSWERING: "QuestionAnswerer",
    names.VECTORS: "TextEncoder",
}


@functools.cache
@run_functions_eagerly()  # since tracing a small model takes most of the time of its answers
def predict_with_keras(kind: str, folder: str) -> list[Row]:
    """Returns what the methods of the Keras model return for each text, by the names that exports use."""
    model = getattr(official_bert, CLASSES[kind]).from_checkpoint(folder)
    columns = tuple(TEXTS_FOR[kind].values())
    x = columns if len(columns) > 1 else columns[0]
    predictions = model.tag(x) if kind == names.TAGGING else model.predict(x, verbose=0)
    answers: dict[str, Any] = {"probabilities": predictions}
    if kind == names.CLASSIFICATION:
        answers["label"] = [label or "" for label in model.classify(x)]
    elif kind == names.MULTI_LABEL:
        answers["predicted"] = [[label in labels for label in model.labels] for labels in model.classify(x)]
    elif kind == names.MULTIPLE_CHOICE:
        answers["choice"] = model.choose(x)
    elif kind == names.TAGGING:
        parts = enumerate(("words", "tags", "starts", "ends", "probabilities"))
        answers = {name: [[span[place] for span in spans] for spans in predictions] for place, name in parts}
    elif kind == names.QUESTION_ANSWERING:
        answers = dict(zip(("answer", "start", "end", "probability"), zip(*predictions, strict=True), strict=True))
    else:
        answers = {"value" if kind == names.REGRESSION else "vector": predictions}
    examples = model.spec.make_prediction_examples(TEXTS_FOR[kind], model._tokenizer)
    answers["is_truncated"] = model.spec.featurize(examples, model._tokenizer, model.max_seq_length).is_truncated
    return to_rows(answers)


def to_rows(columns: Any) -> list[Row]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def run_export(kind: str, path: str, folder: pathlib.Path) -> list[Row]:
    return exports.to_rows(backends.load_predictor(path).run(exports.to_columns(TEXTS_FOR[kind])))


def run_predict(kind: str, path: str, folder: pathlib.Path) -> list[Row]:
    table = write_rows(folder / "texts.jsonl", to_rows(TEXTS_FOR[kind]))
    flags = [f"--export_dir={path}", f"--input_file={table}", f"--output_file={folder}/answers.jsonl"]
    PREDICT.main(*PREDICT.parse(flags))
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]


def ask_server(kind: str, path: str, folder: pathlib.Path) -> list[Row]:
    with running({"m": pathlib.Path(path).parent}) as (_, client):
        return [client.predict("m", {"instances": [row]}).json["predictions"][0] for row in to_rows(TEXTS_FOR[kind])]


@pytest.mark.parametrize("interface", [run_export, run_predict, ask_server])
@pytest.mark.parametrize(("format_name", "kind"), slow_after(5, [
    (SAVED_MODEL, names.CLASSIFICATION), *((ONNX, k) for k in CLASSES), *((SAVED_MODEL, k) for k in list(CLASSES)[1:])
]))  # fmt: skip
def test_all_interfaces_give_the_same_answers(format_name, kind, interface, save_kind, export_kind, tmp_path):
    expected = predict_with_keras(kind, save_kind(kind))
    assert len({str(row) for row in expected}) > 3  # so that the test can fail
    answers = interface(kind, export_kind(kind, format_name), tmp_path)
    for answer, row in zip(answers, expected, strict=True):
        for name, value in row.items():
            if np.asarray(value).dtype.kind == "f":
                np.testing.assert_allclose(answer[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
            else:
                np.testing.assert_array_equal(answer[name], value, name)


# OFFICIAL_BERT_CLEAN_PYTHON is the interpreter of an environment that has only tensorflow and tensorflow-text. Without
# it, the process uses this environment, but cannot import the package.
@pytest.mark.parametrize("kind", slow_after(1, [*CLASSES, names.ENCODER, names.FILL_MASK]))
def test_a_process_without_this_package_gives_the_same_answers(kind, export_kind, run_separate_process, monkeypatch):
    monkeypatch.setattr(sys, "executable", os.environ.get("OFFICIAL_BERT_CLEAN_PYTHON", sys.executable))
    path = export_kind(kind, SAVED_MODEL)
    reference = reference_answers.read(path)
    assert len(reference) > reference_answers.TOGETHER
    verification.check_answers(reference, *run_separate_process(path, reference.rows()))


@run_functions_eagerly()  # since tracing takes longer than the vectors
def test_features_writes_the_vectors_of_the_model(save_kind, tmp_path: pathlib.Path):
    table = write_rows(tmp_path / "texts.jsonl", to_rows(TEXTS_FOR[names.VECTORS]))
    flags = [f"--init={save_kind(names.VECTORS)}", f"--input_file={table}", f"--output_file={tmp_path}/vectors.npy"]
    FEATURES.main(*FEATURES.parse([*flags, "--pooling=trained", "--max_seq_length=20"]))
    expected = [row["vector"] for row in predict_with_keras(names.VECTORS, save_kind(names.VECTORS))]
    vectors = np.load(tmp_path / "vectors.npy").reshape(len(expected), -1)
    np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-5)
