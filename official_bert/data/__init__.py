"""Records for pre-training: schema, codec, reader, manifest, input pipeline, and masking while reading."""
