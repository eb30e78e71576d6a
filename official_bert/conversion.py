"""From one checkpoint format to another: find out what there is, read it, change sizes, write it, prove it."""

import dataclasses
import os
from collections.abc import Callable

from official_bert import files
from official_bert.checkpoint_formats import bundle, hugging_face, keras_hub, model_garden, own, parity, sizes, tf1
from official_bert.checkpoint_formats.checkpoint import Checkpoint, Given
from official_bert.command_line import option
from official_bert.config import ACTIVATIONS
from official_bert.errors import UserError

OFFICIAL_BERT, TF1, HUGGING_FACE, KERAS_HUB, MODEL_GARDEN = (
    "official_bert",
    "tf1",
    "hugging_face",
    "keras_hub",
    "model_garden",
)
READERS: dict[str, Callable[[str, Given], Checkpoint]] = {
    OFFICIAL_BERT: own.read,
    TF1: tf1.read,
    HUGGING_FACE: hugging_face.read,
    KERAS_HUB: keras_hub.read,
    MODEL_GARDEN: model_garden.read,
}
# Each returns what it wrote, which is less than it was given where the format has no place for a head.
WRITERS: dict[str, Callable[[Checkpoint, str], Checkpoint]] = {
    OFFICIAL_BERT: own.write,
    TF1: tf1.write,
    HUGGING_FACE: hugging_face.write,
    KERAS_HUB: keras_hub.write,
}
TITLES = {
    OFFICIAL_BERT: own.NAME,
    TF1: tf1.NAME,
    HUGGING_FACE: hugging_face.NAME,
    KERAS_HUB: keras_hub.NAME,
    MODEL_GARDEN: model_garden.NAME,
}

# A forward pass in another framework may differ by the order of its sums; more than this is another model.
_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Options:
    """What convert_checkpoint is told."""

    from_: str = option(dataclasses.MISSING, "The checkpoint: its folder, or one of its files.")
    to: str = option(dataclasses.MISSING, "The folder to write; it must be new or empty.")
    to_format: str = option(OFFICIAL_BERT, "The format to write.", tuple(WRITERS))
    optimizer: bool = option(False, "Whether Adam's averages and the step come along, to go on with pre-training.")
    bert_config_file: str | None = option(None, "The configuration, where the checkpoint's folder has none.")
    vocab_file: str | None = option(None, "The vocabulary, where the folder has none, or to take in its place.")
    do_lower_case: bool | None = option(None, "Whether the vocabulary is uncased, where the folder does not say it.")
    hidden_act: str | None = option(
        None, "The activation to take in place of the configuration's; gelu is the tanh approximation.", ACTIVATIONS
    )
    new_tokens_file: str | None = option(None, "Tokens to add to the vocabulary, one a line.")
    new_token_rows: str = option("append", "New rows for them, or those of [unused...] tokens.", sizes.ROWS)
    max_position_embeddings: int | None = option(None, "A longest sequence beyond the model's.")
    position_init: str = option("tiled", "How the further positions start.", sizes.POSITION_INITS)
    list_tensors: bool = option(False, "Whether to list every tensor that was loaded or left behind.")


def find_format(path: str) -> str:
    """Returns the name of a checkpoint's format, one of `READERS`.

    Args:
        path: a folder, or one of the checkpoint's files; a TensorFlow checkpoint also without .index.

    Raises:
        UserError: there is none that is known.
    """
    base = os.path.basename(path)
    if base == hugging_face.WEIGHTS_FILE or files.exists(os.path.join(path, hugging_face.WEIGHTS_FILE)):
        return HUGGING_FACE
    if base == keras_hub.MODEL_WEIGHTS_FILE or keras_hub.is_format(path):
        return KERAS_HUB
    try:
        source = bundle.open_bundle(bundle.prefix_of(path))
    except UserError as error:
        if hugging_face.is_format(path):  # pickled weights; its reader says what to do
            return HUGGING_FACE
        if files.exists(path) and not bundle.is_bundle(path):
            raise UserError(
                f"{path} holds no checkpoint of a known format; expected a folder with *.index and *.data files, "
                f"{hugging_face.WEIGHTS_FILE} or {keras_hub.MODEL_WEIGHTS_FILE}"
            ) from error
        raise
    for name, module in ((TF1, tf1), (OFFICIAL_BERT, own), (MODEL_GARDEN, model_garden)):
        if module.is_format(source):
            return name
    raise UserError(
        f"{source.path} holds {len(source.shapes)} tensors, but no word embeddings under a name of Google's, of model "
        "garden's or of ours"
    )


def read(path: str, given: Given | None = None) -> tuple[str, Checkpoint]:
    """Returns the format of a checkpoint and what it holds.

    Args:
        path: as for `find_format`.
        given: what the checkpoint does not say itself.

    Raises:
        UserError: something is missing, left over, damaged, or does not fit together.
    """
    given = given or Given()
    name = find_format(path)
    if given.bert_config_file and name in (HUGGING_FACE, KERAS_HUB):
        raise UserError(f"--bert_config_file is for checkpoints without a configuration; {path} has its own")
    return name, READERS[name](path, given)


def convert(options: Options) -> list[str]:
    """Converts as the options say; returns the lines of the report.

    The new folder appears when all is written, read back and compared, and not at all if anything is wrong.

    Raises:
        UserError: the checkpoint cannot be read, or the other format cannot hold it, or the result differs.
    """
    given = Given(options.bert_config_file, options.vocab_file, options.do_lower_case, options.optimizer)
    source_format, source = read(options.from_, given)
    lines = [f"read {TITLES[source_format]} checkpoint {options.from_}: {_summary(source)}"]
    lines += [*_tensors(source, options.list_tensors), *_notes(source.notes)]
    changed, changes = _changed(source, options)
    lines += changes
    if options.optimizer and options.to_format not in (OFFICIAL_BERT, TF1):
        raise UserError(f"the {TITLES[options.to_format]} format holds no optimizer state; convert without --optimizer")
    if files.is_remote(options.to) and options.to_format in (HUGGING_FACE, KERAS_HUB):
        raise UserError(f"{TITLES[options.to_format]} folders are written to this machine's disk; copy them from there")
    with files.folder_written_whole(options.to) as folder:
        written = WRITERS[options.to_format](changed, folder)
        lines += _notes(written.notes[len(changed.notes) :])
        _, again = read(folder, Given(optimizer=options.optimizer))
        lines.append(_round_trip(written, again, options.to_format))
        if source_format in (HUGGING_FACE, KERAS_HUB):
            lines.append(_forward(source, source_format, options.from_))
        if options.to_format in (HUGGING_FACE, KERAS_HUB):
            lines.append(_forward(written, options.to_format, folder))
    lines.append(f"written {TITLES[options.to_format]} checkpoint {options.to}: {_summary(written)}")
    return lines


def _changed(checkpoint: Checkpoint, options: Options) -> tuple[Checkpoint, list[str]]:
    """The checkpoint with the activation and the sizes that the options ask for, and lines that say what changed."""
    lines = []
    if options.hidden_act and options.hidden_act != checkpoint.config.hidden_act:
        lines.append(f"changed: {checkpoint.config.hidden_act} is taken as {options.hidden_act}")
        config = dataclasses.replace(checkpoint.config, hidden_act=options.hidden_act)
        checkpoint = dataclasses.replace(checkpoint, config=config)
    if options.new_tokens_file:
        tokens = files.read_text(options.new_tokens_file).split("\n")
        tokens = [token.strip() for token in tokens if token.strip()]
        if not tokens:
            raise UserError(f"{options.new_tokens_file} holds no token; write one on each line")
        unknown = sizes.without_pieces(checkpoint, tokens)
        checkpoint = sizes.add_tokens(checkpoint, tokens, options.new_token_rows)
        where = "new rows" if options.new_token_rows == "append" else "the rows of [unused...] tokens"
        starts = "each the mean of the pieces that it was cut into so far"
        if unknown:
            starts += f"; of all rows where that was [UNK]: {', '.join(unknown)}"
        lines.append(f"changed: {len(tokens)} tokens in {where}, {starts}")
    if options.max_position_embeddings is not None:
        before = checkpoint.config.max_position_embeddings
        how = f"{options.position_init}, from {before} to {options.max_position_embeddings}"
        lines.append(f"changed: position embeddings {how}")
        checkpoint = sizes.extend_positions(checkpoint, options.max_position_embeddings, options.position_init)
    return checkpoint, lines


def _summary(checkpoint: Checkpoint) -> str:
    parameters = sum(value.size for value in checkpoint.weights.values())
    config = checkpoint.config
    casing = "uncased" if checkpoint.do_lower_case else "cased"
    texts = [
        ", ".join(checkpoint.parts),
        f"{len(checkpoint.weights)} tensors, {parameters:,} parameters",
        f"vocabulary of {config.vocab_size:,}{'' if checkpoint.vocab is None else ', ' + casing}",
        f"up to {config.max_position_embeddings} positions",
        f"{config.hidden_act}, epsilon {config.layer_norm_eps:g}",
    ]
    if checkpoint.slots:
        texts.append(f"{len(checkpoint.slots)} averages of Adam's, step {checkpoint.step:,}")
    return "; ".join(texts)


def _tensors(checkpoint: Checkpoint, each: bool) -> list[str]:
    """What became of the file's tensors; with `each`, a line for every one."""
    inventory = checkpoint.inventory
    if inventory is None:
        return []
    behind = [f"{len(names)} {kind}" for kind, names in inventory.left_behind.items()]
    loaded = f"{len(inventory.loaded)} loaded, none missing, none unexpected"
    lines = [f"tensors: {loaded}; left behind: {', '.join(behind) or 'none'}"]
    if each:
        lines += [f"loaded: {theirs} as {ours}" for theirs, ours in sorted(inventory.loaded.items())]
        lines += [f"left behind: {name}" for names in inventory.left_behind.values() for name in names]
    return lines


def _notes(notes: tuple[str, ...]) -> list[str]:
    return [f"note: {note}" for note in notes]


def _round_trip(written: Checkpoint, again: Checkpoint, to_format: str) -> str:
    """Compares what was written with what is read back, to the bit."""
    fields = ["config", "vocab", "labels"]
    if written.vocab is not None:  # without it, its casing has no place either
        fields.append("do_lower_case")
    if written.slots:
        fields.append("step")
    for field in fields:
        if getattr(written, field) != getattr(again, field):
            raise UserError(
                f"the {TITLES[to_format]} format cannot hold the model's {field}: written {getattr(written, field)!r}, "
                f"read back {getattr(again, field)!r}"
            )
    tensors, back = {**written.weights, **written.slots}, {**again.weights, **again.slots}
    difference = parity.largest_difference(tensors, back)
    if difference:
        raise UserError(f"what was written reads back with a difference of {difference:g}; nothing was left in --to")
    return f"round trip: {len(back)} tensors read back, largest difference {difference:g}"


def _forward(checkpoint: Checkpoint, format_name: str, folder: str) -> str:
    framework, difference = parity.forward_difference(checkpoint, format_name, folder)
    if difference is None:
        return f"forward pass: not compared with {framework}, which is not installed"
    if not difference <= _TOLERANCE:
        raise UserError(
            f"{framework} computes something else from {folder} than this model does: outputs differ by up to "
            f"{difference:g}; nothing was left in --to"
        )
    return f"forward pass on a fixed input: largest difference to {framework} {difference:.1e}"
