"""Finds out whether a run fits into a TPU's memory, by compiling its training step ahead of time without a TPU."""
