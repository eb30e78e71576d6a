import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.optimization.freezing import check_trainable, freeze
from official_bert.optimization.optimizers import get_optimizer
from tests.make import assert_refused


def test_frozen_layers_get_neither_update_nor_decay(tiny_config: BertConfig):
    model = build_pretraining_model(tiny_config, seed=0)
    frozen = freeze(model, ["layer_0_.*", "word_embeddings"])
    assert frozen[0] == "word_embeddings"
    assert len(frozen) == 9
    before = {variable.path: np.asarray(variable).copy() for variable in model.variables}
    optimizer = get_optimizer("adamw", 0.1)
    optimizer.build(model.trainable_variables)
    optimizer.apply([tf.ones(variable.shape) for variable in model.trainable_variables], model.trainable_variables)
    for variable in model.variables:
        still = np.array_equal(variable, before[variable.path])
        assert still == (variable.path.split("/")[0] in frozen), variable.path
    assert not any(name in variable.path for variable in optimizer.variables for name in frozen)


@pytest.mark.parametrize(("patterns", "message"), [
    (["layer_0"], "'layer_0' matches no whole layer name; the layers with weights are word_embeddings, .*next_sen"),
    (["layer_0_output_dropout"], "matches no whole layer name"),  # it has no weights, so nothing would be frozen
    (["layer_(0"], r"'layer_\(0' is not a regular expression: missing \)"),
])  # fmt: skip
def test_freezing_nothing_is_refused(tiny_config: BertConfig, patterns: list[str], message: str):
    model = build_pretraining_model(tiny_config)
    assert_refused(message, freeze, model, patterns)
    assert len(model.trainable_variables) == len(model.variables)


def test_all_freezes_the_encoder_but_no_head(tiny_config: BertConfig):
    model = build_pretraining_model(tiny_config)
    freeze(model, ["all"])
    check_trainable(model)
    layers = {variable.path.split("/")[0] for variable in model.trainable_variables}
    assert layers == {"masked_lm_transform", "masked_lm_layer_norm", "masked_lm_output", "next_sentence"}
    freeze(model, [".*"])
    assert_refused("nothing to train", check_trainable, model)
