"""Converts a checkpoint to another format: reads it, applies requested changes, writes it and verifies the result."""

import dataclasses

from official_bert.checkpoints import parity, resize
from official_bert.checkpoints.checkpoint import LoadedModel, LoadOverrides
from official_bert.checkpoints.formats import finetuned
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.formats.format import CheckpointPath, Format, Framework, UnreadableWeightsError
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.options import ConversionOptions
from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.counting import pluralize

# The largest difference to another framework's outputs that rounding errors can explain.
_TOLERANCE = 1e-3


def convert(options: ConversionOptions) -> list[str]:
    """Converts a checkpoint to another format and returns the lines of a report.

    The result is written to a temporary folder, read back and compared. It is renamed to `options.to` only if all
    comparisons succeed.

    Raises:
        UserError: If the checkpoint cannot be read, the other format cannot store it, or a comparison fails.
    """
    overrides = LoadOverrides(
        bert_config_file=options.bert_config_file,
        vocab_file=options.vocab_file,
        do_lower_case=options.do_lower_case,
        strip_accents=options.strip_accents,
        optimizer=options.optimizer,
        replace=True,
    )
    finetuned.check_is_portable(options.from_)
    source = open_model(options.from_, overrides)
    source_format = FORMATS[source.source.format]
    target_format = FORMATS[options.to_format]
    assert target_format.write is not None  # the choices of --to_format
    if not source.config.predicts_masked_tokens and target_format is not source_format:
        raise UserError(
            f"{options.from_} is not a masked LM, and code that reads the {target_format.title} format would "
            f"compute other outputs; choose --to_format={source_format.name}"
        )
    lines = [f"read {source_format.title} checkpoint {options.from_}: {_summarize(source)}"]
    lines += [*_list_tensors(source, options.list_tensors), *_format_notes(source.notes)]
    changed, changes = _apply_changes(source, options)
    lines += changes
    if options.optimizer and not target_format.holds_optimizer:
        raise UserError(f"{target_format.title} checkpoints contain no optimizer state; remove --optimizer")
    with files.write_folder_atomically(options.to) as folder:
        written = target_format.write(changed, folder)
        lines += _format_notes(written.notes[len(changed.notes) :])
        again = open_model(folder, LoadOverrides(optimizer=options.optimizer))
        lines.append(_check_round_trip(written, again, target_format))
        if written.kind and again.kind != written.kind:
            kind = written.kind.replace("_", " ")
            lines.append(f"note: the {target_format.title} format cannot store that the classifier is for {kind}")
        if written.task_spec and not again.task_spec:
            settings = finetuned.format_settings(written.task_spec)
            lines.append(f"note: the {target_format.title} format cannot store the settings of the task: {settings}")
        source_folder = CheckpointPath(source.source.path).folder
        has_own_tokenizer = (options.vocab_file, options.do_lower_case, options.strip_accents) == (None, None, None)
        try:
            lines += _compare(source, source_format.framework, source_folder, has_own_tokenizer)
        except UnreadableWeightsError as error:  # such as TensorFlow's, or names below "module."
            lines.append(f"forward pass of {options.from_}: not compared, because {error}")
        lines += _compare(written, target_format.framework, folder)
    lines.append(f"written {target_format.title} checkpoint {options.to}: {_summarize(written)}")
    return lines


def _apply_changes(checkpoint: LoadedModel, options: ConversionOptions) -> tuple[LoadedModel, list[str]]:
    """Applies the flags that change a model: another activation, new tokens, more positions.

    Returns:
        The changed checkpoint, and a line of the report for each change.
    """
    lines = []
    if options.hidden_act and options.hidden_act != checkpoint.config.hidden_act:
        lines.append(f"changed: activation from {checkpoint.config.hidden_act} to {options.hidden_act}")
        config = dataclasses.replace(checkpoint.config, hidden_act=options.hidden_act)
        checkpoint = dataclasses.replace(checkpoint, config=config)
    if options.new_tokens_file:
        checkpoint, tokens, unknown = resize.add_tokens_from_file(
            checkpoint, options.new_tokens_file, options.new_token_rows
        )
        where = {
            "append": "new rows",
            "unused": "the rows of [unused...] tokens",
            "unused_first": "the rows of [unused...] tokens, then new ones",
        }[options.new_token_rows]
        starts = "each initialized with the mean of the pieces that it was split into before"
        if unknown:
            starts += f" (the mean of all rows for words that were [UNK]: {', '.join(unknown)})"
        lines.append(f"changed: {pluralize(len(tokens), 'token')} in {where}, {starts}")
    if options.max_position_embeddings is not None:
        before = checkpoint.config.max_position_embeddings
        how = f"{options.position_init}, from {before} to {options.max_position_embeddings}"
        lines.append(f"changed: position embeddings {how}")
        checkpoint = resize.extend_positions(checkpoint, options.max_position_embeddings, options.position_init)
    return checkpoint, lines


def _summarize(checkpoint: LoadedModel) -> str:
    parameters = sum(value.size for value in checkpoint.weights.values())
    config = checkpoint.config
    texts = [
        ", ".join(checkpoint.parts),
        f"{len(checkpoint.weights)} tensors, {parameters:,} parameters",
        f"vocabulary of {config.vocab_size:,}{'' if checkpoint.vocab is None else ', ' + checkpoint.casing.kind}",
        f"up to {config.max_position_embeddings} positions",
        f"{config.hidden_act}, epsilon {config.layer_norm_eps:g}",
    ]
    if checkpoint.slots:
        texts.append(f"{len(checkpoint.slots)} moments of Adam, step {checkpoint.step:,}")
    return "; ".join(texts)


def _list_tensors(checkpoint: LoadedModel, each: bool) -> list[str]:
    """Returns lines that summarize which tensors of the file were read. With `each`, every tensor has a line."""
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


def _format_notes(notes: tuple[str, ...]) -> list[str]:
    return [f"note: {note}" for note in notes]


def _check_round_trip(written: LoadedModel, again: LoadedModel, target_format: Format) -> str:
    """Checks that the checkpoint that was read back equals the one that was written, bit by bit.

    Returns:
        A line of the report.

    Raises:
        UserError: If the configuration, vocabulary, labels, casing, step or a tensor differs.
    """
    fields = ["config", "vocab", "labels"]
    if written.vocab is not None:  # Without a vocabulary, the casing is not stored either.
        fields.append("casing")
    if written.slots:
        fields.append("step")
    for field in fields:
        if getattr(written, field) != getattr(again, field):
            raise UserError(
                f"the {target_format.title} format cannot hold the model's {field}: written "
                f"{getattr(written, field)!r}, read back {getattr(again, field)!r}"
            )
    tensors, back = {**written.weights, **written.slots}, {**again.weights, **again.slots}
    difference = parity.find_largest_difference(tensors, back)
    if difference:
        raise UserError(
            f"the written checkpoint differs from the original by {difference:g} when it is read back; --to was removed"
        )
    return f"round trip: {len(back)} tensors read back, largest difference {difference:g}"


def _compare(
    checkpoint: LoadedModel, framework: Framework | None, folder: str, compare_tokenizer: bool = True
) -> list[str]:
    """Compares forward pass and tokenizer with the framework that the folder belongs to, if there is one."""
    if framework is None:
        return []
    try:
        num_texts = parity.compare_texts(checkpoint, framework, folder) if compare_tokenizer else 0
        difference = parity.compare_forward_pass(checkpoint, framework, folder)
    except ModuleNotFoundError:
        return [f"forward pass: not compared with {framework.title}, which is not installed"]
    except (UserError, UnreadableWeightsError):
        raise
    except Exception as error:  # Files that contradict each other raise errors of many types.
        first_line = str(error).strip().split("\n")[0]
        raise UserError(
            f"{framework.title} cannot run the model in {folder} ({type(error).__name__}: {first_line}); correct its "
            "configuration, such as the number of classes"
        ) from error
    if not difference <= _TOLERANCE:
        raise UserError(
            f"{framework.title} computes other outputs from {folder} than this model: they differ by up to "
            f"{difference:g}; --to was removed"
        )
    lines = [f"forward pass on a fixed input: largest difference to {framework.title} {difference:.1e}"]
    if num_texts:
        lines.append(f"tokenizer: {pluralize(num_texts, 'fixed text')} get the ids of {framework.title}")
    return lines
