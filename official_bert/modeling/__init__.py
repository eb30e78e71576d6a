"""The network and nothing else: configuration, embeddings, encoder block, encoder, heads, and the models made of them.

Imports utils alone. No file, no data and no training is known here. Every package above may import it.
"""
