"""The pre-training losses as sums and counts, so that their mean is over the whole batch on however many devices.

B batch, P predictions, V vocabulary
"""

from typing import Any

from keras import ops

# Added to the number of predictions, as in the original, against a batch without any.
MASKED_LM_EPSILON = 1e-5


def pretraining_sums(outputs: dict[str, Any], features: dict[str, Any]) -> dict[str, Any]:
    """Returns what losses and accuracies are made of, as float32 scalars.

    A record whose input_mask is all zero is padding of the batch and counts for nothing.

    Args:
        outputs: of the pre-training model.
        features: a batch of records.

    Returns:
        masked_lm_loss, masked_lm_correct and masked_lm_count: cross-entropy (natural logarithm), hits and number of the
        predictions; next_sentence_loss, next_sentence_correct, next_sentence_count: likewise of the records; tokens:
        positions that are not padding.
    """
    logits = outputs["masked_lm_logits"]  # [B, P, V]
    labels, weights = features["masked_lm_ids"], features["masked_lm_weights"]  # [B, P]
    masked_lm_loss = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    masked_lm_hits = ops.cast(ops.equal(ops.argmax(logits, axis=-1), labels), "float32")

    scores = outputs["next_sentence_logits"]  # [B, 2]
    targets = features["next_sentence_labels"][:, 0]  # [B]
    real = ops.cast(features["input_mask"][:, 0], "float32")  # [B]: [CLS] is never padding
    next_sentence_loss = ops.sparse_categorical_crossentropy(targets, scores, from_logits=True)
    next_sentence_hits = ops.cast(ops.equal(ops.argmax(scores, axis=-1), targets), "float32")
    return {
        "masked_lm_loss": ops.sum(weights * masked_lm_loss),
        "masked_lm_correct": ops.sum(weights * masked_lm_hits),
        "masked_lm_count": ops.sum(weights),
        "next_sentence_loss": ops.sum(real * next_sentence_loss),
        "next_sentence_correct": ops.sum(real * next_sentence_hits),
        "next_sentence_count": ops.sum(real),
        "tokens": ops.sum(ops.cast(features["input_mask"], "float32")),
    }


def mean_losses(sums: dict[str, Any], masked_lm_count: Any, next_sentence_count: Any) -> tuple[Any, Any]:
    """Returns the masked-LM loss, sum / (count + 1e-5), and the next-sentence loss, sum / count.

    Args:
        sums: of one device, from `pretraining_sums`.
        masked_lm_count: the number of predictions in the whole batch, on all devices.
        next_sentence_count: the number of records in the whole batch.
    """
    masked_lm = sums["masked_lm_loss"] / (masked_lm_count + MASKED_LM_EPSILON)
    return masked_lm, sums["next_sentence_loss"] / ops.maximum(next_sentence_count, 1.0)
