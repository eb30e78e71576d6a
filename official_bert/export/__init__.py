"""Trained models for elsewhere: SavedModels that take text, TensorFlow Hub, LiteRT and ONNX.

Imports finetuning, tasks, checkpoints, modeling, tokenization and utils. serving imports it.
"""
