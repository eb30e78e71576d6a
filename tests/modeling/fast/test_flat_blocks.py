import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.kinds.names import CLASSIFICATION, MULTIPLE_CHOICE
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.fast.flat_blocks import flatten_blocks
from tests.export.exported_models import CHOICES, CONFIG, build_model, random_features, scattered
from tests.make import build_task_model

FEATURES = random_features(3, 11)
OTHER_SIZES = {"hidden_act": "relu", "layer_norm_eps": 0.1, "num_hidden_layers": 1}


@pytest.mark.parametrize("changes", [{"causal_attention": True}, OTHER_SIZES])
def test_flat_blocks_have_the_outputs_of_the_model(changes: dict[str, Any]):
    encoder = scattered(build_encoder(dataclasses.replace(CONFIG, **changes), return_all_layers=True, seed=1))
    without_pooler = keras.Model(encoder.input, {"sequence_output": encoder.output["sequence_output"]})
    sum_of_blocks = keras.Model(encoder.input, {"sum": keras.layers.Add()(encoder.output["encoder_outputs"] * 2)})
    for model in (encoder, without_pooler, sum_of_blocks):
        expected, found = model(FEATURES), flatten_blocks(model)(FEATURES)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=5e-6, err_msg=name)


def test_models_with_nested_or_other_blocks_are_not_flattened():
    model, features = build_model(MULTIPLE_CHOICE), random_features(2, CHOICES, 7)
    np.testing.assert_array_equal(flatten_blocks(model)(features), model(features))
    model = build_task_model(CLASSIFICATION, build_encoder(CONFIG, seed=1, dtype="mixed_bfloat16"), 3)
    np.testing.assert_array_equal(flatten_blocks(model)(FEATURES), model(FEATURES))


def test_flat_blocks_have_fewer_operations_and_no_transposes():
    encoder = build_encoder(CONFIG, return_all_layers=True, seed=1)
    sum_of_blocks = keras.Model(encoder.input, keras.layers.Add()(encoder.output["encoder_outputs"]))
    flat = trace_operations(flatten_blocks(sum_of_blocks), sum_of_blocks)
    assert "Transpose" not in flat
    assert len(flat) < 0.7 * len(trace_operations(sum_of_blocks, sum_of_blocks))


def trace_operations(function: Any, model: keras.Model) -> list[str]:
    """Returns the operations in the graph of a function of the model's inputs."""
    features = dict.fromkeys(model.input, tf.TensorSpec([None, None], tf.int32))
    graph = tf.function(lambda features: function(features), autograph=False).get_concrete_function(features).graph
    return [operation.type for operation in graph.get_operations() if operation.type != "Const"]
