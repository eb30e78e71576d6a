"""Records for pre-training: schema, codec, reader, manifest, input pipeline, and masking while reading.

Imported by data_gen, keras_models, pretraining and tpu_check.
"""
