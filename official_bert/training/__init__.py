"""The parts of a training step that pre-training and fine-tuning share: micro-batches, replicas and the update."""
