"""Pre-training: options, set-up, the training step, the loop around it, evaluation, and a model card at the end.

Needs no packages but TensorFlow, Keras and absl.
"""
