import numpy as np
import pytest

from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.losses import TagAccuracy

TAGS = np.array([[1, 0], [1, NO_LABEL]])
LOGITS = np.array([[[0, 1], [1, 0]], [[1, 0], [1, 0]]], np.float32)  # Two are right, and one is wrong.


@pytest.mark.parametrize(("weights", "accuracy"), [(None, 1 / 2), ([3.0, 1.0], 6 / 8), ([[1, 1], [0, 5]], 1.0)])
def test_tokens_without_a_tag_do_not_count_however_long_the_padding_is(weights, accuracy):
    metric = TagAccuracy()
    for rows, padding in (slice(0, 2), 0), (slice(1, 2), 4):
        weight = None if weights is None else np.array(weights, np.float32)[rows]
        if weight is not None and weight.ndim == 2:
            weight = np.pad(weight, [(0, 0), (0, padding)])
        metric.update_state(
            np.pad(TAGS[rows], [(0, 0), (0, padding)], constant_values=NO_LABEL),
            np.pad(LOGITS[rows], [(0, 0), (0, padding), (0, 0)]),
            weight,
        )
    assert float(metric.result()) == pytest.approx(accuracy)
