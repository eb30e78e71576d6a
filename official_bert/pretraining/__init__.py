"""Pre-training: options, set-up, the training step, the loop around it, evaluation, and a model card at the end.

The only packages that it needs are TensorFlow, Keras and absl.
"""
