"""From text and minutes to a plan of pre-training: what to train, by which commands, and what loss to expect.

It stands above official_bert, data_gen and adaptation, and composes them. Only the command line imports it.
"""
