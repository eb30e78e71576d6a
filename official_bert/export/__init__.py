"""Trained models for elsewhere: SavedModels that take text, LiteRT and ONNX."""
