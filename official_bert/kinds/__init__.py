"""What a model with a head predicts: a folder per kind, and the modules that several kinds share.

The name of a folder is the name of the kind in task.json. Its spec.py has the examples, features, predictions and
scores of the kind.
"""
