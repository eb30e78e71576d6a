"""Reads and writes checkpoints of runs, folders of fine-tuned models, and the formats of other libraries.

Each format is a module of official_bert.checkpoints.formats.
"""
