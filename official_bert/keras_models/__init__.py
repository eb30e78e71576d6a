"""Keras models that take text: strings in, answers out, with Keras' fit, evaluate, predict, save and export.

A class for each kind of task. Imports export, finetuning, inference and what these may import; nothing imports it but
official_bert itself.
"""
