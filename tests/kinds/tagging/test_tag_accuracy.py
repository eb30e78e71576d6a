import numpy as np
import pytest

from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.losses import TagAccuracy


@pytest.mark.parametrize(("weights", "accuracy"), [(None, 2 / 3), ([3.0, 1.0], 6 / 7), ([[1, 1], [0, 5]], 1.0)])
def test_tokens_without_a_tag_do_not_count(weights, accuracy):
    metric = TagAccuracy()
    for _ in range(2):
        metric.update_state(
            np.array([[1, 0], [1, NO_LABEL]]),
            np.array([[[0, 1], [1, 0]], [[1, 0], [1, 0]]], np.float32),
            None if weights is None else np.array(weights, np.float32),
        )
    assert float(metric.result()) == pytest.approx(accuracy)
