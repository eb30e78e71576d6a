"""Keras models that take text: strings in, answers out, with Keras' fit, evaluate, predict, save and export.

A class for each kind of task. No package imports it: it is for users, who find its classes in official_bert.
"""
