"""Checks the table of Google's variable names by computing outputs from the names without the table."""

import dataclasses
import math
import pathlib
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints import bundle, parity
from official_bert.checkpoints.formats import tf1
from official_bert.checkpoints.loading import open_model
from official_bert.modeling.config import BertConfig
from tests.make import tiny_config, write_vocab
from tests.reference import Array, Reference, gelu, softmax

CONFIG = tiny_config(intermediate_size=12)
Get = Callable[[str], Array]


def google_outputs(get: Get, config: BertConfig, input_ids: Array, input_mask: Array, segment_ids: Array) -> dict:
    """Computes the original's modeling.py and heads in NumPy and float64, with tensors addressed by the original names.

    Args:
        get: Function that returns a tensor of an original checkpoint by name.
        config: Sizes of the model.
        input_ids: [B, S].
        input_mask: [B, S].
        segment_ids: [B, S].

    Returns:
        Outputs, named as by `parity.compute_outputs`.
    """

    def dense(x: Array, name: str) -> Array:
        return x @ get(f"{name}/kernel") + get(f"{name}/bias")

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return centred / deviation * get(f"{name}/gamma") + get(f"{name}/beta")

    def heads(x: Array) -> Array:
        return x.reshape(*x.shape[:2], config.num_attention_heads, -1).transpose(0, 2, 1, 3)

    table = get("bert/embeddings/word_embeddings")
    x = table[input_ids] + get("bert/embeddings/token_type_embeddings")[segment_ids]
    x = norm(x + get("bert/embeddings/position_embeddings")[: input_ids.shape[1]], "bert/embeddings/LayerNorm")
    outputs = {}
    for number in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{number}"
        query, key, value = (heads(dense(x, f"{layer}/attention/self/{part}")) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(query.shape[-1])
        scores += (1.0 - input_mask[:, None, None, :]) * -10000.0
        context = (softmax(scores) @ value).transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(dense(context, f"{layer}/attention/output/dense") + x, f"{layer}/attention/output/LayerNorm")
        hidden = gelu(dense(x, f"{layer}/intermediate/dense"), exact=False)
        x = outputs[f"hidden_{number}"] = norm(dense(hidden, f"{layer}/output/dense") + x, f"{layer}/output/LayerNorm")
    pooled = outputs["pooled_output"] = np.tanh(dense(x[:, 0], "bert/pooler/dense"))
    x = gelu(dense(x, "cls/predictions/transform/dense"), exact=False)
    x = norm(x, "cls/predictions/transform/LayerNorm")
    outputs["masked_lm_logits"] = x @ table.T + get("cls/predictions/output_bias")
    weights, bias = (get(f"cls/seq_relationship/output_{part}") for part in ("weights", "bias"))
    outputs["next_sentence_logits"] = pooled @ weights.T + bias
    return outputs


def write_google_checkpoint(folder: pathlib.Path) -> None:
    """Writes a checkpoint with random values. Google's names and shapes are repeated here, without the table."""
    v, h, i = CONFIG.vocab_size, CONFIG.hidden_size, CONFIG.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (v, h),
        "bert/embeddings/token_type_embeddings": (2, h),
        "bert/embeddings/position_embeddings": (CONFIG.max_position_embeddings, h),
        "cls/predictions/output_bias": (v,),
        "cls/seq_relationship/output_weights": (2, h),
        "cls/seq_relationship/output_bias": (2,),
    }
    dense = {"bert/pooler/dense": (h, h), "cls/predictions/transform/dense": (h, h)}
    norms = ["bert/embeddings/LayerNorm", "cls/predictions/transform/LayerNorm"]
    for number in range(CONFIG.num_hidden_layers):
        layer = f"bert/encoder/layer_{number}"
        dense |= {f"{layer}/attention/self/{part}": (h, h) for part in ("query", "key", "value")}
        dense |= {f"{layer}/attention/output/dense": (h, h), f"{layer}/output/dense": (i, h)}
        dense[f"{layer}/intermediate/dense"] = (h, i)
        norms += [f"{layer}/attention/output/LayerNorm", f"{layer}/output/LayerNorm"]
    shapes |= {f"{name}/kernel": shape for name, shape in dense.items()}
    shapes |= {f"{name}/bias": shape[-1:] for name, shape in dense.items()}
    shapes |= {f"{name}/{part}": (h,) for name in norms for part in ("gamma", "beta")}
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(0.0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    bundle.write_bundle(str(folder / "bert_model.ckpt"), tensors)
    (folder / "bert_config.json").write_text(CONFIG.to_json())
    write_vocab(folder / "vocab.txt")


def compute_by_google_names(folder: pathlib.Path, config: BertConfig) -> dict[str, Array]:
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    return google_outputs(
        lambda name: reader.get_tensor(name).astype(np.float64), config, **parity.make_fixed_input(config)
    )


def compute_by_our_names(folder: pathlib.Path) -> dict[str, Array]:
    """Computes outputs in float64 from the weights that were read with the table of names."""
    checkpoint = open_model(str(folder))
    features = parity.make_fixed_input(checkpoint.config)
    reference = Reference(checkpoint.weights, checkpoint.config)
    layers, pooled = reference.encode(**features)
    positions = np.tile(np.arange(features["input_ids"].shape[1]), (2, 1))
    masked_lm, next_sentence = reference.predict(**features, masked_lm_positions=positions)
    outputs = {f"hidden_{number}": layer for number, layer in enumerate(layers)}
    return outputs | {"pooled_output": pooled, "masked_lm_logits": masked_lm, "next_sentence_logits": next_sentence}


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("google")
    write_google_checkpoint(folder)
    return folder


def test_outputs_equal_those_computed_from_googles_names(google: pathlib.Path):
    expected = compute_by_google_names(google, CONFIG)
    checkpoint = open_model(str(google))
    outputs = parity.compute_outputs(checkpoint)
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-4)
    assert parity.find_largest_difference(compute_by_our_names(google), expected) < 1e-9


def test_outputs_of_the_toy_checkpoint_equal_those_computed_from_googles_names(test_data: pathlib.Path):
    folder = test_data / "checkpoints" / "toy_tf1"
    checkpoint = open_model(str(folder))
    expected = compute_by_google_names(folder, checkpoint.config)
    assert parity.find_largest_difference(compute_by_our_names(folder), expected) < 1e-12
    for name, value in parity.compute_outputs(checkpoint).items():
        np.testing.assert_allclose(value, expected[name], atol=1e-5)


# Pairs of names in the table whose tensors have the same shape. A checkpoint with them swapped still loads.
EXCHANGED = [
    ("layer_{}_attention_key/kernel", "layer_{}_attention_value/kernel"),
    ("layer_{}_attention_key/kernel", "layer_{}_attention_query/kernel"),
    ("layer_{}_attention_value/kernel", "layer_{}_attention_output/kernel"),
    ("layer_{}_attention_query/bias", "layer_{}_attention_value/bias"),
    ("layer_{}_attention_output/bias", "layer_{}_output/bias"),
    ("layer_{}_attention_layer_norm/gamma", "layer_{}_output_layer_norm/gamma"),
    ("layer_{}_attention_layer_norm/beta", "layer_{}_output_layer_norm/beta"),
    ("layer_{}_output_layer_norm/gamma", "layer_{}_output_layer_norm/beta"),
    ("embeddings_layer_norm/gamma", "masked_lm_layer_norm/gamma"),
    ("embeddings_layer_norm/beta", "masked_lm_layer_norm/beta"),
    ("pooler/kernel", "masked_lm_transform/kernel"),
    ("pooler/bias", "masked_lm_transform/bias"),
]


@pytest.mark.parametrize(("one", "other"), EXCHANGED)
def test_exchanged_names_in_the_table_change_the_outputs(one: str, other: str, google: pathlib.Path, monkeypatch):
    names = tf1.NAMES | {one: tf1.NAMES[other], other: tf1.NAMES[one]}
    monkeypatch.setattr(tf1, "NAMING", dataclasses.replace(tf1.NAMING, names=names))
    assert parity.find_largest_difference(compute_by_our_names(google), compute_by_google_names(google, CONFIG)) > 0.01


def test_key_biases_do_not_affect_the_outputs(google: pathlib.Path):
    """A key bias adds the same value to all scores of a query, so it does not affect any output."""
    checkpoint = open_model(str(google))
    features = parity.make_fixed_input(CONFIG)
    reference = Reference(checkpoint.weights, CONFIG)
    before = reference.encode(**features)[1]
    reference.weights["layer_0_attention_key/bias"] += 1.0
    np.testing.assert_allclose(reference.encode(**features)[1], before, atol=1e-12)
