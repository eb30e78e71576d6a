"""Utilities that do not depend on BERT: files, tables, flags, commands, progress, signals and Dask.

Every other package may import them. Importing these modules does not import TensorFlow.
"""
