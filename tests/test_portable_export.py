import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert import portable_export
from official_bert.errors import UserError
from official_bert.export import read_source
from official_bert.portable_export import DYNAMIC_INT8, FLOAT32, LITERT, ONNX, Options, metric
from official_bert.task_models import CLASSIFICATION, MULTI_LABEL, REGRESSION
from official_bert.text_models import TextModel
from tests.exported_models import LABELS, TEXTS
from tests.test_export import save_finetuned


def write_examples(folder: pathlib.Path, labels: list[str]) -> str:
    path = folder / "eval.jsonl"
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_metric_is_accuracy_or_correlation():
    assert metric(CLASSIFICATION, np.array([[1.0, 2.0], [3.0, 1.0]]), np.array([1, 1])) == 0.5
    assert metric(REGRESSION, np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])) == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the converters, about themselves
@pytest.mark.parametrize("quantization", [FLOAT32, DYNAMIC_INT8])
@pytest.mark.parametrize("format_name", [LITERT, ONNX])
def test_converted_models_answer_nearly_as_before(format_name: str, quantization: str, tmp_path: pathlib.Path):
    pytest.importorskip("ai_edge_litert" if format_name == LITERT else "tf2onnx", reason="requirements-portable.txt")
    model_dir = save_finetuned(tmp_path / "model", CLASSIFICATION)
    examples = write_examples(tmp_path, ["yes", "no", "perhaps", "yes", "no"])
    output_dir = tmp_path / "portable"
    options = Options(model_dir, str(output_dir), examples, format_name, quantization, max_loss=1.0)
    assert "accuracy" in portable_export.export(options)
    report = json.loads((output_dir / "report.json").read_text())
    assert report["examples"] == len(TEXTS)
    assert report["labels"] == LABELS
    assert report["bytes"] == (output_dir / portable_export.MODEL_FILES[format_name]).stat().st_size
    if quantization == FLOAT32:
        assert report["before"] == report["after"]
    # Texts of any length, and each logit rather than the metric alone.
    source = read_source(model_dir)
    run = portable_export.RUNNERS[format_name](str(output_dir / portable_export.MODEL_FILES[format_name]))
    rng = np.random.default_rng(0)
    closeness = {"atol": 1e-4} if quantization == FLOAT32 else {"atol": 0.5}
    for length in (2, 7, 64, 3):
        ids = rng.integers(5, 50, [1, length]).astype(np.int32)
        given = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        expected = source.model(given, training=False)
        np.testing.assert_allclose(run(given), expected, **closeness)


def test_a_model_that_loses_too_much_is_not_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    model_dir = save_finetuned(tmp_path / "model", CLASSIFICATION)
    source = read_source(model_dir)
    text_model = TextModel(source.model, source.tokenizer, source.kind, source.description)
    right = [label.decode() for label in text_model.answer(text=tf.constant(TEXTS))["label"].numpy()]
    # A converted model that is wrong on one of the five examples.
    logits = np.eye(len(LABELS))[[LABELS.index(label) for label in right]]
    logits[2] = 1 - logits[2]
    monkeypatch.setattr(portable_export, "convert", lambda source, name, quantized, path: pathlib.Path(path).touch())

    def runner(path: str) -> Any:
        rows = iter(logits)
        return lambda given: next(rows)[None]

    monkeypatch.setitem(portable_export.RUNNERS, LITERT, runner)
    options = Options(model_dir, str(tmp_path / "portable"), write_examples(tmp_path, right), max_loss=0.19)
    with pytest.raises(UserError, match=r"loses 0.2000 \(from 1.0000 to 0.8000\) .* nothing is written"):
        portable_export.export(options)
    assert not (tmp_path / "portable").exists()
    told = portable_export.export(dataclasses.replace(options, max_loss=0.21))
    assert told.endswith("accuracy 1.0000 before, 0.8000 after, on 5 examples")


def test_what_cannot_be_measured_is_refused(tmp_path: pathlib.Path):
    model_dir = save_finetuned(tmp_path / "model", MULTI_LABEL)
    options = Options(model_dir, str(tmp_path / "portable"), write_examples(tmp_path, ["no"] * 5))
    with pytest.raises(UserError, match="is a multi_label model; expected classification or regression"):
        portable_export.export(options)
    model_dir = save_finetuned(tmp_path / "classifier", CLASSIFICATION)
    options = Options(model_dir, str(tmp_path / "portable"), write_examples(tmp_path, ["never"] * 5))
    with pytest.raises(UserError, match="has a label that is none of"):
        portable_export.export(options)
