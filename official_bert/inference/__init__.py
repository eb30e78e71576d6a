"""Inference: answers of exports and Keras models to texts, vectors of texts, and predictions of masked words."""
