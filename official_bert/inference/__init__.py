"""Answers from trained models in Python: masks filled in, vectors of texts, files of texts answered by an export."""
