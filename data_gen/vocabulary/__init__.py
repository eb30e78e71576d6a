"""A WordPiece vocabulary from text: words are counted, pieces learned, and the result measured on other text.

It imports `text`; the commands alone import it.
"""
