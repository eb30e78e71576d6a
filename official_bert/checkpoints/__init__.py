"""Weights in and out: the checkpoints of a run, fine-tuned folders, and the formats of others.

A format is a module of official_bert.checkpoints.formats. Imported by export, finetuning, inference, keras_models,
pretraining and serving.
"""

from official_bert.utils.deprecation import moved

__getattr__ = moved(__name__, {"load_pretraining_model": "official_bert.checkpoints.loading"})
