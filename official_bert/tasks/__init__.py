"""What BERT is fine-tuned for: each task is a record of how to read, featurize, score and write."""
