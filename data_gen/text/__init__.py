"""Reads text: lines of files, documents in several formats, sentences. Also stores the tokenized corpus on disk.

From data_gen, this package imports only `options`. All other packages except `inspection` import it.
"""
