"""Exports for ONNX Runtime: their answers, the file layout, and damaged exports."""

import dataclasses
import json
import pathlib
import re
import shutil
from typing import Any

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import tokenizers

from official_bert.export import onnx_graph
from official_bert.export.options import ONNX
from official_bert.inference import backends, exports, onnx_model
from official_bert.kinds.classification.model import build_classifier
from official_bert.kinds.names import CLASSIFICATION, ENCODER, KINDS, MULTIPLE_CHOICE, QUESTION_ANSWERING, TAGGING
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.head_input import BILSTM, FEATURES, HeadInput
from official_bert.modeling.pooling import build_vector_model
from official_bert.tokenization.added_tokens import AddedToken
from official_bert.tokenization.casing import UNCASED
from tests import make
from tests.export import exported_models as samples
from tests.make import ROOT, VOCAB, assert_mentions, assert_rejected, refusal, run_python, slow_after


def test_answers_have_the_types_of_saved_models(export_kind):
    model = onnx_model.OnnxPredictor(export_kind(CLASSIFICATION, ONNX), threads=1, num_workers=2)
    answers = model.run(exports.to_columns({"text": samples.TEXTS * 40}))
    assert answers["label"].dtype == object
    assert set(answers["label"].tolist()) <= {*samples.LABELS, ""}
    assert answers["probabilities"].shape == (5 * 40, 3)
    assert answers["probabilities"].dtype == "float32"
    assert answers["is_truncated"].tolist() == [False, False, False, True, False] * 40


def run_documented_program(folder: str, block: int, example: str, inputs: list[str]) -> list[str]:
    """Runs a program of docs/guides/onnx.md for each input without this package, and returns the printed lines.

    Args:
        folder: The folder of the exported version.
        block: The number of the program's code block on the page. The first one begins every program.
        example: The expression in the program that each of the inputs replaces.
        inputs: Python expressions.
    """
    page = (ROOT / "docs" / "guides" / "onnx.md").read_text()
    first, *others = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert example in others[block - 1]
    blocked = "import sys\nsys.modules.update(official_bert=None, data_gen=None, tensorflow=None)\n"
    program = first.replace("exports/sst2-onnx/1", folder)
    program += "".join(others[block - 1].replace(example, each) for each in inputs)
    done = run_python("-c", blocked + program)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


WINDOWS = {"doc_stride": 5, "temperature": 0.5}
CLASSIFIERS = [samples.SETTINGS[CLASSIFICATION], {"pair": True}, {}, WINDOWS, {"pair": True, **WINDOWS}]


@pytest.mark.parametrize("settings", slow_after(2, CLASSIFIERS))
def test_documented_programs_classify_texts_and_pairs_without_this_package(settings: dict[str, Any], tmp_path):
    source = samples.make_source(CLASSIFICATION, **settings)
    block, example, texts = 1, '"A film to see twice"', {"text": [*samples.TEXTS, "a [SEP] cat [MASK]"]}
    if "pair" in settings:
        block, example = 2, '"A film", "to see twice"'
        texts = {"text": samples.TEXTS * 5, "text_pair": [text for text in samples.TEXTS for _ in range(5)]}
    answers, folder = samples.answer_in_python(source, texts), samples.export(source, tmp_path, ONNX)
    inputs = [", ".join(map(repr, row)) for row in zip(*texts.values(), strict=True)]
    lines = [line.rpartition("[") for line in run_documented_program(folder, block, example, inputs)]
    np.testing.assert_allclose([json.loads(f"[{line[2]}") for line in lines], answers["probabilities"], atol=1e-6)
    if block == 1:
        assert [label.strip() for label, *_ in lines] == answers["label"].tolist()


def test_documented_program_tags_without_this_package(export_kind):
    texts = [samples.TEXTS[0], samples.TEXTS[4], "a [SEP] cat, unaffable"]
    answers = samples.answer_in_python(samples.make_source(TAGGING), {"text": texts})
    is_word = answers["starts"] >= 0
    words = zip(*(answers[name][is_word] for name in ("starts", "ends", "tags")), strict=True)
    probabilities = answers["probabilities"][is_word]
    lines = run_documented_program(export_kind(TAGGING, ONNX), 3, '"A film by Agnes Varda"', list(map(repr, texts)))
    found, numbers = zip(*(line.rsplit(" ", 1) for line in lines), strict=True)
    assert list(found) == [f"({start}, {end}) {tag}" for start, end, tag in words]
    np.testing.assert_allclose(np.array(numbers, float), probabilities, atol=1e-6)


@pytest.mark.parametrize("settings", slow_after(1, [samples.SETTINGS[QUESTION_ANSWERING], {}]))
def test_documented_program_answers_questions_without_this_package(settings: dict[str, Any], tmp_path: pathlib.Path):
    source = samples.make_source(QUESTION_ANSWERING, **settings)
    folder = samples.export(source, tmp_path, ONNX)
    rows = [(question, context) for question in ("a cat on the mat in the sun", "dog?") for context in samples.TEXTS]
    answers = samples.answer_in_python(source, dict(zip(("question", "context"), zip(*rows, strict=True), strict=True)))
    example = '"Who came twice?", "She came twice. He did not."'
    lines = run_documented_program(folder, 4, example, [f"{question!r}, {context!r}" for question, context in rows])
    probabilities, _, found = zip(*(line.partition(" ") for line in lines), strict=True)
    assert list(found) == answers["answer"].tolist()
    np.testing.assert_allclose(np.array(probabilities, float), answers["probability"], atol=1e-6)


def test_added_tokens_and_accents_are_kept(tmp_path: pathlib.Path):
    tokens = (AddedToken("[E1]", special=True, normalized=False), AddedToken("<user>"))
    vocab = VOCAB.replace("\na\nb\nc\n", "\n[E1]\n<user>\nsün\n")
    casing = UNCASED._replace(added_tokens=tokens, strip_accents=False)
    source = samples.make_source(CLASSIFICATION, vocab=vocab, casing=casing)
    folder = samples.export(source, tmp_path, ONNX)
    texts = ["the [E1] cat", "<USER>sat on the[E1].", "[e1] cat", "SÜN", "SUN"]
    assert source.tokenizer.tokenize(texts[1]) == ["<user>", "sat", "on", "the", "[E1]", "."]
    assert source.tokenizer.tokenize(texts[3]) == ["sün"]
    model, expected = onnx_model.OnnxPredictor(folder), samples.answer_in_python(source, {"text": texts})
    samples.assert_answers(model.run(exports.to_columns({"text": texts})), expected)
    assert model.metadata["strip_accents"] is False
    theirs = tokenizers.Tokenizer.from_file(f"{folder}/assets/tokenizer.json")
    theirs.encode_special_tokens = True
    for text in texts:
        assert theirs.encode(text, add_special_tokens=False).tokens == source.tokenizer.tokenize(text)


def test_damage_is_reported_in_one_line(export_kind, tmp_path: pathlib.Path):
    path = pathlib.Path(shutil.copytree(export_kind(QUESTION_ANSWERING, ONNX), tmp_path / "1"))
    graph, metadata = path / exports.ONNX_FILE, path / exports.METADATA_FILE
    whole = graph.read_bytes()
    graph.write_bytes(whole[: len(whole) // 2])
    assert_rejected((graph, path / "checksums.json"), backends.load_predictor, str(path))
    (path / "checksums.json").unlink()
    assert_rejected((graph, "INVALID_PROTOBUF"), onnx_model.OnnxPredictor, str(path))
    graph.write_bytes(whole.replace(b"start_logits", b"other_logits"))
    assert_rejected((graph, "other_logits", "question_answering", "start_logits"), onnx_model.OnnxPredictor, str(path))
    metadata.write_text(json.dumps({"kind": "classification"}))
    assert_rejected((metadata, "'task_spec'"), onnx_model.OnnxPredictor, str(path))


def write_and_open(proto: Any, folder: pathlib.Path, quantized: bool) -> onnxruntime.InferenceSession:
    path = str(folder / "model.onnx")
    onnx_graph.write(proto, path, quantized)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run_session(session: onnxruntime.InferenceSession, features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    inputs = {name: values.astype(np.int64) for name, values in features.items()}
    return dict(zip(names, session.run(names, inputs), strict=True))


def assert_written(proto: Any, model: keras.Model, kind: str, tmp_path: pathlib.Path) -> None:
    """Compares outputs for several batch sizes and lengths. Only span logits of padding are used and compared."""
    onnx.checker.check_model(proto, full_check=True)
    session = write_and_open(proto, tmp_path, quantized=False)
    for rows, length in ((1, 5), (3, 9)):
        features = samples.random_features(rows, *([samples.CHOICES] if kind == MULTIPLE_CHOICE else []), length)
        expected = model(features, training=False)
        expected = expected if isinstance(expected, dict) else {session.get_outputs()[0].name: expected}
        written = run_session(session, features)
        assert written.keys() == expected.keys()
        is_token = features["input_mask"] > 0
        for name, values in expected.items():
            assert written[name].shape == values.shape
            of_tokens = is_token if values.shape[:2] == is_token.shape and kind != QUESTION_ANSWERING else ...
            np.testing.assert_allclose(written[name][of_tokens], np.asarray(values)[of_tokens], rtol=1e-5, atol=1e-5)


HEADS = {"num_attention_heads": 4}


@pytest.mark.parametrize(("kind", "changes", "head"), slow_after(14, [
    *((kind, HEADS if kind == MULTIPLE_CHOICE else {}, "") for kind in KINDS),
    *((kind, {**HEADS, "causal_attention": True, "layer_norm_eps": 0.1}, "") for kind in (CLASSIFICATION, TAGGING)),
    *((TAGGING, {"num_hidden_layers": 1, "hidden_act": name}, "") for name in ("gelu_exact", "relu", "tanh")),
    (TAGGING, {"hidden_act": "linear"}, "sum_all"),
    *((kind, {}, head) for head in ("concat_last_four", BILSTM, *FEATURES) for kind in (CLASSIFICATION, TAGGING)),
    *((kind, {"causal_attention": True}, "") for kind in KINDS),
]))  # fmt: skip
def test_every_kind_gives_the_outputs_of_its_model(kind: str, changes: dict[str, Any], head: str, tmp_path):
    config = dataclasses.replace(samples.CONFIG, **changes)
    model = samples.build_model(kind, config, HeadInput(head, 3) if head else None)
    assert_written(onnx_graph.onnx_model(model), model, kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_8_bit_matrices_nearly_keep_the_logits_of_every_kind(kind: str, tmp_path: pathlib.Path):
    model = samples.build_model(kind, samples.LARGER)
    session = write_and_open(onnx_graph.onnx_model(model), tmp_path, quantized=True)
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)
    assert samples.relative_error(model, kind, lambda features: run_session(session, features)) < 0.1


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooled"])
def test_vectors_equal_the_encoders_vectors(pooling: str, tmp_path: pathlib.Path):
    encoder = samples.build_model(ENCODER)
    for settings in (((-1,), False), ((2, -2), True)):
        proto = onnx_graph.onnx_model(encoder, pooling, *settings)
        assert_written(proto, build_vector_model(encoder, pooling, *settings), CLASSIFICATION, tmp_path)


def test_last_block_is_computed_only_for_cls_if_the_head_reads_only_cls():
    for kind, operation in ((CLASSIFICATION, "MultiHeadAttention"), (TAGGING, "Attention")):
        graph = onnx_graph.onnx_model(samples.build_model(kind)).graph
        assert {node.op_type for node in graph.node if node.name == "layer_1_attention"} == {operation}


def test_unknown_layer_is_rejected():
    encoder = build_encoder(samples.CONFIG)
    logits = keras.layers.Softmax(name="mine")(build_classifier(encoder, 2).output)
    assert_rejected(("mine", "Softmax"), onnx_graph.onnx_model, keras.Model(encoder.input, logits))


def test_a_weight_that_the_graph_does_not_contain_is_rejected(monkeypatch: pytest.MonkeyPatch):
    path = make.add_attention_weight(monkeypatch)
    config = dataclasses.replace(samples.CONFIG, hidden_act="relu")  # a model that other tests do not share
    models = ((CLASSIFICATION, "2 of 43"), (MULTIPLE_CHOICE, "2 of 43"), (ENCODER, "1 of 22", "mean", (1,)))
    for kind, count, *pooling in models:
        message = refusal(onnx_graph.onnx_model, samples.build_model(kind, config), *pooling)
        assert_mentions(message, path, count)
    assert "layer_1" not in message  # its output is not used
