"""Targets of language modelling: each token is predicted from those before it (paper, appendix C.1, LTR).

B batch, S sequence, P predictions of a masked record
"""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class NextTokenTargets:
    """Adds targets for all tokens to batches, instead of DynamicMasking, for models that predict next tokens.

    At each position the next token is to be predicted, unless that is the [SEP] at the end of a segment: what is never
    masked is not predicted here either. Records may have masks, which are taken away, or none.
    """

    def mask(self, features: dict[str, tf.Tensor], keys: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the features of masked records, with S - 1 predictions and the text as it was before masking.

        Args:
            features: of records with or without masks (see record_schema).
            keys: not used, since nothing is drawn.
        """
        ids = _unmasked(features)  # [B, S]
        mask, segments = features["input_mask"], features["segment_ids"]
        following = tf.pad(mask[:, 1:], [[0, 0], [0, 1]])
        next_segment = tf.pad(segments[:, 1:], [[0, 0], [0, 1]])
        ends_segment = (following == 0) | (next_segment != segments)  # [B, S]: [SEP], or padding
        positions = tf.tile(tf.range(ids.shape[1] - 1)[None, :], [tf.shape(ids)[0], 1])
        predicted = (mask[:, 1:] > 0) & ~ends_segment[:, 1:]  # [B, S - 1]
        return {
            **features,
            "input_ids": ids,
            "masked_lm_positions": positions,
            "masked_lm_ids": tf.where(predicted, ids[:, 1:], 0),
            "masked_lm_weights": tf.cast(predicted, tf.float32),
        }


def _unmasked(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """The ids before masking, [B, S]."""
    ids = features["input_ids"]
    if "masked_lm_ids" not in features:
        return ids
    # Slots without a prediction are written into a column of their own, which is cut off again.
    used = features["masked_lm_weights"] > 0  # [B, P]
    columns = tf.where(used, features["masked_lm_positions"], ids.shape[1])
    rows = tf.broadcast_to(tf.range(tf.shape(ids)[0])[:, None], tf.shape(columns))
    wider = tf.pad(ids, [[0, 0], [0, 1]])
    restored = tf.tensor_scatter_nd_update(wider, tf.stack([rows, columns], axis=-1), features["masked_lm_ids"])
    return restored[:, :-1]
