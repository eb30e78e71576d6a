"""The records for pre-training: their schema, encoding, reading, manifests, batches, and masking during reading."""
