import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints import parity
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM, LoadOverrides
from official_bert.checkpoints.formats import hugging_face
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.vocabulary import FoundTokenizer, Tokenizer, resolve_tokenizer
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.casing import UNCASED
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.checkpoints.checkpoint_samples import sample
from tests.make import refusal
from tests.reference import Reference
from tests.tokenization.test_exact import ACCENTED


@pytest.mark.parametrize("format_name", ["tf1", "keras_hub"])
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


def test_load_works_under_a_distribution_scope_and_omits_a_missing_pooler(tiny_config: BertConfig, tmp_path):
    checkpoint = sample(tiny_config, frozenset({ENCODER, MASKED_LM}))
    hugging_face.write(checkpoint, str(tmp_path))
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        encoder = official_bert.load(str(tmp_path)).model
    assert set(encoder.output) == {"sequence_output"}
    for variable in encoder.variables:
        assert isinstance(variable.value, tf.distribute.DistributedValues)
        np.testing.assert_array_equal(variable, checkpoint.weights[variable.path])


def test_the_accent_flags_apply_if_no_file_states_the_casing(tiny_config: BertConfig):
    vocab = "\n".join([*SPECIAL_TOKENS, "über", "a"]) + "\n"
    found = FoundTokenizer("model", {"vocab.txt": vocab}, None, "tokenizer_config.json")

    def resolve(**given: bool) -> Tokenizer:
        return resolve_tokenizer(found, LoadOverrides(**given), tiny_config)

    assert resolve().casing == UNCASED
    assert "--nostrip_accents" in "".join(resolve().notes)
    assert resolve(strip_accents=False).casing == ACCENTED
    assert "--nostrip_accents" not in "".join(resolve(strip_accents=False).notes)
    assert "tokenizer_config.json" in refusal(resolve, do_lower_case=False, strip_accents=False)
    assert "strip_accents is true" in refusal(resolve, do_lower_case=False, strip_accents=True)
