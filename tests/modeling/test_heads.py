"""Which vectors heads read, and which weights they share."""

import numpy as np

from official_bert.modeling.config import BertConfig
from official_bert.modeling.heads import FirstPosition, GatherPositions, LastToken
from official_bert.modeling.pretraining_model import build_pretraining_model
from tests.modeling.small_models import weights_of


def test_vectors_are_those_of_the_first_position_the_last_token_and_the_positions_to_predict():
    sequence = np.arange(2 * 4 * 3, dtype="float32").reshape(2, 4, 3)
    input_mask = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], "int32")
    positions = np.array([[2, 0], [3, 3]], "int32")
    np.testing.assert_array_equal(FirstPosition()(sequence), sequence[:, 0])
    np.testing.assert_array_equal(LastToken()([sequence, input_mask]), [sequence[0, 2], sequence[1, 0]])
    np.testing.assert_array_equal(GatherPositions()([sequence, positions]), [sequence[0, [2, 0]], sequence[1, [3, 3]]])


def test_word_embeddings_are_tied_to_the_masked_lm_output(tiny_config: BertConfig):
    model = build_pretraining_model(tiny_config)
    by_shape = [path for path, value in weights_of(model).items() if tiny_config.vocab_size in value.shape]
    assert sorted(by_shape) == ["masked_lm_output/bias", "word_embeddings/embeddings"]
