"""The flags of convert."""

import dataclasses

from official_bert.errors import UserError
from official_bert.modeling.config import ACTIVATIONS
from official_bert.tokenization.casing import STRIP_ACCENTS
from official_bert.utils.flags import ValidatedOptions, option

# Headings of --help.
FILES, CHANGES = ("checkpoints", "changes to the model")

# The names of the formats that can be written. They are listed here so that --help needs no TensorFlow.
WRITABLE = ("official_bert", "tf1", "hugging_face", "keras_hub")
ROWS = ("append", "unused", "unused_first")
POSITION_INITS = ("tiled", "interpolated")


@dataclasses.dataclass(frozen=True)
class ConversionOptions(ValidatedOptions):
    """The flags of convert."""

    from_: str = option(
        dataclasses.MISSING,
        "The checkpoint: its folder, one of its files, or hf://owner/name or google://name.",
        group=FILES,
    )
    to: str = option(dataclasses.MISSING, "The folder to write; it must be new or empty.", group=FILES)
    to_format: str = option("official_bert", "The format to write.", WRITABLE, group=FILES)
    optimizer: bool = option(
        False, "Whether to convert Adam's moments and the step too, to resume pre-training.", group=FILES
    )
    bert_config_file: str | None = option(None, "The configuration, if the checkpoint's folder lacks it.", group=FILES)
    vocab_file: str | None = option(
        None,
        "The vocabulary, if the checkpoint's folder lacks it. Otherwise replaces the one in the folder.",
        group=FILES,
    )
    do_lower_case: bool | None = option(
        None, "Whether the vocabulary is uncased, if the folder does not state it.", group=FILES
    )
    strip_accents: bool | None = option(None, STRIP_ACCENTS, group=FILES)
    hidden_act: str | None = option(
        None,
        "The activation to use instead of the configuration's. gelu is the tanh approximation.",
        ACTIVATIONS,
        group=CHANGES,
    )
    new_tokens_file: str | None = option(
        None, "A file of tokens to add to the vocabulary, one per line.", group=CHANGES
    )
    new_token_rows: str = option(
        "append",
        "Where new tokens go: new rows, rows of [unused...] tokens, or these first and then new rows.",
        ROWS,
        group=CHANGES,
    )
    max_position_embeddings: int | None = option(
        None, "The new maximum number of positions, greater than the model's.", group=CHANGES
    )
    position_init: str = option(
        "tiled",
        "How to initialize the embeddings of positions beyond the model's: tiled repeats the table, interpolated "
        "stretches it.",
        POSITION_INITS,
        group=CHANGES,
    )
    list_tensors: bool = option(False, "Whether to list every tensor that was loaded or not used.", group=FILES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.new_token_rows != "append" and self.new_tokens_file is None:
            raise UserError(f"--new_token_rows={self.new_token_rows} needs --new_tokens_file, the tokens to add")
        if self.position_init != "tiled" and self.max_position_embeddings is None:
            raise UserError(f"--position_init={self.position_init} needs --max_position_embeddings")
