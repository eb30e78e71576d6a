"""LiteRT models: their answers, the report, and rejected conversions."""

import dataclasses
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.export import litert
from official_bert.export.graph_models import build_graph_model
from official_bert.export.options import DYNAMIC_INT8, FLOAT32, LITERT
from official_bert.export.source import read_source
from official_bert.kinds.names import (
    CLASSIFICATION,
    KINDS,
    MULTI_LABEL,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
)
from tests.export.exported_models import (
    BILSTM,
    CHOICES,
    CONFIG,
    LABELS,
    LARGER,
    TEXTS,
    export,
    relative_error,
    save_finetuned,
    save_run,
)
from tests.make import refusal, write_rows, write_text

ROWS = [text for text in TEXTS if text]


def write_labels(folder: pathlib.Path, labels: list[Any]) -> str:
    return write_rows(
        folder / "eval.jsonl", ({"text": text, "label": label} for text, label in zip(ROWS, labels, strict=True))
    )


def write_examples(folder: pathlib.Path, kind: str) -> str:
    """Writes labelled examples for a model of that kind in the format that finetune reads."""
    if kind == QUESTION_ANSWERING:
        context = "the cat sat on the mat, and the dog ran in the sun"
        texts = {"0": ("who sat ?", "the cat"), "1": ("who ran ?", "the dog"), "2": ("where ?", "on the mat")}
        asked = [
            {"id": id, "question": question, "answers": [{"text": text, "answer_start": context.index(text)}]}
            for id, (question, text) in texts.items()
        ]
        data = [{"title": "t", "paragraphs": [{"context": context, "qas": asked}]}]
        return write_text(folder / "dev.json", json.dumps({"version": "1.1", "data": data}))
    if kind == MULTIPLE_CHOICE:
        lines = (f"i\tthe cat\tsat\tran\ta mat\tthe sun\t{label}\n" for label in range(4))
        return write_text(folder / "dev.tsv", "".join(lines))
    labels: dict[str, list[Any]] = {
        CLASSIFICATION: ["yes", "no", "perhaps", "yes"],
        MULTI_LABEL: ["yes; no", "no", "", "perhaps"],
        REGRESSION: [1, 2.5, 0, 3],
        TAGGING: [["yes"] * len(text.split()) for text in ROWS],
    }
    return write_labels(folder, labels[kind])


@pytest.mark.slow
def test_converted_model_with_different_answers_is_not_written(monkeypatch, tmp_path):
    model_dir, export_dir = save_finetuned(tmp_path / "model", CLASSIFICATION), tmp_path / "litert"
    source = read_source(model_dir)

    def run(features: dict[str, Any]) -> dict[str, Any]:
        is_full = features["input_ids"].shape[-1] == source.task_spec["max_seq_length"]
        return {"logits": np.asarray(source.model(features)) + np.array([is_full, 0.0, 0.0])}

    monkeypatch.setattr(litert, "convert", lambda source, quantized: b"")
    monkeypatch.setattr(litert, "load", lambda path: run)
    examples = write_examples(tmp_path, CLASSIFICATION)
    with pytest.raises(UserError, match="differently from predict and is not written: for "):
        export(model_dir, export_dir, LITERT, eval_file=examples, max_loss=1.0)
    assert not export_dir.exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the converter's warnings about itself
@pytest.mark.parametrize("quantization", [FLOAT32, DYNAMIC_INT8])
@pytest.mark.parametrize(("kind", "activation"), [*((kind, "gelu") for kind in KINDS), (CLASSIFICATION, "gelu_exact")])
def test_converted_models_keep_their_answers_nearly(kind: str, activation: str, quantization: str, tmp_path):
    config = dataclasses.replace(LARGER if quantization == DYNAMIC_INT8 else CONFIG, hidden_act=activation)
    decisions = {"temperature": 2.0} if kind in (CLASSIFICATION, MULTI_LABEL) else {}
    model_dir = save_finetuned(tmp_path / "model", kind, config=config, **decisions)
    examples = write_examples(tmp_path, kind)
    max_loss = 0.1  # With four examples, rounding changes a correlation by a few percent.
    folder = pathlib.Path(
        export(model_dir, tmp_path / "litert", LITERT, eval_file=examples, quantization=quantization, max_loss=max_loss)
    )
    report = json.loads((folder / litert.REPORT_FILE).read_text())
    assert report["examples"] == (3 if kind == QUESTION_ANSWERING else 4)
    assert report["reads_windows"] == (kind in (QUESTION_ANSWERING, TAGGING))
    assert report["labels"] == (LABELS if kind in (CLASSIFICATION, MULTI_LABEL, TAGGING) else None)
    assert report.get("temperature") == decisions.get("temperature")
    shape = f"[1, {CHOICES}, S]" if kind == MULTIPLE_CHOICE else "[1, S]"
    assert report["inputs"] == dict.fromkeys(("input_ids", "input_mask", "segment_ids"), f"int32 {shape}")
    path = folder / litert.MODEL_FILE
    assert report["bytes"] == path.stat().st_size
    source = read_source(model_dir)
    if quantization == FLOAT32:
        assert report["before"] == pytest.approx(report["after"], abs=1e-4)
    elif kind == CLASSIFICATION:  # the number of bytes saved does not depend on the head
        assert report["bytes"] < 0.85 * len(litert.convert(source, quantized=False))
    # Compares every logit, for rows of several lengths.
    assert relative_error(source.model, kind, litert.load(str(path))) < (1e-5 if quantization == FLOAT32 else 0.1)


def test_a_model_that_loses_too_much_is_not_written(tmp_path, monkeypatch, capsys):
    model_dir = save_finetuned(tmp_path / "model", CLASSIFICATION)
    source = read_source(model_dir)
    functions = build_graph_model(source.model, source.tokenizer, source.kind, source.task_spec)
    right = [label.decode() for label in functions.answer(text=tf.constant(ROWS))["label"].numpy()]

    def run(features: Any) -> dict[str, Any]:
        """Returns wrong answers to all texts."""
        return {"logits": -np.asarray(source.model(features, training=False))}

    monkeypatch.setattr(litert, "convert", lambda source, quantized: b"")
    monkeypatch.setattr(litert, "load", lambda path: run)
    given = {"export_dir": tmp_path / "litert", "format_name": LITERT, "eval_file": write_labels(tmp_path, right)}
    with pytest.raises(UserError, match=r"loses 1.0000 \(from 1.0000 to 0.0000\) .* Nothing was written"):
        export(model_dir, **given, max_loss=0.99)
    assert not (tmp_path / "litert").exists()
    # In float32, the export would also have to give the same answers as predict.
    export(model_dir, **given, max_loss=1.0, quantization=DYNAMIC_INT8)
    told = "dynamic_int8 litert model: accuracy 1.0000 before, 0.0000 after, on 4 examples"
    assert told in capsys.readouterr().out.splitlines()


def test_unsupported_conversions_are_rejected(tmp_path: pathlib.Path):
    folder, examples = tmp_path / "litert", write_examples(tmp_path, CLASSIFICATION)
    run = save_run(tmp_path / "run")
    message = refusal(export, run, folder, LITERT, eval_file=examples)
    assert re.search("--format=litert needs a model that was fine-tuned on labels, .* is fill_mask; export", message)
    model_dir = save_finetuned(tmp_path / "bilstm", CLASSIFICATION, **BILSTM.to_dict())
    message = refusal(export, model_dir, folder, LITERT, eval_file=examples)
    assert "has a recurrent head, which LiteRT's converter rejects; pass --format=onnx" in message
    model_dir = save_finetuned(tmp_path / "classifier", CLASSIFICATION)
    message = refusal(export, model_dir, folder, LITERT)
    assert "--format=litert is scored on labelled examples; pass --eval_file" in message
    examples = write_labels(tmp_path, ["never"] * 4)
    assert "unknown label 'never'" in refusal(export, model_dir, folder, LITERT, eval_file=examples)
    assert not folder.exists()
