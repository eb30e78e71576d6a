"""Fixtures for the checkpoint tests."""

import dataclasses

import pytest

from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.modeling.config import BertConfig


@pytest.fixture
def exact_config(tiny_config: BertConfig) -> BertConfig:
    """A configuration with the typical settings of Hugging Face models."""
    return dataclasses.replace(tiny_config, hidden_act="gelu_exact", layer_norm_eps=1e-6, hidden_dropout_prob=0.2)


@pytest.fixture(autouse=True)
def hide_frameworks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the conversions of fast tests from importing transformers and keras-hub, which takes 15 seconds."""
    if not request.node.get_closest_marker("slow"):
        for name, each in FORMATS.items():
            monkeypatch.setitem(FORMATS, name, dataclasses.replace(each, framework=None))
