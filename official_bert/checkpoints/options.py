"""The flags of convert."""

import dataclasses
import functools

from official_bert.errors import UserError
from official_bert.modeling.config import ACTIVATIONS
from official_bert.tokenization.casing import STRIP_ACCENTS
from official_bert.utils.flags import ValidatedOptions, option

_file = functools.partial(option, group="checkpoints")
_change = functools.partial(option, group="changes to the model")

# The names of the formats that can be written. They are listed here so that --help needs no TensorFlow.
WRITABLE = ("official_bert", "tf1", "hugging_face", "keras_hub")
ROWS = ("append", "unused", "unused_first")
POSITION_INITS = ("tiled", "interpolated")


@dataclasses.dataclass(frozen=True)
class ConversionOptions(ValidatedOptions):
    """The flags of convert."""

    from_: str = _file(
        dataclasses.MISSING, "The checkpoint: its folder, one of its files, or hf://owner/name or google://name."
    )
    to: str = _file(dataclasses.MISSING, "The folder to write; it must be new or empty.")
    to_format: str = _file("official_bert", "The format to write.", WRITABLE)
    optimizer: bool = _file(False, "Whether to convert Adam's moments and the step too, to resume pre-training.")
    bert_config_file: str | None = _file(None, "The configuration, if the checkpoint's folder lacks it.")
    vocab_file: str | None = _file(
        None, "The vocabulary, if the checkpoint's folder lacks it. Otherwise replaces the one in the folder."
    )
    do_lower_case: bool | None = _file(None, "Whether the vocabulary is uncased, if the folder does not state it.")
    strip_accents: bool | None = _file(None, STRIP_ACCENTS)
    hidden_act: str | None = _change(
        None, "The activation to use instead of the configuration's. gelu is the tanh approximation.", ACTIVATIONS
    )
    new_tokens_file: str | None = _change(None, "A file of tokens to add to the vocabulary, one per line.")
    new_token_rows: str = _change(
        "append", "Where new tokens go: new rows, rows of [unused...] tokens, or these first and then new rows.", ROWS
    )
    max_position_embeddings: int | None = _change(
        None, "The new maximum number of positions, greater than the model's."
    )
    position_init: str = _change(
        "tiled",
        "How to initialize the embeddings of positions beyond the model's: tiled repeats the table, interpolated "
        "stretches it.",
        POSITION_INITS,
    )
    list_tensors: bool = _file(False, "Whether to list every tensor that was loaded or not used.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.new_token_rows != "append" and self.new_tokens_file is None:
            raise UserError(f"--new_token_rows={self.new_token_rows} needs --new_tokens_file, the tokens to add")
        if self.position_init != "tiled" and self.max_position_embeddings is None:
            raise UserError(f"--position_init={self.position_init} needs --max_position_embeddings")
