import pathlib

import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints import parity
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM
from official_bert.checkpoints.formats import hugging_face
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.options import WRITABLE
from official_bert.modeling.config import BertConfig
from tests.checkpoints.checkpoint_samples import sample
from tests.reference import Reference


@pytest.mark.parametrize("format_name", list(WRITABLE))
def test_load_returns_encoder_configuration_and_tokenizer(format_name: str, tiny_config: BertConfig, tmp_path):
    checkpoint = sample(tiny_config)
    FORMATS[format_name].write(checkpoint, str(tmp_path))
    encoder, config, tokenizer = official_bert.load(str(tmp_path))
    assert config == tiny_config
    assert tokenizer.tokenize("The cat") == ["the", "cat"]
    features = parity.make_fixed_input(config)
    layers, pooled = Reference(checkpoint.weights, config).encode(**features)
    outputs = encoder(features)
    np.testing.assert_allclose(outputs["sequence_output"], layers[-1], atol=1e-5)
    np.testing.assert_allclose(outputs["pooled_output"], pooled, atol=1e-5)


def test_load_works_under_a_distribution_scope(tiny_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(tiny_config)
    hugging_face.write(checkpoint, str(tmp_path))
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        encoder = official_bert.load(str(tmp_path)).model
    for variable in encoder.variables:
        assert isinstance(variable.value, tf.distribute.DistributedValues)
        np.testing.assert_array_equal(variable, checkpoint.weights[variable.path])


def test_load_omits_a_missing_pooler(tiny_config: BertConfig, tmp_path: pathlib.Path):
    hugging_face.write(sample(tiny_config, frozenset({ENCODER, MASKED_LM})), str(tmp_path))
    assert set(official_bert.load(str(tmp_path)).model.output) == {"sequence_output"}
