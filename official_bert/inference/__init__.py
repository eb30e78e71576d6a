"""Inference: predictions with exports and Keras models, text vectors, and masked words."""
