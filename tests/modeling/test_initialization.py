"""How weights start."""

import dataclasses
import math

import numpy as np
import pytest

from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.pretraining_model import build_pretraining_model
from tests.modeling.small_models import weights_of


def test_initial_weights_are_as_published(tiny_config: BertConfig):
    config = dataclasses.replace(tiny_config, vocab_size=2000, hidden_size=64, intermediate_size=256)
    for path, value in weights_of(build_pretraining_model(config, seed=0)).items():
        name = path.rsplit("/", 1)[1]
        if name in ("bias", "beta"):
            assert not value.any()
        elif name == "gamma":
            assert (value == 1).all()
        else:
            # A normal distribution cut at two deviations keeps 0.8796 of its deviation.
            assert np.abs(value).max() <= 2 * config.initializer_range
            assert value.std() == pytest.approx(0.8796 * config.initializer_range, rel=4 / math.sqrt(value.size))


def test_a_seed_gives_the_same_weights_and_no_two_layers_start_alike(tiny_config: BertConfig):
    first, second = (weights_of(build_pretraining_model(tiny_config, seed=1)) for _ in range(2))
    other = weights_of(build_pretraining_model(tiny_config, seed=2))
    for path, value in first.items():
        np.testing.assert_array_equal(value, second[path])
        if path.endswith(("kernel", "embeddings")):
            assert not np.array_equal(value, other[path])
    kernels = [value for path, value in first.items() if path.endswith("kernel") and value.shape == (8, 8)]
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels) == 2 * 4 + 2
    encoder = weights_of(build_encoder(tiny_config, seed=1))
    assert all(np.array_equal(value, first[path]) for path, value in encoder.items())
