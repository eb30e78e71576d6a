"""Continues the pre-training of a model on the user's own text: the command adapt and `official_bert.adapt`.

The stages are words and weights (words.py), records (records.py) and training (training.py). adapting.py runs them.

This is the only package of official_bert that imports data_gen.
"""
