"""Continues the pre-training of a model on the user's own text: the command adapt and `official_bert.adapt`.

adapting.py runs the stages: words.py adds new words of the text to the vocabulary and makes the initial weights,
records.py makes pre-training records, and training.py trains.

This is the only package of official_bert that imports data_gen.
"""
