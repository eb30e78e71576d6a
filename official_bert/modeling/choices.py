"""The names of choices about models, for options. Importing this imports nothing."""

# The vector of a text: that of [CLS], the mean or maximum of the vectors of its tokens, or the pooler's output.
CLS_POOLING, MEAN, MAX, POOLED = VECTOR_POOLINGS = "cls", "mean", "max", "pooled"
