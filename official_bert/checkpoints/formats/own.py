"""Our own checkpoints: the --output_dir of run_pretraining, which a run can start from or resume.

A model with a task head is written as the folder of a fine-tuned model instead, like the one that fine-tuning writes.
"""

import dataclasses
import os
import re
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.checkpoints import checksums, model_files, run_checkpoints
from official_bert.checkpoints.checkpoint import PRETRAINING, Array, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats import finetuned
from official_bert.checkpoints.formats.format import CheckpointPath, Format
from official_bert.checkpoints.tensors import Naming, read_weights
from official_bert.errors import UserError
from official_bert.utils import files

NAME = "official_bert"

# Tensors that are not weights.
_IGNORED = {
    "of the optimizer's moments and step (--optimizer takes them)": r"optimizer/.*",
    "of float16's scale of the loss": r"loss_scale/.*",
    "of the place in the data": r"place/.*",
    "of the best weights' loss": r"best/.*",
    "of TensorFlow's own (number of saves, graph of objects)": r"save_counter/.*|_CHECKPOINTABLE_OBJECT_GRAPH",
}
# The files that `save` writes in addition to the model files.
_SAVED = re.compile(rf"{run_checkpoints.STATE_FILE}$|{checksums.CHECKSUM_FILE}$|ckpt-\d+[._]|.*\.writing-")


def _slot_path(name: str, slot: str) -> str:
    return f"bert_adam_w/{name.replace('/', '_')}_{slot}"


_STEP_PATH = "bert_adam_w/iteration"
NAMING = Naming(
    run_checkpoints.get_stored_name,
    ignored=_IGNORED,
    slot_name=lambda name, _, slot: run_checkpoints.get_stored_name(_slot_path(name, slot), "optimizer"),
    step=run_checkpoints.get_stored_name(_STEP_PATH, "optimizer"),
)


def detect(path: CheckpointPath) -> bool:
    """Returns whether a path holds a model that this library fine-tuned, or a checkpoint of its pre-training."""
    return finetuned.is_finetuned(path.folder) or path.has_tensor(
        run_checkpoints.get_stored_name("word_embeddings/embeddings")
    )


def read(path: CheckpointPath, overrides: LoadOverrides) -> LoadedModel:
    """Reads a checkpoint of pre-training or a fine-tuned model.

    Args:
        path: The folder of a run, whose newest checkpoint is read, the path of one checkpoint without .index, or the
            folder of a fine-tuned model.
        overrides: The user's settings.

    Raises:
        UserError: If a file or tensor is missing, unexpected or damaged, or files contradict each other.
    """
    if finetuned.is_finetuned(path.folder):
        return finetuned.read(path.folder, overrides)
    source = path.open_bundle()
    number = re.search(r"ckpt-(\d+)$", source.path)
    described = model_files.read_model_files(os.path.dirname(source.path), overrides)
    described = dataclasses.replace(described, step=int(number[1]) if number else None)
    return read_weights(described, source, NAMING, overrides)


def write(checkpoint: LoadedModel, folder: str) -> LoadedModel:
    """Writes the model as a checkpoint of pre-training, or as a fine-tuned model if it has a task head.

    A folder with optimizer state can be the --output_dir of a run that resumes. Without it, the folder can be an
    --init_checkpoint.

    Returns:
        The model that was written.

    Raises:
        UserError: If the model has optimizer state, but does not have exactly the weights of a pre-training model.
    """
    if checkpoint.slots and set(checkpoint.parts) != PRETRAINING:
        raise UserError(
            f"the checkpoint has {', '.join(checkpoint.parts)}; only a model of exactly "
            f"{', '.join(sorted(PRETRAINING))} can be resumed; remove --optimizer"
        )
    if not checkpoint.slots and (written := finetuned.write(checkpoint, folder)):
        return written
    _save_run(checkpoint, folder, checkpoint.step or 0)
    model_files.write_model_files(folder, model_files.format_model_files(checkpoint))
    return checkpoint


def save(checkpoint: LoadedModel, folder: str) -> None:
    """Saves a model that was trained in Python into a new folder, or replaces an earlier save in the folder.

    The earlier weights are kept until the new ones are complete.

    Raises:
        UserError: If the folder contains files that are not from an earlier save, or a weight is not finite.
    """
    finetuned.check_finite(checkpoint.weights, "the model")
    files.check_holds_runs(folder)
    contents = model_files.format_model_files(checkpoint)
    names = files.list_folder(folder) if files.exists(folder) else []
    others = [name for name in names if not _SAVED.match(name) and name not in contents]
    others += model_files.list_changed_files(folder, contents)
    if others:
        raise UserError(
            f"{folder} contains {others[0]}, which does not belong to this model; pass a new folder, or one with an "
            "earlier save of this model"
        )
    model_files.write_model_files(folder, contents)
    earlier = run_checkpoints.list_checkpoints(folder)
    _save_run(checkpoint, folder, run_checkpoints.parse_step(earlier[0]) + 1 if earlier else 0)


def _save_run(checkpoint: LoadedModel, folder: str, step: int) -> None:
    """Saves a checkpoint of `step` like run_pretraining does: the weights, and the optimizer state if there is one."""

    def store(values: Mapping[str, Array]) -> list[Any]:
        """Returns objects with the attributes of Keras variables that RunCheckpoints reads."""
        return [types.SimpleNamespace(path=path, value=tf.Variable(value)) for path, value in values.items()]

    held = {"model": store(checkpoint.weights)}
    if checkpoint.slots:
        slots = {_slot_path(*path.rsplit("/", 1)): value for path, value in checkpoint.slots.items()}
        held["optimizer"] = store({_STEP_PATH: np.array(checkpoint.step or 0, np.int64), **slots})
        held["place"] = run_checkpoints.create_data_position()
    checkpoints = run_checkpoints.RunCheckpoints(folder, held, keep=1)
    checkpoints.remove_unfinished()
    checkpoints.save(step)


FORMAT = Format(name="official_bert", title=NAME, detect=detect, read=read, write=write, holds_optimizer=True)
