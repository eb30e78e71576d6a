"""Pre-training: options, set-up, the training step, the loop around it, evaluation, and a report at the end.

Imports data, checkpoints, modeling, optimization, tokenization and utils; needs no packages but TensorFlow, Keras and
absl. run_pretraining and tpu_check import it.
"""
