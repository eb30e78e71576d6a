"""The names of kinds and of their options. Importing this imports nothing, so that options can use it."""

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

# How the threshold of a label is chosen: F-scores by their beta (above 1 recall counts more), or accuracy.
BETAS = {"f1": 1.0, "f0.5": 0.5, "f2": 2.0}
ACCURACY = "accuracy"
MEASURES = (*BETAS, ACCURACY)
