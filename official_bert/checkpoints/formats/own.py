"""Our own checkpoints: what run_pretraining leaves in its --output_dir, and what it starts or goes on from.

With the head of a task it is a fine-tuned model's folder, as finetuning leaves it.
"""

import os
import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from official_bert.checkpoints import bundle, checksums, finetuned, run_checkpoints
from official_bert.checkpoints.checkpoint import PARTS, PRETRAINING, SLOTS, Checkpoint, LoadOverrides
from official_bert.checkpoints.formats import fine_tuned
from official_bert.checkpoints.formats.format import CheckpointPath, Format
from official_bert.checkpoints.model_files import (
    contents_of_checkpoint,
    read_model_files,
    with_weights,
    write_contents,
    write_model_files,
)
from official_bert.checkpoints.tensors import Source, collect, collect_slots, identity, take_inventory, to_external
from official_bert.errors import UserError
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.optimization.optimizers import BertAdamW
from official_bert.optimization.schedules import WarmupPolynomialDecay
from official_bert.utils import files

NAME = "official_bert"

# A variable's name in the file, by its path in the model.
NAMES = {name: run_checkpoints.stored_name(name) for shapes in PARTS.values() for name in shapes}
# What is no weight.
_IGNORED = {
    "of the optimizer's moments and step (--optimizer takes them)": r"optimizer/.*",
    "of float16's scale of the loss": r"loss_scale/.*",
    "of the place in the data": r"place/.*",
    "of the best weights' loss": r"best/.*",
    "of TensorFlow's own (number of saves, graph of objects)": r"save_counter/.*|_CHECKPOINTABLE_OBJECT_GRAPH",
}
# What `save` leaves beside the files of the model.
_SAVED = re.compile(rf"{run_checkpoints.STATE_FILE}$|{checksums.CHECKSUM_FILE}$|ckpt-\d+[._]|.*\.writing-")
_STEP = run_checkpoints.stored_name("bert_adam_w/iteration", "optimizer")


def _slot_name(name: str, slot: str) -> str:
    return run_checkpoints.stored_name(f"bert_adam_w/{name.replace('/', '_')}_{slot}", "optimizer")


def detect(path: CheckpointPath) -> bool:
    """Whether a path holds a fine-tuned model of ours, or a checkpoint with our names."""
    if finetuned.is_finetuned(path.folder):
        return True
    return isinstance(path.bundle, Source) and NAMES["word_embeddings/embeddings"] in path.bundle.shapes


def read(path: str, overrides: LoadOverrides) -> Checkpoint:
    """Reads the newest checkpoint of a folder, the one whose path without .index is given, or a fine-tuned model.

    Raises:
        UserError: something is missing, left over, damaged, or does not fit together.
    """
    if finetuned.is_finetuned(folder := CheckpointPath(path).folder):
        return fine_tuned.read(folder, overrides)
    prefix = bundle.prefix_of(path)
    described = read_model_files(os.path.dirname(prefix), overrides)
    source = bundle.open_bundle(prefix)
    weights, loaded = collect(source, described.config, NAMES, identity, _IGNORED)
    number = re.search(r"ckpt-(\d+)$", prefix)
    step = int(number.group(1)) if number else None
    if not overrides.optimizer:
        inventory = take_inventory(source, loaded, _IGNORED)
        return with_weights(described, weights, step=step, inventory=inventory)
    wanted = {_slot_name(name, slot): f"{name}/{slot}" for name in weights for slot in SLOTS}
    slots, step = collect_slots(
        source, wanted, _STEP, weights, identity, "BertAdamW's state", "convert without --optimizer"
    )
    inventory = take_inventory(source, loaded | wanted | {_STEP: "step"}, _IGNORED)
    return with_weights(described, weights, slots=slots, step=step, inventory=inventory)


def write(checkpoint: Checkpoint, folder: str) -> Checkpoint:
    """Writes a folder that run_pretraining takes, or a fine-tuned model's; returns what was written.

    With the optimizer's moments it is a run's --output_dir, to go on with; without them, an --init_checkpoint.

    Raises:
        UserError: there are moments without a pre-training model that they could belong to.
    """
    if checkpoint.slots:
        _write_run(checkpoint, folder)
    elif fine_tuned.head_of(checkpoint):
        return fine_tuned.write(checkpoint, folder)
    else:
        names = to_external(checkpoint.weights, checkpoint.config, {name: name for name in NAMES}, identity, NAME)
        variables = {name: tf.Variable(value) for name, value in names.items()}
        manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(model=variables), folder, max_to_keep=1, checkpoint_name="ckpt"
        )
        manager.save(checkpoint_number=checkpoint.step or 0)
    checksums.write(folder, write_model_files(checkpoint, folder), {})
    return checkpoint


def save(checkpoint: Checkpoint, folder: str) -> None:
    """Writes a model that was trained in Python into a new folder, or over the one that this wrote there before.

    A folder that is written again has the earlier weights until the new ones are whole.

    Raises:
        UserError: the folder holds something else, or a weight is not a finite number.
    """
    if wrong := next((name for name, value in checkpoint.weights.items() if not np.isfinite(value).all()), None):
        raise UserError(f"{wrong} of the model has numbers that are not finite; train again at a lower rate")
    files.check_holds_runs(folder)
    contents = contents_of_checkpoint(checkpoint)
    names = files.list_folder(folder) if files.exists(folder) else []
    other = next((name for name in names if not _SAVED.match(name) and name not in contents), None)
    for name, content in contents.items():
        if name in names and files.read_text(os.path.join(folder, name)) != content:
            other = other or name
    if other:
        raise UserError(
            f"{folder} holds {other}, which is not this model's; give a new folder, or one that it was saved in before"
        )
    write_contents(folder, contents)
    variables = [_Stored(name, tf.Variable(value)) for name, value in checkpoint.weights.items()]
    checkpoints = run_checkpoints.RunCheckpoints(folder, {"model": variables}, keep=1)
    checkpoints.remove_unfinished()
    earlier = run_checkpoints.saved_checkpoints(folder)
    checkpoints.save(run_checkpoints.step_of(earlier[0]) + 1 if earlier else 0)


class _Stored(NamedTuple):
    """What RunCheckpoints reads of a Keras variable."""

    path: str
    value: tf.Variable


def _write_run(checkpoint: Checkpoint, folder: str) -> None:
    """Writes what run_pretraining would have saved, by its own means."""
    absent = PRETRAINING - set(checkpoint.parts)
    if absent or len(checkpoint.parts) > len(PRETRAINING):
        raise UserError(
            f"the checkpoint has {', '.join(checkpoint.parts)}; pre-training goes on with "
            f"{', '.join(sorted(PRETRAINING))} alone: convert without --optimizer"
        )
    model = build_pretraining_model(checkpoint.config)
    optimizer = BertAdamW(WarmupPolynomialDecay(1.0, 1))  # the schedule is not saved
    optimizer.build(model.trainable_variables)
    for variable in model.variables:
        variable.assign(checkpoint.weights[variable.path])
    values = {_slot_name(*path.rsplit("/", 1)): value for path, value in checkpoint.slots.items()}
    values[_STEP] = np.array(checkpoint.step or 0, np.int64)
    for variable in optimizer.variables:
        variable.assign(values[run_checkpoints.stored_name(variable.path, "optimizer")])
    held = {"model": model.variables, "optimizer": optimizer.variables, "place": run_checkpoints.data_position()}
    run_checkpoints.RunCheckpoints(folder, held, keep=1).save(checkpoint.step or 0)


FORMAT = Format(name="official_bert", title=NAME, detect=detect, read=read, write=write, holds_optimizer=True)
