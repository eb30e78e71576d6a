"""Records for pre-training: schema, codec, reader, manifest, input pipeline, and masking while reading.

Imports tokenization and utils. pretraining and data_gen import it.
"""
