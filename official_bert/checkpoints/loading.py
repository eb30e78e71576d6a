"""A trained encoder from any checkpoint format, for use in Python."""

from typing import Any, NamedTuple

import keras

from official_bert.checkpoints import reading
from official_bert.checkpoints.checkpoint import POOLER, PRETRAINING, TOKENIZER_FILE, VOCAB_FILE, LoadOverrides
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.tokenization.exact import FullTokenizer


class Loaded(NamedTuple):
    """An encoder with what belongs to it."""

    encoder: keras.Model
    config: BertConfig
    tokenizer: FullTokenizer


def load(
    path: str,
    vocab_file: str | None = None,
    do_lower_case: bool | None = None,
    dtype: Any = "float32",
    strip_accents: bool | None = None,
) -> Loaded:
    """Returns a trained encoder, its configuration and its tokenizer.

    Within a distribution strategy's scope the encoder is built for that strategy.

    Args:
        path: a folder or a file of a checkpoint: ours, Google's TF1, Hugging Face's, keras-hub's, model garden's or
            TensorFlow Hub's; or its name: hf://owner/name (with @revision), google://uncased_L-12_H-768_A-12.
        vocab_file: a vocab.txt, where the folder has none.
        do_lower_case: whether the vocabulary is uncased, where the folder does not say it.
        dtype: a Keras dtype policy for the encoder's layers.
        strip_accents: whether lower-cased texts lose their accents, where the folder does not say it; by default they
            do.

    Returns:
        A tuple with the names encoder (as build_encoder returns it; without pooled_output where the checkpoint has no
        pooler), config and tokenizer.

    Raises:
        UserError: something is missing, left over, damaged, or does not fit together.
    """
    overrides = LoadOverrides(vocab_file=vocab_file, do_lower_case=do_lower_case, strip_accents=strip_accents)
    _, checkpoint = reading.read(path, overrides)
    if checkpoint.vocab is None:
        raise UserError(f"{path} has no vocabulary for a tokenizer; give one as vocab_file")
    for note in checkpoint.notes:
        print(f"note: {note}", flush=True)
    encoder = build_encoder(checkpoint.config, dtype=dtype)
    if POOLER not in checkpoint.parts:  # rather without pooled_output than with a random one
        encoder = keras.Model(encoder.input, {"sequence_output": encoder.output["sequence_output"]}, name="encoder")
    for variable in encoder.variables:
        variable.assign(checkpoint.weights[variable.path])
    return Loaded(encoder, checkpoint.config, checkpoint.tokenizer(f"the vocabulary of {path}"))


def load_pretraining_model(folder: str) -> tuple[keras.Model, BertConfig, FullTokenizer]:
    """Returns a model with both pre-training heads, its configuration and its tokenizer.

    Args:
        folder: of a run, whose newest whole checkpoint is taken, or a checkpoint of any format with both heads.

    Raises:
        UserError: the folder lacks one of them, or they do not fit together.
    """
    checkpoint_format, checkpoint = reading.read(folder)
    if checkpoint.vocab is None:
        raise UserError(
            f"{folder} has no vocabulary; pass --vocab_file to official-bert pretrain, or copy the {VOCAB_FILE} there "
            f'and beside it a {TOKENIZER_FILE} that says {{"do_lower_case": true}} or false'
        )
    missing = sorted(PRETRAINING - set(checkpoint.parts))
    if missing:
        raise UserError(
            f"{folder} is a {checkpoint_format.title} checkpoint without {', '.join(missing)}; expected a model as "
            "pre-training leaves it"
        )
    model = build_pretraining_model(checkpoint.config)
    for variable in model.variables:
        variable.assign(checkpoint.weights[variable.path])
    return model, checkpoint.config, checkpoint.tokenizer(f"the vocabulary of {folder}")
