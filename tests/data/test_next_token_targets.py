import pathlib

import numpy as np
import tensorflow as tf

from official_bert.data import input_pipeline
from official_bert.data.next_token_targets import NextTokenTargets
from tests.data.test_input_pipeline import LENGTH, UNMASKED, masking, write_records


def test_every_token_of_text_is_predicted_from_those_before_it(tmp_path: pathlib.Path):
    paths = write_records(tmp_path, [40])
    plain = next(iter(input_pipeline.evaluation_batches(paths, 50, UNMASKED)))  # ten rows of padding
    made = next(iter(input_pipeline.evaluation_batches(paths, 50, UNMASKED, masking=NextTokenTargets())))
    batch = {name: value.numpy() for name, value in made.items()}
    np.testing.assert_array_equal(batch["input_ids"], plain["input_ids"])
    assert batch["masked_lm_ids"].shape == (50, LENGTH - 1)
    predicted = 0
    for row in range(50):
        ids, mask, segments = (batch[name][row] for name in ("input_ids", "input_mask", "segment_ids"))
        for slot, position in enumerate(batch["masked_lm_positions"][row]):
            target = position + 1
            has_next = mask[target] and target + 1 < LENGTH and mask[target + 1]
            is_text = has_next and segments[target + 1] == segments[target]
            assert batch["masked_lm_weights"][row, slot] == float(is_text)
            assert batch["masked_lm_ids"][row, slot] == (ids[target] if is_text else 0)
            predicted += int(is_text)
        assert not batch["masked_lm_weights"][row].any() or mask[0]
    assert predicted > 40 * 5


def test_masks_are_taken_away_first(tmp_path: pathlib.Path):
    paths = write_records(tmp_path, [40])
    plain = next(iter(input_pipeline.evaluation_batches(paths, 40, UNMASKED)))
    masked = masking().mask(plain, tf.range(40, dtype=tf.int64))
    assert bool(tf.reduce_any(masked["input_ids"] != plain["input_ids"]))
    keys = tf.zeros([40], tf.int64)
    expected = NextTokenTargets().mask(plain, keys)
    for name, value in NextTokenTargets().mask(masked, keys).items():
        np.testing.assert_array_equal(value, expected[name])
