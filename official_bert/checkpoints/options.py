"""The flags of convert."""

import dataclasses

from official_bert.modeling.config import ACTIVATIONS
from official_bert.tokenization.casing import STRIP_ACCENTS
from official_bert.utils.flags import ValidatedOptions, option

# Headings of --help.
FILES, CHANGES = ("checkpoints", "changes to the model")

# The names of the formats that can be written, which stand here so that --help needs no TensorFlow.
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
        False, "Whether Adam's moments and the step come along, to go on with pre-training.", group=FILES
    )
    bert_config_file: str | None = option(
        None, "The configuration, where the checkpoint's folder has none.", group=FILES
    )
    vocab_file: str | None = option(
        None, "The vocabulary, where the folder has none, or to take in its place.", group=FILES
    )
    do_lower_case: bool | None = option(
        None, "Whether the vocabulary is uncased, where the folder does not say it.", group=FILES
    )
    strip_accents: bool | None = option(None, STRIP_ACCENTS, group=FILES)
    hidden_act: str | None = option(
        None,
        "The activation to take in place of the configuration's; gelu is the tanh approximation.",
        ACTIVATIONS,
        group=CHANGES,
    )
    new_tokens_file: str | None = option(None, "Tokens to add to the vocabulary, one a line.", group=CHANGES)
    new_token_rows: str = option(
        "append", "New rows for them, those of [unused...] tokens, or these and then new ones.", ROWS, group=CHANGES
    )
    max_position_embeddings: int | None = option(None, "A longest sequence beyond the model's.", group=CHANGES)
    position_init: str = option("tiled", "How the further positions start.", POSITION_INITS, group=CHANGES)
    list_tensors: bool = option(False, "Whether to list every tensor that was loaded or left behind.", group=FILES)
