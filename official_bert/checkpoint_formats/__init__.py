"""Checkpoints of BERT in the formats of others and our own: a file per format, each with one table of names."""
