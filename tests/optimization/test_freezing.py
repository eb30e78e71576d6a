"""Frozen layers, and learning rates of layers."""

import numpy as np
import tensorflow as tf

from official_bert.kinds.classification.model import build_classifier
from official_bert.kinds.multiple_choice.model import build_multiple_choice_model
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.optimization.finetuning_optimizer import compute_layer_factors
from official_bert.optimization.freezing import check_trainable, freeze
from official_bert.optimization.optimizers import get_optimizer
from tests.make import assert_rejected, list_weights


def test_frozen_layers_get_neither_update_nor_decay(tiny_config):
    model = build_pretraining_model(tiny_config, seed=0)
    frozen = freeze(model, ["layer_0_.*", "word_embeddings"])
    assert frozen[0] == "word_embeddings"
    assert len(frozen) == 9
    before = list_weights(model)
    optimizer = get_optimizer("adamw", 0.1)
    optimizer.build(model.trainable_variables)
    optimizer.apply([tf.ones(variable.shape) for variable in model.trainable_variables], model.trainable_variables)
    for variable in model.variables:
        still = np.array_equal(variable, before[variable.path])
        assert still == (variable.path.split("/")[0] in frozen), variable.path
    assert not any(name in variable.path for variable in optimizer.variables for name in frozen)


def test_freezing_nothing_is_refused_and_all_freezes_the_encoder_but_no_head(tiny_config):
    model = build_pretraining_model(tiny_config)
    for pattern, names in (
        ("layer_0", ("word_embeddings", "next_sentence")),
        ("layer_0_output_dropout", ("word_embeddings",)),  # it has no weights, so nothing would be frozen
        ("layer_(0", ("position 6",)),
    ):
        assert_rejected((repr(pattern), *names), freeze, model, [pattern])
        assert len(model.trainable_variables) == len(model.variables)
    freeze(model, ["all"])
    check_trainable(model)
    layers = {variable.path.split("/")[0] for variable in model.trainable_variables}
    assert layers == {"masked_lm_transform", "masked_lm_layer_norm", "masked_lm_output", "next_sentence"}
    freeze(model, [".*"])
    assert_rejected(("freeze", "model.get_layer(name).trainable"), check_trainable, model)


def test_layer_decay_reduces_the_rate_from_layer_to_layer(tiny_config):
    model = build_classifier(build_encoder(tiny_config), 2)
    factors = {path.split("/")[-2]: factor for path, factor in compute_layer_factors(model, 2, 0.5).items()}
    assert factors["layer_1_output"] == 0.5
    assert factors["layer_0_attention_query"] == 0.25
    assert factors["word_embeddings"] == factors["embeddings_layer_norm"] == 0.125
    assert not {"pooler", "sequence_classifier"} & set(factors)
    assert compute_layer_factors(model, 2, 1.0) == {}
    choices = compute_layer_factors(build_multiple_choice_model(build_encoder(tiny_config), 3), 2, 0.5)
    assert {path.split("/")[-2]: factor for path, factor in choices.items()} == factors
