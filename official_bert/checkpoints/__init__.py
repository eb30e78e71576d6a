"""Weights in and out: the checkpoints of a run, fine-tuned folders, and the formats of others.

A format is a module of official_bert.checkpoints.formats.
"""
