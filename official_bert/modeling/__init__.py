"""The network: configuration, embeddings, encoder block, encoder, heads, and the models made of them.

This package reads no files or data, and does not train.
"""
