"""From logits to answers in a graph, where the answers are few."""

import numpy as np
import tensorflow as tf

from official_bert.export.graph_answers import mask_candidates


def test_there_are_no_more_candidates_than_pieces_and_none_behind_the_masks():
    vocab = {"a": 0, "c": 2}  # the table's row 1 has no piece
    logits = tf.constant([[[1.0, 9.0, 2.0], [5.0, 9.0, 1.0]]])
    found = mask_candidates(logits, tf.constant([1]), vocab, top_k=5)
    assert found["tokens"].numpy().tolist() == [[[b"c", b"a"], [b"", b""]]]
    expected = np.exp([2.0, 1.0]) / np.exp([2.0, 1.0]).sum()
    np.testing.assert_allclose(found["probabilities"], [[expected, [0.0, 0.0]]], rtol=1e-5)
