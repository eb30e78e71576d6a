"""BERT (Devlin et al., arXiv:1810.04805) on TensorFlow 2 and Keras 3. Importing the package does nothing."""

import typing

if typing.TYPE_CHECKING:
    from official_bert.loading import Loaded

__version__ = "0.1.0"


def load(
    path: str, vocab_file: str | None = None, do_lower_case: bool | None = None, dtype: typing.Any = "float32"
) -> "Loaded":
    """Returns a trained encoder, its configuration and its tokenizer.

    Within a distribution strategy's scope the encoder is made for that strategy.

    Args:
        path: a folder or a file of a checkpoint: ours, Google's TF1, Hugging Face's, keras-hub's or model garden's.
        vocab_file: a vocab.txt, where the folder has none or to take in its place.
        do_lower_case: whether the vocabulary is uncased, where the folder does not say it.
        dtype: a Keras dtype policy for the encoder's layers.

    Returns:
        A tuple with the names encoder (as of official_bert.encoder.build_encoder; without pooled_output where the
        checkpoint has no pooler), config and tokenizer.

    Raises:
        official_bert.errors.UserError: something is missing, left over, damaged, or does not fit together.
    """
    from official_bert import loading

    return loading.load(path, vocab_file, do_lower_case, dtype)
