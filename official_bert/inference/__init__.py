"""Answers from trained models in Python: masks filled in, vectors of texts, files of texts answered by an export.

Imports checkpoints, modeling, tokenization and utils. The scripts of the same names import it.
"""
