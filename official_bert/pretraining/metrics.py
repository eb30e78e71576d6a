"""From sums over many batches to losses and accuracies by name."""

from collections.abc import Mapping


def pretraining_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Returns the means of what losses.pretraining_sums adds up, by the names of the original's eval_results.txt.

    Args:
        sums: totals over any number of batches.

    Returns:
        loss (the sum of both losses), masked_lm_loss, masked_lm_accuracy, next_sentence_loss, next_sentence_accuracy;
        losses in nats, accuracies from 0 to 1. A mean of nothing is 0; without any sentence label there are no metrics
        of next sentences.
    """
    predictions = max(sums["masked_lm_count"], 1.0)
    records = max(sums["next_sentence_count"], 1.0)
    masked_lm_loss = sums["masked_lm_loss"] / predictions
    next_sentence_loss = sums["next_sentence_loss"] / records
    masked_lm = {
        "loss": masked_lm_loss + next_sentence_loss,
        "masked_lm_loss": masked_lm_loss,
        "masked_lm_accuracy": sums["masked_lm_correct"] / predictions,
    }
    if not sums["next_sentence_count"]:
        return masked_lm
    return {
        **masked_lm,
        "next_sentence_loss": next_sentence_loss,
        "next_sentence_accuracy": sums["next_sentence_correct"] / records,
    }
