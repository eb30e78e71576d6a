"""Loading weights of any format into a pre-training model with --init_checkpoint."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM, NEXT_SENTENCE, POOLER, LoadOverrides
from official_bert.checkpoints.formats import hugging_face
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.options import WRITABLE
from official_bert.checkpoints.run_checkpoints import RunCheckpoints
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.pretraining.initial_checkpoint import assign_initial_weights
from official_bert.tokenization.casing import UNCASED
from tests import make
from tests.checkpoints.checkpoint_samples import HEADS, sample
from tests.make import WORDS, assert_mentions, assert_rejected, list_weights, refusal
from tests.pretraining.pretraining_runs import make_pretrainer


@pytest.mark.parametrize("format_name", list(WRITABLE))
def test_weights_of_every_format_are_loaded(format_name, tiny_config, tmp_path):
    written = FORMATS[format_name].write(sample(tiny_config), str(tmp_path))
    model = build_pretraining_model(tiny_config)
    for variable in model.variables:
        variable.assign(tf.zeros(variable.shape))
    initial = open_model(str(tmp_path))
    lines = assign_initial_weights(model, initial)
    for path, value in list_weights(model).items():
        np.testing.assert_array_equal(value, written.weights.get(path, 0.0))
    assert any(" 0 unused" in line for line in lines)
    assert (initial.config, initial.casing) == (tiny_config, UNCASED)
    assert initial.require_vocab().split() == WORDS


def test_missing_heads_are_initialized_and_task_heads_ignored(tiny_config):
    model = build_pretraining_model(tiny_config)
    for parts, new, unused in (
        ({ENCODER, MASKED_LM}, [POOLER, NEXT_SENTENCE], 0),
        ({ENCODER, POOLER, HEADS["sequence"]}, [MASKED_LM, NEXT_SENTENCE], 2),
    ):
        lines = assign_initial_weights(model, sample(tiny_config, frozenset(parts)))
        assert f"the checkpoint has no {', no '.join(new)}: new weights are used" in lines
        assert f"{unused} unused" in lines[-2]


def test_google_checkpoint_variables_are_read_by_name(test_data):
    path = str(test_data / "checkpoints" / "toy_tf1" / "bert_model.ckpt")
    toy = open_model(path)
    model = build_pretraining_model(toy.config)
    lines = assign_initial_weights(model, toy)
    assert lines[-1].startswith("46 tensors loaded, 0 missing, 0 unused; 93 other tensors")
    assert "  loaded   pooler/bias from bert/pooler/dense/bias" in lines
    get, weights = tf.train.load_checkpoint(path).get_tensor, list_weights(model)
    kernel = get("bert/encoder/layer_1/attention/output/dense/kernel")
    np.testing.assert_array_equal(weights["layer_1_attention_output/kernel"], kernel)
    np.testing.assert_array_equal(weights["next_sentence/kernel"], get("cls/seq_relationship/output_weights").T)


def test_init_allow_permits_missing_and_unused_tensors(tiny_config, tmp_path):
    RunCheckpoints(str(tmp_path), make_pretrainer(tiny_config).variables, keep=1).save(1)
    config = dataclasses.replace(tiny_config, num_hidden_layers=1, intermediate_size=32)

    def read(*allow):
        return open_model(str(tmp_path), LoadOverrides(fallback_config=config, allow=allow))

    told = refusal(read, "layer_0_output/kernel", "layer_0_intermediate/.*", "model/layer_1_")
    assert_mentions(told, tmp_path / "ckpt-1", "16 unexpected")
    assert "--init_allow=model/layer_1_" in told
    shape = ("[8, 16]", "[8, 32]", "--init_allow=layer_0_intermediate/kernel")
    assert_rejected(shape, read, "layer_0_output/kernel", "model/layer_1_.*")
    allow = ["layer_0_(intermediate/.*|output/kernel)", "model/layer_1_.*"]
    model, initial = build_pretraining_model(config), read(*allow)
    before = list_weights(model)
    missing = {"layer_0_intermediate/kernel", "layer_0_intermediate/bias", "layer_0_output/kernel"}
    refused = (tmp_path, "missing", "layer_0_output/kernel", "--init_allow=layer_0_intermediate/kernel")
    assert_rejected(refused, assign_initial_weights, model, initial)
    np.testing.assert_equal(list_weights(model), before)
    assert f"{len(missing)} missing, 0 unused; " in assign_initial_weights(model, initial, allow)[-1]
    changed = {path for path, value in list_weights(model).items() if np.any(before[path] != value)}
    assert "layer_0_attention_query/kernel" in changed
    assert not changed & missing


def test_weights_that_the_model_lacks_or_has_in_other_shapes_are_rejected(tiny_config, tmp_path):
    hugging_face.write(sample(tiny_config), str(tmp_path))
    initial = open_model(str(tmp_path))
    smaller = build_pretraining_model(make.tiny_config(num_hidden_layers=1, intermediate_size=32))
    refused = (tmp_path, "unused", "layer_1_attention_query/bias", "layer_0_intermediate/kernel", "[8, 16]", "[8, 32]")
    assert_rejected((*refused, "--init_allow=layer_0_intermediate/kernel"), assign_initial_weights, smaller, initial)
    allow = ["layer_1_.*", "layer_0_(intermediate/.*|output/kernel)"]
    assert "3 missing, 16 unused" in assign_initial_weights(smaller, initial, allow)[-1]
