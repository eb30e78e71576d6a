import numpy as np
import pytest

from official_bert.kinds.losses import TaggingLoss


def test_the_loss_of_tags_is_the_mean_over_those_that_are_there():
    logits = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    tags = np.array([[1, -1, 2], [-1, -1, -1]])
    by_hand = [np.log(np.exp(logits[0, i]).sum()) - logits[0, i, tags[0, i]] for i in (0, 2)]
    assert float(TaggingLoss()(tags, logits)) == pytest.approx(np.mean(by_hand), rel=1e-5)
