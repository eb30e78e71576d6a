"""Trained models for elsewhere: SavedModels that take text, TensorFlow Hub, LiteRT and ONNX.

Imported by keras_models and serving.
"""
