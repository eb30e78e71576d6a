"""Exports trained models as SavedModels that take text, and to LiteRT and ONNX."""
