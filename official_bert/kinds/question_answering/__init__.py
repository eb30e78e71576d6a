"""The question_answering kind: predicts the span of a context that answers a question."""
