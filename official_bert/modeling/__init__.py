"""The network and nothing else: configuration, embeddings, encoder block, encoder, heads, and the models made of them.

No file, no data and no training is known here.
"""
