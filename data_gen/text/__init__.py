"""Reads text: lines of compressed files, documents of all formats, sentences, and the tokenized corpus on disk.

Imports only `options` of data_gen. All packages except `inspection` import it.
"""
