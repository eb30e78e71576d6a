"""Trained models for elsewhere: SavedModels that take text, TensorFlow Hub, LiteRT and ONNX."""
