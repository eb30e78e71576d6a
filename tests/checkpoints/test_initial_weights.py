"""Weights of any format, into a pre-training model."""

import dataclasses
import pathlib

import numpy as np
import pytest

from official_bert.checkpoints import initial_weights
from official_bert.checkpoints.checkpoint import (
    ENCODER,
    MASKED_LM,
    NEXT_SENTENCE,
    POOLER,
    PRETRAINING,
    SEQUENCE_CLASSIFIER,
)
from official_bert.checkpoints.formats import hugging_face
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.options import WRITABLE
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.tokenization.casing import UNCASED
from tests.checkpoints.checkpoint_samples import sample
from tests.conftest import WORDS


@pytest.mark.parametrize("format_name", list(WRITABLE))
def test_weights_of_every_format_are_taken(format_name: str, tiny_config: BertConfig, tmp_path: pathlib.Path):
    written = FORMATS[format_name].write(sample(tiny_config), str(tmp_path))
    model = build_pretraining_model(tiny_config)
    before = {variable.path: np.array(variable) for variable in model.variables}
    loaded = initial_weights.load_weights(model, str(tmp_path))
    for variable in model.variables:
        np.testing.assert_array_equal(variable, written.weights.get(variable.path, before[variable.path]))
    assert loaded.unused == []
    found = initial_weights.find_files(str(tmp_path))
    assert found.config == tiny_config
    assert found.tokenizer.casing in (UNCASED, None)
    assert [vocab.split() for vocab in found.tokenizer.vocabularies.values()] == [WORDS]


@pytest.mark.parametrize(("parts", "new", "unused"), [
    ({ENCODER, MASKED_LM}, [POOLER, NEXT_SENTENCE], 0),
    ({ENCODER, POOLER, SEQUENCE_CLASSIFIER}, [MASKED_LM, NEXT_SENTENCE], 2),
])  # fmt: skip
def test_heads_that_the_checkpoint_lacks_begin_anew_and_those_of_tasks_are_not_used(
    parts: set[str], new: list[str], unused: int, tiny_config: BertConfig, tmp_path: pathlib.Path
):
    hugging_face.write(sample(tiny_config, frozenset(parts)), str(tmp_path))
    loaded = initial_weights.load_weights(build_pretraining_model(tiny_config), str(tmp_path))
    assert loaded.new_heads == new
    assert f"the checkpoint has no {', no '.join(new)}: what it lacks begins anew" in list(loaded.lines())
    assert len(loaded.unused) == unused


def test_weights_that_the_model_has_no_place_for_are_refused(tiny_config: BertConfig, tmp_path: pathlib.Path):
    hugging_face.write(sample(tiny_config, PRETRAINING), str(tmp_path))
    smaller = build_pretraining_model(dataclasses.replace(tiny_config, num_hidden_layers=1))
    with pytest.raises(UserError, match="layer_1_attention_key/bias is left over.*--init_allow=layer_1"):
        initial_weights.load_weights(smaller, str(tmp_path))
    loaded = initial_weights.load_weights(smaller, str(tmp_path), ["layer_1_.*"])
    assert len(loaded.unused) == 16
