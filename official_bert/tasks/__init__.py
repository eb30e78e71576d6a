"""The tasks that a model is fine-tuned on: a file each to read it, put it in the model's form, and score it."""
