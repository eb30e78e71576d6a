"""Text to word pieces: the exact tokenizer, a fast one that is equal to it, and pairs of texts.

Imported by checkpoints, data, data_gen, export, finetuning, inference, keras_models, pretraining and tasks.
"""
