<<<<<<< HEAD
"""The tasks that a model is fine-tuned on: a file each to read it, put it in the model's form, and score it."""
=======
"""What BERT is fine-tuned for: each task is a record of how to read, featurize, score and write."""
>>>>>>> tasks
