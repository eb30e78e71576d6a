"""LiteRT models: their answers and the report."""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tokenizers

from official_bert.export import litert, verification
from official_bert.export.options import DYNAMIC_INT8, FLOAT32, LITERT, ExportOptions
from official_bert.inference import exports
from official_bert.kinds.names import CLASSIFICATION, KINDS, MULTI_LABEL, MULTIPLE_CHOICE, QUESTION_ANSWERING, TAGGING
from official_bert.tokenization.casing import UNCASED
from tests.export import exported_models as samples
from tests.make import VOCAB, assert_rejected


@pytest.mark.slow
def test_converted_model_with_different_answers_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    source = samples.make_source(CLASSIFICATION)

    def run(features: dict[str, Any]) -> dict[str, Any]:
        is_full = features["input_ids"].shape[-1] == source.task_spec["max_seq_length"]
        return {"logits": source.model(features).numpy() + np.array([is_full, 0.0, 0.0])}

    monkeypatch.setattr(litert, "convert", lambda source, quantized: b"")
    monkeypatch.setattr(litert, "load", lambda path: run)
    given = {"eval_file": samples.write_examples(tmp_path, CLASSIFICATION), "max_loss": 1.0}
    assert_rejected(("predict", '{"text"'), samples.export, source, tmp_path / "litert", LITERT, **given)
    assert not (tmp_path / "litert").exists()


def test_a_program_can_tokenize_and_decode_with_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    source = samples.make_source(QUESTION_ANSWERING, version_2=True, casing=UNCASED._replace(strip_accents=False))
    results = ((litert, "convert", b""), (litert, "load", None), (verification, "compare_scores", {}))
    for module, name, result in results:
        monkeypatch.setattr(module, name, lambda *_, result=result: result)
    litert.write(source, str(tmp_path), ExportOptions("", "", [LITERT], eval_file="a", quantization=DYNAMIC_INT8))
    report = json.loads((tmp_path / litert.REPORT_FILE).read_text())
    assert (report["task_spec"], report["strip_accents"]) == (source.task_spec, False)
    assert "max_answer_length" in report["decoding"]
    assert (tmp_path / exports.VOCAB_FILE).read_text() == VOCAB
    assert tokenizers.Tokenizer.from_file(str(tmp_path / exports.TOKENIZER_FILE)).token_to_id("[CLS]") == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the converter's warnings about itself
@pytest.mark.parametrize("quantization", [FLOAT32, DYNAMIC_INT8])
@pytest.mark.parametrize(("kind", "activation"), [*((kind, "gelu") for kind in KINDS), (CLASSIFICATION, "gelu_exact")])
def test_converted_models_give_nearly_the_same_answers(kind: str, activation: str, quantization: str, tmp_path):
    config = dataclasses.replace(
        samples.LARGER if quantization == DYNAMIC_INT8 else samples.CONFIG, hidden_act=activation
    )
    decisions = {"temperature": 2.0} if kind in (CLASSIFICATION, MULTI_LABEL) else {}
    source = samples.make_source(kind, config, **decisions)
    flags = {"eval_file": samples.write_examples(tmp_path, kind), "quantization": quantization}
    # With four examples, rounding changes a correlation by a few percent.
    folder = pathlib.Path(samples.export(source, tmp_path / "litert", LITERT, max_loss=0.1, **flags))
    report = json.loads((folder / litert.REPORT_FILE).read_text())
    assert report["examples"] == (3 if kind == QUESTION_ANSWERING else 4)
    assert report["reads_windows"] == (kind in (QUESTION_ANSWERING, TAGGING))
    labels = samples.LABELS if kind in (CLASSIFICATION, MULTI_LABEL, TAGGING) else None
    assert report.items() >= {"task_spec": source.task_spec, "labels": labels, **decisions}.items()
    shape = f"[1, {samples.CHOICES}, S]" if kind == MULTIPLE_CHOICE else "[1, S]"
    assert report["inputs"] == dict.fromkeys(("input_ids", "input_mask", "segment_ids"), f"int32 {shape}")
    path = folder / litert.MODEL_FILE
    assert report["bytes"] == path.stat().st_size
    if quantization == FLOAT32:
        assert report["before"] == pytest.approx(report["after"], abs=1e-4)
    elif kind == CLASSIFICATION:  # the number of bytes saved does not depend on the head
        assert report["bytes"] < 0.85 * len(litert.convert(source, quantized=False))
    # Compares every logit, for rows of several lengths.
    assert samples.relative_error(source.model, kind, litert.load(str(path))) < (
        1e-5 if quantization == FLOAT32 else 0.1
    )
