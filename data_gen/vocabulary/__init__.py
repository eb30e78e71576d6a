"""Learns a WordPiece vocabulary: counts words, learns pieces, and measures the result on held-out text.

Imports `text`. Only the commands import it.
"""
