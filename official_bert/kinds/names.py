"""Names of the kinds of task and of their options.

This module imports no third-party library, so that option classes can import it quickly.
"""

import contextlib

from official_bert.errors import UserError

# Kinds, as task.json names them.
CLASSIFICATION, MULTI_LABEL, REGRESSION = "classification", "multi_label", "regression"
TAGGING, QUESTION_ANSWERING, MULTIPLE_CHOICE = "tagging", "question_answering", "multiple_choice"
VECTORS = "vectors"  # an encoder with pooling, which has no weights of its own
KINDS = (CLASSIFICATION, MULTI_LABEL, REGRESSION, TAGGING, QUESTION_ANSWERING, MULTIPLE_CHOICE)  # with weights
FILL_MASK, ENCODER = "fill_mask", "encoder"  # exports of models that were not fine-tuned

# The signatures of exports: from texts to answers, from token ids to answers, and from texts to token ids.
DEFAULT_SIGNATURE, IDS_SIGNATURE, TOKENIZE_SIGNATURE = "serving_default", "serving_ids", "tokenize"
IS_TRUNCATED = "is_truncated"  # the output that every kind has: whether the end of a text was left out

# How vectors are learned: by a softmax over the other texts of a batch, the cosines of graded pairs, or the distances
# of triplets.
OBJECTIVES = RANKING, COSINE, TRIPLET = "ranking", "cosine", "triplet"

# Scores that are better if they are lower. Only `fit` has "loss".
LOWER_IS_BETTER = frozenset({"loss", "mean_absolute_error"})

# The measures that choose the threshold of a label: F-scores by their beta (above 1 recall counts more), or accuracies.
BETAS = {"f1": 1.0, "f0.5": 0.5, "f2": 2.0}
ACCURACY, BALANCED_ACCURACY = "accuracy", "balanced_accuracy"
MEASURES = (*BETAS, ACCURACY, BALANCED_ACCURACY)
# Or the best recall with at least a given precision, as in precision=0.9, or the best precision with a given recall.
PRECISION, RECALL = "precision", "recall"


def parse_measure(measure: str, argument: str = "measure") -> tuple[str, float]:
    """Parses the measure for choosing thresholds, such as "f1" or "precision=0.9".

    Args:
        measure: One of MEASURES, or "precision=P" or "recall=R" with a minimum above 0, at most 1.
        argument: Name of the user's argument, for the error message.

    Returns:
        The name of the measure, and the minimum precision or recall (0.0 for other measures).

    Raises:
        UserError: If the measure is unknown, or the minimum is out of range.
    """
    if measure in MEASURES:
        return measure, 0.0
    name, _, number = measure.partition("=")
    if name in (PRECISION, RECALL):
        with contextlib.suppress(ValueError):
            if 0 < float(number) <= 1:
                return name, float(number)
    raise UserError(
        f"{argument} is {measure!r}; expected one of {', '.join(MEASURES)}, or {PRECISION}=P or {RECALL}=R with a "
        "number above 0, at most 1"
    )
