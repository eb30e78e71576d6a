import pathlib

import numpy as np

from official_bert.checkpoints import (
    conversion,
    initial_weights,
)
from official_bert.checkpoints.formats import hugging_face
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from tests.checkpoints.checkpoint_samples import conversion_options, sample


def test_init_checkpoint_takes_converted_weights(exact_config: BertConfig, tmp_path: pathlib.Path):
    checkpoint = sample(exact_config)
    hugging_face.write(checkpoint, str(tmp_path / "hf"))
    conversion.convert(conversion_options(tmp_path / "hf", tmp_path / "ours"))
    config = BertConfig.from_json_file(str(tmp_path / "ours" / "bert_config.json"))
    assert config == exact_config
    model = build_pretraining_model(config)
    assert initial_weights.load_weights(model, str(tmp_path / "ours")).unused == []
    for variable in model.variables:
        np.testing.assert_array_equal(variable, checkpoint.weights[variable.path])
