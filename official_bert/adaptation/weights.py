"""The weights that an adaptation begins with, in our format: with new words, and with heads that the source lacks."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from official_bert.adaptation.options import Options
from official_bert.checkpoints import resize
from official_bert.checkpoints.checkpoint import PARTS, PRETRAINING, LoadedModel, LoadOverrides, numbered
from official_bert.checkpoints.formats import own
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.loading import open_model
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.utils import files


def read(options: Options) -> tuple[LoadedModel, list[str]]:
    """Returns what --init names, with vocabulary and without heads for tasks, and lines on it.

    Raises:
        UserError: If it cannot be read, has no vocabulary, or is no masked LM.
    """
    overrides = LoadOverrides(
        vocab_file=options.vocab_file, do_lower_case=options.do_lower_case, strip_accents=options.strip_accents
    )
    checkpoint = open_model(options.init, overrides)
    checkpoint.require_vocab()
    checkpoint.config.require_masked_lm()
    new = [part for part in PARTS if part in PRETRAINING and part not in checkpoint.parts]
    unused = [part for part in checkpoint.parts if part not in PRETRAINING]
    config, title = checkpoint.config, FORMATS[checkpoint.source.format].title
    first = (
        f"weights from {options.init}, a {title} checkpoint: {config.num_hidden_layers} layers of "
        f"{config.hidden_size}, {checkpoint.casing.kind} vocabulary of {config.vocab_size:,}"
    )
    lines = [first, *(f"note: {note}" for note in checkpoint.notes)]
    if new:
        lines.append(f"it has no {', no '.join(new)}: new weights are used")
    if unused:
        lines.append(f"not used: {', '.join(unused)}")
    names = numbered({name: "" for part in PRETRAINING for name in PARTS[part]}, checkpoint.config)
    weights = {name: value for name, value in checkpoint.weights.items() if name in names}
    return dataclasses.replace(checkpoint, weights=weights, labels=None, kind=None, task=None, notes=()), lines


def with_words(checkpoint: LoadedModel, words: Sequence[str]) -> LoadedModel:
    """Returns the checkpoint with new words, in the places of unused pieces first (see resize.add_tokens)."""
    return resize.add_tokens(checkpoint, words, "unused_first") if words else checkpoint


def write(checkpoint: LoadedModel, seed: int, folder: str) -> None:
    """Writes a whole pre-training model; the parts that the checkpoint lacks have new weights."""
    model = build_pretraining_model(checkpoint.config, seed=seed)
    new = {variable.path: np.asarray(variable) for variable in model.variables}
    with files.folder_written_whole(folder) as beside:
        own.write(dataclasses.replace(checkpoint, weights={**new, **checkpoint.weights}, step=None), beside)
