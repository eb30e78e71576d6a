"""Makes targets for left-to-right models: each token is predicted from the tokens before it (appendix C.1, LTR).

B batch, S sequence, P predictions of a masked record
"""

import tensorflow as tf


def add_next_token_targets(features: dict[str, tf.Tensor], keys: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the features of a batch with unmasked text and next-token targets, as S - 1 predictions per record.

    The features have the same names as in masked records. Each position predicts the next token. The [SEP] at the end
    of a segment is not predicted, as in masked models. Left-to-right models use it in place of DynamicMasking.mask.

    Args:
        features: Features of records (see record_schema), masked or not. Masks are removed.
        keys: Not used, because nothing is random.
    """
    ids = _remove_masks(features)  # [B, S]
    mask, segments = features["input_mask"], features["segment_ids"]
    following = tf.pad(mask[:, 1:], [[0, 0], [0, 1]])
    next_segment = tf.pad(segments[:, 1:], [[0, 0], [0, 1]])
    ends_segment = (following == 0) | (next_segment != segments)  # [B, S]; true for [SEP] and padding.
    positions = tf.tile(tf.range(ids.shape[1] - 1)[None, :], [tf.shape(ids)[0], 1])
    predicted = (mask[:, 1:] > 0) & ~ends_segment[:, 1:]  # [B, S - 1]
    return {
        **features,
        "input_ids": ids,
        "masked_lm_positions": positions,
        "masked_lm_ids": tf.where(predicted, ids[:, 1:], 0),
        "masked_lm_weights": tf.cast(predicted, tf.float32),
    }


def _remove_masks(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the token ids before masking, [B, S]."""
    ids = features["input_ids"]
    if "masked_lm_ids" not in features:
        return ids
    # Unused prediction slots are written into an additional column, which is then removed.
    used = features["masked_lm_weights"] > 0  # [B, P]
    columns = tf.where(used, features["masked_lm_positions"], ids.shape[1])
    rows = tf.broadcast_to(tf.range(tf.shape(ids)[0])[:, None], tf.shape(columns))
    wider = tf.pad(ids, [[0, 0], [0, 1]])
    restored = tf.tensor_scatter_nd_update(wider, tf.stack([rows, columns], axis=-1), features["masked_lm_ids"])
    return restored[:, :-1]
