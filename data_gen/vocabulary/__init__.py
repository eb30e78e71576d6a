"""Learns a WordPiece vocabulary: counts words, learns pieces (tokens), and measures the result on held-out text.

This package imports `text`. Only `commands` imports this package.
"""
