"""Text to word pieces: the exact tokenizer, a fast one that is equal to it, and pairs of texts."""
