"""From text to the TFRecord files that BERT is pre-trained on.

It stands beside the library: its modules import data, errors, main, modeling, tokenization and utils of official_bert,
and nothing of official_bert imports it.
"""
