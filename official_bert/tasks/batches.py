"""Moved to official_bert.finetuning.batches; this path goes with the next release."""

from official_bert.utils.deprecation import moved

__getattr__ = moved(__name__, "official_bert.finetuning.batches")
