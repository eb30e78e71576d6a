"""Outputs are assigned to their rows, without padding."""

import numpy as np
import tensorflow as tf

from official_bert.inference.keras_model import compute_outputs
from official_bert.kinds.features import concatenate_rows

LENGTHS = (5, 2, 7, 3, 1)


def test_outputs_are_in_order_and_those_of_tokens_without_padding():
    ids = [np.full(length, 10 * number) for number, length in enumerate(LENGTHS)]
    features = concatenate_rows(ids, [np.zeros_like(each) for each in ids], {}, {})
    for found in (
        compute_outputs(lambda inputs: tf.stack([inputs["input_ids"]] * 2, -1), features, 2, 8),  # [B, S, C]
        compute_outputs(lambda inputs: {"tokens": inputs["input_ids"]}, features, 2, 8)["tokens"],  # [B, S]
    ):
        assert [len(row) for row in found] == list(LENGTHS)
        for number, row in enumerate(found):
            np.testing.assert_array_equal(row, np.full_like(row, 10 * number))
    of_rows = compute_outputs(lambda inputs: inputs["input_ids"][:, :1], features, 2, 8)  # [B, C]
    np.testing.assert_array_equal(of_rows, [[0], [10], [20], [30], [40]])
