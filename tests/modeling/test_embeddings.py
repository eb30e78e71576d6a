"""From ids to vectors."""

import numpy as np
import pytest

from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder


def test_too_long_a_sequence_is_refused(tiny_config: BertConfig):
    encoder = build_encoder(tiny_config)
    ids = np.zeros((1, tiny_config.max_position_embeddings + 1), "int32")
    with pytest.raises(ValueError, match="the sequence has 33 positions, the model 32"):
        encoder({"input_ids": ids, "input_mask": ids, "segment_ids": ids})
