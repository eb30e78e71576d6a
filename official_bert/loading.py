"""A trained encoder from any checkpoint format, for use in Python: what `official_bert.load` calls."""

import os
import tempfile
from typing import Any, NamedTuple

import keras

from official_bert import conversion, files
from official_bert.checkpoint_formats.checkpoint import POOLER, VOCAB_FILE, Checkpoint, Given
from official_bert.config import BertConfig
from official_bert.encoder import build_encoder
from official_bert.errors import UserError
from official_bert.tokenization import FullTokenizer


class Loaded(NamedTuple):
    """An encoder with what belongs to it."""

    encoder: keras.Model
    config: BertConfig
    tokenizer: FullTokenizer


def load(path: str, vocab_file: str | None = None, do_lower_case: bool | None = None, dtype: Any = "float32") -> Loaded:
    """Returns the encoder, the configuration and the tokenizer of a checkpoint, as `official_bert.load` says."""
    _, checkpoint = conversion.read(path, Given(vocab_file=vocab_file, do_lower_case=do_lower_case))
    if checkpoint.vocab is None:
        raise UserError(f"{path} has no vocabulary for a tokenizer; give one as vocab_file")
    encoder = build_encoder(checkpoint.config, dtype=dtype)
    if POOLER not in checkpoint.parts:  # rather without pooled_output than with a random one
        encoder = keras.Model(encoder.input, {"sequence_output": encoder.output["sequence_output"]}, name="encoder")
    for variable in encoder.variables:
        variable.assign(checkpoint.weights[variable.path])
    return Loaded(encoder, checkpoint.config, _tokenizer(checkpoint))


def _tokenizer(checkpoint: Checkpoint) -> FullTokenizer:
    # The tokenizer reads its vocabulary from a file, and some formats have none.
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, VOCAB_FILE)
        files.write_text(path, checkpoint.vocab or "")
        return FullTokenizer(path, checkpoint.do_lower_case)
