"""The names of choices about models, for options: importing this imports nothing."""

# What a model with a head answers.
CLASSIFICATION, MULTI_LABEL, REGRESSION = "classification", "multi_label", "regression"
TAGGING, QUESTION_ANSWERING, MULTIPLE_CHOICE = "tagging", "question_answering", "multiple_choice"
VECTORS = "vectors"  # of an encoder, without a layer of a task's own
KINDS = (CLASSIFICATION, MULTI_LABEL, REGRESSION, TAGGING, QUESTION_ANSWERING, MULTIPLE_CHOICE)

# A text's vector: that of [CLS], the mean or maximum of its tokens' vectors, or that behind the pooler.
CLS_POOLING, MEAN, MAX, POOLED = VECTOR_POOLINGS = "cls", "mean", "max", "pooled"

# By what vectors are learned: a softmax over the other texts of a batch, the cosines of graded pairs, or distances of
# triplets.
OBJECTIVES = RANKING, COSINE, TRIPLET = "ranking", "cosine", "triplet"

# By what a label's threshold is chosen: F-scores by their beta (above 1 recall counts more), or accuracy.
BETAS = {"f1": 1.0, "f0.5": 0.5, "f2": 2.0}
ACCURACY = "accuracy"
MEASURES = (*BETAS, ACCURACY)
