"""Pre-training: options, set-up, the training step, the loop around it, evaluation, and a report at the end.

Needs no packages but TensorFlow, Keras and absl.
"""
