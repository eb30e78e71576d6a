"""Compares ONNX graphs on ONNX Runtime with the Keras models that they were written from."""

import dataclasses
import pathlib
from typing import Any

import keras
import numpy as np
import onnx
import onnxruntime
import pytest

from official_bert.export import onnx_graph
from official_bert.kinds.classification.model import build_classifier
from official_bert.kinds.names import CLASSIFICATION, ENCODER, KINDS, MULTIPLE_CHOICE, TAGGING
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.head_input import BILSTM, FEATURES, HeadInput
from official_bert.modeling.pooling import build_vector_model
from tests.conftest import slow_after
from tests.export.exported_models import CHOICES, CONFIG, LARGER, build_model, random_features, relative_error
from tests.make import add_attention_weight, assert_mentions, assert_rejected, refusal


def run_session(session: onnxruntime.InferenceSession, features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    inputs = {name: values.astype(np.int64) for name, values in features.items()}
    return dict(zip(names, session.run(names, inputs), strict=True))


def assert_written(proto: Any, model: keras.Model, kind: str, tmp_path: pathlib.Path) -> None:
    """Compares outputs for several batch sizes and lengths. The outputs of padding are never used and not compared."""
    path = str(tmp_path / "model.onnx")
    onnx.checker.check_model(proto, full_check=True)
    onnx_graph.write(proto, path, quantized=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for rows, length in ((1, 5), (3, 20)):
        features = random_features(rows, *([CHOICES] if kind == MULTIPLE_CHOICE else []), length)
        expected = model(features, training=False)
        expected = expected if isinstance(expected, dict) else {session.get_outputs()[0].name: expected}
        written = run_session(session, features)
        assert written.keys() == expected.keys()
        is_token = features["input_mask"] > 0
        for name, values in expected.items():
            assert written[name].shape == values.shape
            of_tokens = is_token if values.shape[:2] == is_token.shape else ...
            np.testing.assert_allclose(written[name][of_tokens], np.asarray(values)[of_tokens], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "changes", "head"), slow_after(14, [
    *((kind, {}, "") for kind in KINDS),
    *((kind, {"causal_attention": True, "layer_norm_eps": 0.1}, "") for kind in (CLASSIFICATION, TAGGING)),
    *((TAGGING, {"hidden_act": activation}, "") for activation in ("gelu_exact", "relu", "tanh", "linear")),
    *((kind, {}, head) for head in ("concat_last_four", BILSTM, *FEATURES) for kind in (CLASSIFICATION, TAGGING)),
    *((kind, {"causal_attention": True}, "") for kind in KINDS),
]))  # fmt: skip
def test_every_kind_gives_the_outputs_of_its_model(kind: str, changes: dict[str, Any], head: str, tmp_path):
    model = build_model(kind, dataclasses.replace(CONFIG, **changes), HeadInput(head, 3) if head else HeadInput())
    assert_written(onnx_graph.onnx_model(model), model, kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_8_bit_matrices_nearly_keep_the_logits_of_every_kind(kind: str, tmp_path: pathlib.Path):
    model, path = build_model(kind, LARGER), str(tmp_path / "model.onnx")
    onnx_graph.write(onnx_graph.onnx_model(model), path, quantized=True)
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    error = relative_error(model, kind, lambda features: run_session(session, features))
    assert error < 0.1


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooled"])
def test_vectors_equal_the_encoders_vectors(pooling: str, tmp_path: pathlib.Path):
    encoder = build_model(ENCODER)
    for layers in ((-1,), (1, -1)):
        proto = onnx_graph.onnx_model(encoder, pooling, layers)
        assert_written(proto, build_vector_model(encoder, pooling, layers), CLASSIFICATION, tmp_path)


def test_last_block_is_computed_only_for_cls_if_the_head_reads_only_cls():
    def block_inputs(kind: str) -> set[str]:
        graph = onnx_graph.onnx_model(build_model(kind)).graph
        return {node.op_type for node in graph.node if node.name == "layer_1_attention"}

    assert block_inputs(CLASSIFICATION) == {"MultiHeadAttention"}
    assert block_inputs(TAGGING) == {"Attention"}


def test_unknown_layer_is_rejected():
    encoder = build_encoder(CONFIG)
    logits = keras.layers.Softmax(name="mine")(build_classifier(encoder, 2).output)
    assert_rejected(("mine", "Softmax"), onnx_graph.onnx_model, keras.Model(encoder.input, logits))


def test_a_weight_that_the_graph_does_not_contain_is_rejected(monkeypatch: pytest.MonkeyPatch):
    path = add_attention_weight(monkeypatch)
    config = dataclasses.replace(CONFIG, hidden_act="relu")  # a model that other tests do not share
    for kind, *pooling in ((CLASSIFICATION,), (MULTIPLE_CHOICE,), (ENCODER, "mean", (1,))):
        message = refusal(onnx_graph.onnx_model, build_model(kind, config), *pooling)
        assert_mentions(message, path)
    assert "layer_1" not in message  # its output is not used
