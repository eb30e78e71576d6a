import numpy as np
import tensorflow as tf

from official_bert.data.input_pipeline import RecordSource
from official_bert.data.next_token_targets import add_next_token_targets
from tests.data.test_input_pipeline import LENGTH, UNMASKED, masking, parse_records, write_records


def test_every_token_is_predicted_from_the_previous_tokens(tmp_path):
    paths = write_records(tmp_path, [40])
    source = RecordSource(paths, UNMASKED, add_next_token_targets)
    batch = next(source.evaluation_batches(50).as_numpy_iterator())  # ten rows of padding
    ids, mask, segments = (batch[name] for name in ("input_ids", "input_mask", "segment_ids"))
    np.testing.assert_array_equal(ids[:40], parse_records(paths[0])["input_ids"])
    assert not ids[40:].any()
    np.testing.assert_array_equal(batch["masked_lm_positions"][:40], np.tile(range(LENGTH - 1), (40, 1)))
    # A token is text if the next one belongs to the same segment. [SEP] and padding are not text.
    is_text = np.zeros([50, LENGTH], bool)
    is_text[:, :-1] = (mask[:, 1:] > 0) & (segments[:, 1:] == segments[:, :-1])
    np.testing.assert_array_equal(batch["masked_lm_weights"], is_text[:, 1:])
    np.testing.assert_array_equal(batch["masked_lm_ids"], np.where(is_text, ids, 0)[:, 1:])
    assert is_text[:, 1:].sum() > 40 * 5


def test_masks_are_removed_before_next_tokens_are_predicted(tmp_path):
    plain = parse_records(*write_records(tmp_path, [40]))
    keys = tf.range(40, dtype=tf.int64)
    masked = masking()(plain, keys)
    assert (masked["input_ids"] != plain["input_ids"]).numpy().any()
    expected = add_next_token_targets(plain, keys)
    for name, value in add_next_token_targets(masked, keys).items():
        np.testing.assert_array_equal(value, expected[name])
