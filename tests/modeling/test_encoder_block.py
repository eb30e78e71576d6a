"""What attention sees, and what it does not."""

import numpy as np

from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.encoder_block import AttentionProbabilities
from tests.modeling.small_models import inputs_of_encoder, random_batch, with_random_weights


def probabilities(attention_ids: list[int], **settings: bool) -> np.ndarray:
    """[N, S, T], of random queries and keys."""
    query, key = np.random.default_rng(0).normal(size=(2, 1, len(attention_ids), 8)).astype("float32")
    layer = AttentionProbabilities(2, **settings)
    return np.asarray(layer([query, key, np.array([attention_ids], "int32")]))[0]


def test_tokens_attend_to_all_tokens_and_to_no_padding():
    found = probabilities([1, 1, 1, 0])
    np.testing.assert_allclose(found.sum(axis=-1), 1.0, rtol=1e-6)
    assert (found[..., :3] > 0).all()
    assert not found[..., 3].any()


def test_tokens_attend_to_those_before_them_alone_where_attention_is_causal():
    found = probabilities([1, 1, 1, 0], causal=True)
    np.testing.assert_array_equal(found[0] > 0, [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]])


def test_tokens_attend_to_those_of_their_record_alone_where_records_are_packed():
    found = probabilities([1, 1, 2, 0], packed=True)
    np.testing.assert_array_equal(found[0] > 0, [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


def test_padding_does_not_change_real_token_outputs(tiny_config: BertConfig):
    encoder = with_random_weights(build_encoder(tiny_config), 0)
    batch = inputs_of_encoder(random_batch(tiny_config, 1, batch=1, length=7))
    batch["input_mask"][:] = 1
    short = encoder(batch)
    padded = {name: np.pad(values, [(0, 0), (0, 9)]) for name, values in batch.items()}
    padded["input_ids"][:, 7:] = 5  # what stands in the padding must not matter either
    long = encoder(padded)
    np.testing.assert_allclose(long["sequence_output"][:, :7], short["sequence_output"], atol=1e-6)
    np.testing.assert_allclose(long["pooled_output"], short["pooled_output"], atol=1e-6)
