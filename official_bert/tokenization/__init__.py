"""Text to word pieces: an exact tokenizer, and a fast one and one in TensorFlow graphs with the same results."""
