"""Outputs are assigned to their rows, without padding, and follow changes of layers."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from official_bert.inference.keras_model import KerasRunner, compute_outputs
from official_bert.kinds.features import concatenate_rows, gather_rows


def test_outputs_have_the_order_of_the_texts_and_no_padding():
    expected = [[10.0 * number] * length for number, length in enumerate((5, 2, 7, 3, 1))]
    ids = [np.array(row, np.int32) for row in expected]
    features = concatenate_rows(ids, [np.zeros_like(each) for each in ids], {}, {}, has_token_outputs=True)
    of_tokens = compute_outputs(lambda inputs: tf.stack([inputs["input_ids"]] * 2, -1), features, 2, 8)  # [B, S, C]
    assert [row.tolist() for row in of_tokens] == [[[each] * 2 for each in row] for row in expected]
    named = compute_outputs(lambda inputs: {"tokens": inputs["input_ids"]}, features, 2, 8)  # [B, S]
    assert [row.tolist() for row in named["tokens"]] == expected
    assert gather_rows([(features, 1)]).has_token_outputs
    features = dataclasses.replace(features, has_token_outputs=False)
    of_rows = compute_outputs(lambda inputs: {"classes": tf.repeat(inputs["input_ids"][:, :1], 9, 1)}, features, 2, 8)
    assert [row.tolist() for row in of_rows["classes"]] == [row[:1] * 9 for row in expected]  # [B, C]


def test_layers_with_new_variables_are_traced_again():
    inputs = {
        name: keras.Input([None], dtype="int32", name=name) for name in ("input_ids", "segment_ids", "input_mask")
    }
    features = concatenate_rows([np.arange(4, 9)], [np.zeros(5, np.int32)], {}, {}, has_token_outputs=True)
    layer = keras.layers.Embedding(9, 2)
    model = keras.Model(inputs, layer(inputs["input_ids"]))
    runner = KerasRunner(model, None, 8)
    for change in (lambda: None, lambda: layer.enable_lora(1), lambda: layer.lora_embeddings_b.assign([[2.0, 3.0]])):
        change()
        np.testing.assert_allclose(runner.compute_outputs(features, 1)[0], layer(np.arange(4, 9)), rtol=1e-6)
