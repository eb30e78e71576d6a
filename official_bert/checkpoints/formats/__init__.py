"""One module for each checkpoint format, with its own literal table of names.

Imported by official_bert.checkpoints alone.
"""
