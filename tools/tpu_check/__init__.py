"""Finds out whether a run fits a TPU by compiling its training step ahead of time, without a TPU."""
