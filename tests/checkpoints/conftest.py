"""Fixtures for the checkpoint tests."""

import dataclasses

import pytest

from official_bert.modeling.config import BertConfig


@pytest.fixture
def exact_config(tiny_config: BertConfig) -> BertConfig:
    """A configuration with the typical settings of Hugging Face models."""
    return dataclasses.replace(tiny_config, hidden_act="gelu_exact", layer_norm_eps=1e-6, hidden_dropout_prob=0.2)
