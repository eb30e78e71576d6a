"""Our own checkpoints: what run_pretraining leaves in its --output_dir, and what it starts or goes on from."""

import dataclasses
import os
import re

import keras
import numpy as np
import tensorflow as tf

from official_bert.checkpoints import bundle, checksums, run_checkpoints
from official_bert.checkpoints.checkpoint import PARTS, PRETRAINING, SLOTS, Array, Checkpoint, LoadOverrides, numbered
from official_bert.checkpoints.formats.format import CheckpointPath, Format
from official_bert.checkpoints.model_files import read_model_files, write_model_files
from official_bert.checkpoints.tensors import Source, checked, collect, identity, take_inventory, to_external
from official_bert.errors import UserError
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.optimization.optimizers import BertAdamW
from official_bert.optimization.schedules import WarmupPolynomialDecay

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
_STEP = "optimizer/bert_adam_w.Siteration/.ATTRIBUTES/VARIABLE_VALUE"


def _slot_name(name: str, slot: str) -> str:
    return f"optimizer/bert_adam_w.S{name.replace('/', '_')}_{slot}/.ATTRIBUTES/VARIABLE_VALUE"


def detect(path: CheckpointPath) -> bool:
    """Whether a path holds a checkpoint with our names."""
    return isinstance(path.bundle, Source) and NAMES["word_embeddings/embeddings"] in path.bundle.shapes


def read(path: str, overrides: LoadOverrides) -> Checkpoint:
    """Reads the newest checkpoint of a folder, or the one whose path without .index is given.

    Raises:
        UserError: something is missing, left over, damaged, or does not fit together.
    """
    prefix = bundle.prefix_of(path)
    described = read_model_files(os.path.dirname(prefix), overrides)
    source = bundle.open_bundle(prefix)
    weights = collect(source, described.config, NAMES, identity, _IGNORED)
    number = re.search(r"ckpt-(\d+)$", prefix)
    step = int(number.group(1)) if number else None
    names = numbered(NAMES, described.config)
    loaded = {names[name]: name for name in weights}
    if not overrides.optimizer:
        inventory = take_inventory(source, loaded, _IGNORED)
        return dataclasses.replace(described.checkpoint(weights), step=step, inventory=inventory)
    wanted = {f"{name}/{slot}": _slot_name(name, slot) for name in weights for slot in SLOTS}
    missing = [theirs for theirs in [*wanted.values(), _STEP] if theirs not in source.shapes]
    if missing:
        raise UserError(
            f"{prefix} lacks {len(missing)} tensors of BertAdamW's state, {missing[0]} among them; convert without "
            "--optimizer"
        )
    slots = {name: _slot(source, theirs, weights[os.path.dirname(name)].shape) for name, theirs in wanted.items()}
    loaded |= {theirs: name for name, theirs in wanted.items()} | {_STEP: "step"}
    inventory = take_inventory(source, loaded, _IGNORED)
    step = int(source.read(_STEP))
    return dataclasses.replace(described.checkpoint(weights), slots=slots, step=step, inventory=inventory)


def _slot(source: Source, name: str, shape: tuple[int, ...]) -> Array:
    if source.shapes[name] != shape:
        raise UserError(f"{name} in {source.path} has shape {list(source.shapes[name])}; expected {list(shape)}")
    return checked(source.read(name), name, source.path)


def write(checkpoint: Checkpoint, folder: str) -> Checkpoint:
    """Writes a folder that run_pretraining takes, and returns what was written, which is all.

    With the optimizer's moments it is a run's --output_dir, to go on with; without them, an --init_checkpoint.

    Raises:
        UserError: there are moments without a pre-training model that they could belong to.
    """
    if checkpoint.slots:
        _write_run(checkpoint, folder)
    else:
        names = to_external(checkpoint.weights, checkpoint.config, {name: name for name in NAMES}, identity, NAME)
        variables = {name: tf.Variable(value) for name, value in names.items()}
        manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(model=variables), folder, max_to_keep=1, checkpoint_name="ckpt"
        )
        manager.save(checkpoint_number=checkpoint.step or 0)
    checksums.write(folder, write_model_files(checkpoint, folder), {})
    return checkpoint


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
    assign(model, checkpoint.weights)
    values = {_slot_name(*path.rsplit("/", 1)): value for path, value in checkpoint.slots.items()}
    values[_STEP] = np.array(checkpoint.step or 0, np.int64)
    for variable in optimizer.variables:
        variable.assign(values[f"optimizer/{variable.path.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"])
    held = {"model": model.variables, "optimizer": optimizer.variables, "place": run_checkpoints.data_position()}
    run_checkpoints.RunCheckpoints(folder, held, keep=1).save(checkpoint.step or 0)


def assign(model: keras.Model, weights: dict[str, Array]) -> None:
    """Fills a model of ours; every variable must have its weight."""
    for variable in model.variables:
        variable.assign(weights[variable.path])


FORMAT = Format(name="official_bert", title=NAME, detect=detect, read=read, write=write, holds_optimizer=True)
