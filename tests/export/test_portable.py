import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.export import portable
from official_bert.export.options import DYNAMIC_INT8, FLOAT32, LITERT, ONNX, PortableOptions
from official_bert.export.source import read_source
from official_bert.export.text_models import text_model
from official_bert.modeling.task_models import (
    CLASSIFICATION,
    KINDS,
    MULTI_LABEL,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
)
from tests.export.exported_models import BILSTM, CHOICES, CONFIG, LABELS, TEXTS, save_finetuned, save_run

ROWS = [text for text in TEXTS if text]


def write_rows(folder: pathlib.Path, labels: list[Any], texts: list[str] = ROWS) -> str:
    path = folder / "eval.jsonl"
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_examples(folder: pathlib.Path, kind: str) -> str:
    """Labelled examples for a model of that kind, as run_finetuning reads them."""
    if kind == QUESTION_ANSWERING:
        context = "the cat sat on the mat, and the dog ran in the sun"
        texts = {"0": ("who sat ?", "the cat"), "1": ("who ran ?", "the dog"), "2": ("where ?", "on the mat")}
        asked = [
            {"id": id, "question": question, "answers": [{"text": text, "answer_start": context.index(text)}]}
            for id, (question, text) in texts.items()
        ]
        path = folder / "dev.json"
        data = [{"title": "t", "paragraphs": [{"context": context, "qas": asked}]}]
        path.write_text(json.dumps({"version": "1.1", "data": data}))
        return str(path)
    if kind == MULTIPLE_CHOICE:
        path = folder / "dev.tsv"
        path.write_text("".join(f"i\tthe cat\tsat\tran\ta mat\tthe sun\t{label}\n" for label in range(4)))
        return str(path)
    labels: dict[str, list[Any]] = {
        CLASSIFICATION: ["yes", "no", "perhaps", "yes"],
        MULTI_LABEL: ["yes; no", "no", "", "perhaps"],
        REGRESSION: [1, 2.5, 0, 3],
        TAGGING: [["yes"] * len(text.split()) for text in ROWS],
    }
    return write_rows(folder, labels[kind])


# Matrices of fewer than 1,024 elements stay as they are when LiteRT's converter quantizes.
LARGER = dataclasses.replace(CONFIG, hidden_size=32, intermediate_size=128)
# How far the logits of all rows may be from the model's, as a share of their length as one vector.
TOLERANCES = {FLOAT32: 1e-5, DYNAMIC_INT8: 0.1}


def test_a_converted_model_that_answers_otherwise_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
):
    model_dir, output_dir = save_finetuned(tmp_path / "model", CLASSIFICATION), tmp_path / "portable"
    source = read_source(model_dir)

    def run(features: dict[str, Any]) -> dict[str, Any]:
        is_full = features["input_ids"].shape[-1] == source.task_spec["max_seq_length"]
        return {"logits": np.asarray(source.model(features)) + np.array([is_full, 0.0, 0.0])}

    monkeypatch.setattr(portable, "convert", lambda source, name, quantized, path: pathlib.Path(path).touch())
    monkeypatch.setitem(portable.RUNNERS, ONNX, lambda path: run)
    options = PortableOptions(model_dir, str(output_dir), write_examples(tmp_path, CLASSIFICATION), ONNX, FLOAT32, 1.0)
    with pytest.raises(UserError, match="the export would answer otherwise than predict, so it is not written: to "):
        portable.export(options)
    assert not output_dir.exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the converters, about themselves
@pytest.mark.parametrize("quantization", [FLOAT32, DYNAMIC_INT8])
@pytest.mark.parametrize("format_name", [LITERT, ONNX])
@pytest.mark.parametrize(("kind", "activation"), [*((kind, "gelu") for kind in KINDS), (CLASSIFICATION, "gelu_exact")])
def test_converted_models_answer_nearly_as_before(
    kind: str, activation: str, format_name: str, quantization: str, tmp_path: pathlib.Path
):
    config = dataclasses.replace(LARGER if quantization == DYNAMIC_INT8 else CONFIG, hidden_act=activation)
    model_dir = save_finetuned(tmp_path / "model", kind, config=config)
    output_dir = tmp_path / "portable"
    examples = write_examples(tmp_path, kind)
    max_loss = 0.1  # few examples: rounding alone changes a correlation of four values by some percent
    options = PortableOptions(model_dir, str(output_dir), examples, format_name, quantization, max_loss)
    assert "before" in portable.export(options)
    report = json.loads((output_dir / "report.json").read_text())
    assert report["examples"] == (3 if kind == QUESTION_ANSWERING else 4)
    assert report["reads_windows"] == (kind in (QUESTION_ANSWERING, TAGGING))
    assert report["labels"] == (LABELS if kind in (CLASSIFICATION, MULTI_LABEL, TAGGING) else None)
    path = output_dir / portable.MODEL_FILES[format_name]
    assert report["bytes"] == path.stat().st_size
    source = read_source(model_dir)
    if quantization == FLOAT32:
        assert report["before"] == pytest.approx(report["after"], abs=1e-4)
    elif kind == CLASSIFICATION:  # as many bytes are saved whatever the head
        portable.convert(source, format_name, False, str(tmp_path / "float32"))
        assert report["bytes"] < 0.85 * (tmp_path / "float32").stat().st_size
    # Rows of any length, and each logit rather than the score alone.
    run = portable.RUNNERS[format_name](str(path))
    rng = np.random.default_rng(0)
    differences, logits = [], []
    for length in (2, 7, 64, 3):
        shape = [1, CHOICES, length] if kind == MULTIPLE_CHOICE else [1, length]
        ids = rng.integers(5, 50, shape).astype(np.int32)
        features = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        outputs = source.model(features, training=False)
        converted = run(features)
        for name, values in (outputs if isinstance(outputs, dict) else {"logits": outputs}).items():
            assert converted[name].shape == values.shape
            logits.append(np.ravel(values))
            differences.append(np.ravel(converted[name]) - logits[-1])
    norm = np.linalg.norm(np.concatenate(logits))
    assert np.linalg.norm(np.concatenate(differences)) < TOLERANCES[quantization] * norm


def test_a_model_that_loses_too_much_is_not_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    model_dir = save_finetuned(tmp_path / "model", CLASSIFICATION)
    source = read_source(model_dir)
    functions = text_model(source.model, source.tokenizer, source.kind, source.task_spec)
    right = [label.decode() for label in functions.answer(text=tf.constant(ROWS))["label"].numpy()]
    monkeypatch.setattr(portable, "convert", lambda source, name, quantized, path: pathlib.Path(path).touch())

    def runner(path: str) -> Any:
        """A converted model that is wrong on all texts."""
        return lambda given: {"logits": -np.asarray(source.model(given, training=False))}

    monkeypatch.setitem(portable.RUNNERS, LITERT, runner)
    options = PortableOptions(model_dir, str(tmp_path / "portable"), write_rows(tmp_path, right), max_loss=0.99)
    with pytest.raises(UserError, match=r"loses 1.0000 \(from 1.0000 to 0.0000\) .* nothing is written"):
        portable.export(options)
    assert not (tmp_path / "portable").exists()
    # In float32 its answers, too, would have to be predict's.
    told = portable.export(dataclasses.replace(options, max_loss=1.0, quantization=DYNAMIC_INT8))
    assert told.endswith("accuracy 1.0000 before, 0.0000 after, on 4 examples")


def test_what_cannot_be_measured_is_refused(tmp_path: pathlib.Path):
    examples = write_examples(tmp_path, CLASSIFICATION)
    options = PortableOptions(save_run(tmp_path / "run"), str(tmp_path / "portable"), examples)
    with pytest.raises(UserError, match="is a fill_mask model; expected a fine-tuned one"):
        portable.export(options)
    model_dir = save_finetuned(tmp_path / "bilstm", CLASSIFICATION, **BILSTM.to_dict())
    with pytest.raises(UserError, match="LiteRT's converter rejects; pass --format=onnx"):
        portable.export(PortableOptions(model_dir, str(tmp_path / "portable"), examples))
    model_dir = save_finetuned(tmp_path / "classifier", CLASSIFICATION)
    options = PortableOptions(model_dir, str(tmp_path / "portable"), write_rows(tmp_path, ["never"] * 4))
    with pytest.raises(UserError, match="unknown label 'never'"):
        portable.export(options)
