"""Google's TF1 checkpoints: bert_config.json, vocab.txt and bert_model.ckpt.*; TensorFlow 1 is not needed."""

import dataclasses
import os
import re

import numpy as np

from official_bert.checkpoints import bundle, checksums
from official_bert.checkpoints.checkpoint import (
    PARTS,
    QUESTION_ANSWERING,
    SEQUENCE_CLASSIFIER,
    SLOTS,
    Checkpoint,
    LoadOverrides,
    names_by_variable,
    numbered,
)
from official_bert.checkpoints.formats.format import CheckpointPath, Format
from official_bert.checkpoints.model_files import read_model_files, with_weights, write_model_files
from official_bert.checkpoints.tensors import (
    Layout,
    Source,
    collect,
    collect_slots,
    ignored_notes,
    take_inventory,
    to_external,
)
from official_bert.errors import UserError
from official_bert.modeling.config import LAYER_NORM_EPSILON, BertConfig

NAME = "Google TF1"
CHECKPOINT = "bert_model.ckpt"
STEP = "global_step"

# Google's names, by ours (`names_by_variable`); {} is the number of a block.
_TABLE = {
    "word_embeddings/embeddings": "bert/embeddings/word_embeddings",
    "token_type_embeddings/embeddings": "bert/embeddings/token_type_embeddings",
    "position_embeddings/embeddings": "bert/embeddings/position_embeddings",
    "embeddings_layer_norm": "bert/embeddings/LayerNorm",
    "layer_{}_attention_query": "bert/encoder/layer_{}/attention/self/query",
    "layer_{}_attention_key": "bert/encoder/layer_{}/attention/self/key",
    "layer_{}_attention_value": "bert/encoder/layer_{}/attention/self/value",
    "layer_{}_attention_output": "bert/encoder/layer_{}/attention/output/dense",
    "layer_{}_attention_layer_norm": "bert/encoder/layer_{}/attention/output/LayerNorm",
    "layer_{}_intermediate": "bert/encoder/layer_{}/intermediate/dense",
    "layer_{}_output": "bert/encoder/layer_{}/output/dense",
    "layer_{}_output_layer_norm": "bert/encoder/layer_{}/output/LayerNorm",
    "pooler": "bert/pooler/dense",
    "masked_lm_transform": "cls/predictions/transform/dense",
    "masked_lm_layer_norm": "cls/predictions/transform/LayerNorm",
    "masked_lm_output/bias": "cls/predictions/output_bias",
    "next_sentence/kernel": "cls/seq_relationship/output_weights",
    "next_sentence/bias": "cls/seq_relationship/output_bias",
    "sequence_classifier/kernel": "output_weights",
    "sequence_classifier/bias": "output_bias",
    "question_answering/kernel": "cls/squad/output_weights",
    "question_answering/bias": "cls/squad/output_bias",
}
NAMES = names_by_variable(_TABLE)
# Stored as [classes, H]; ours are [H, classes].
TRANSPOSED = frozenset({"next_sentence/kernel", "sequence_classifier/kernel", "question_answering/kernel"})
# What is no weight.
_MOMENTS = {"of the optimizer's moments and step (--optimizer takes them)": rf".*/({'|'.join(SLOTS)})|{STEP}"}
# Variables of users' own training programs. A slot of an optimizer is named below its variable.
_VARIABLE = "(kernel|bias|gamma|beta|output_bias|output_weights|(word|token_type|position)_embeddings)"
OTHER_PROGRAMS = {
    "of another optimizer": (
        rf"(.*/)?({_VARIABLE}/[^/]+|(beta[12]_power|\w*loss_scale\w*|good_steps|accum_step)(_\d+)?)"
    ),
    "of heads or programs that BERT does not have": (
        r"(?!(bert/(embeddings|encoder|pooler)|cls/(predictions|seq_relationship))/).*"
    ),
}
_IGNORED = _MOMENTS | OTHER_PROGRAMS


def layout(name: str, shape: tuple[int, ...]) -> Layout:
    """How the tensor of our name and shape is stored."""
    transposed = name in TRANSPOSED
    return Layout(transposed, shape[::-1] if transposed else shape)


def name_of(path: str) -> str:
    """Returns Google's name of one of our variables."""
    block = re.match(r"layer_(\d+)_", path)
    return NAMES[re.sub(r"^layer_\d+_", "layer_{}_", path)].format(block.group(1) if block else "")


def is_google(source: Source) -> bool:
    """Whether a TensorFlow checkpoint's names are Google's."""
    return NAMES["word_embeddings/embeddings"] in source.shapes


def detect(path: CheckpointPath) -> bool:
    """Whether a path holds a checkpoint with Google's names."""
    return isinstance(path.bundle, Source) and is_google(path.bundle)


def read(path: str, overrides: LoadOverrides) -> Checkpoint:
    """Reads a checkpoint, given by its folder or its path without .index, with its configuration and vocabulary.

    Raises:
        UserError: something is missing, left over, damaged, or does not fit together.
    """
    prefix = bundle.prefix_of(path)
    described = read_model_files(os.path.dirname(prefix), overrides)
    source = bundle.open_bundle(prefix)
    weights, loaded = collect(source, described.config, _names_in(source, described.config), layout, _IGNORED)
    inventory = take_inventory(source, loaded, _IGNORED)
    notes = described.notes + ignored_notes(inventory, OTHER_PROGRAMS)
    described = dataclasses.replace(described, notes=notes)
    if not overrides.optimizer:
        return with_weights(described, weights, inventory=inventory)
    wanted = {f"{theirs}/{slot}": f"{name}/{slot}" for theirs, name in loaded.items() for slot in SLOTS}
    hint = "released checkpoints have none: convert without --optimizer"
    slots, step = collect_slots(source, wanted, STEP, weights, layout, "the optimizer's state", hint)
    inventory = take_inventory(source, loaded | wanted | {STEP: "step"}, _IGNORED)
    return with_weights(described, weights, slots=slots, step=step, inventory=inventory)


def _names_in(source: Source, config: BertConfig) -> dict[str, str]:
    """Returns Google's names without a task's head whose kernel and bias do not have the shapes of one."""
    names = dict(NAMES)
    for part in (SEQUENCE_CLASSIFIER, QUESTION_ANSWERING):
        kernel, bias = PARTS[part]
        classes = source.shapes.get(NAMES[bias], ())
        if source.shapes.get(NAMES[kernel]) != (*classes, config.hidden_size):
            del names[kernel], names[bias]
    return names


def write(checkpoint: Checkpoint, folder: str) -> Checkpoint:
    """Writes the checkpoint as Google's scripts would have, names, order and bytes included; returns it.

    Raises:
        UserError: Google's code would compute something else with it, or has no name for a weight.
    """
    config = checkpoint.config
    if config.layer_norm_eps != LAYER_NORM_EPSILON:
        raise UserError(
            f"the model has layer_norm_eps {config.layer_norm_eps}; Google's code always computes with "
            f"{LAYER_NORM_EPSILON}, so its answers would differ: choose another --to_format"
        )
    tensors = to_external(checkpoint.weights, config, NAMES, layout, NAME)
    names = numbered(NAMES, config)
    for path, value in checkpoint.slots.items():
        name, slot = path.rsplit("/", 1)
        tensors[f"{names[name]}/{slot}"] = layout(name, value.shape).to_external(value)
    if checkpoint.slots:
        tensors[STEP] = np.array(checkpoint.step or 0, np.int64)
    bundle.write_bundle(os.path.join(folder, CHECKPOINT), tensors)
    checksums.write(folder, write_model_files(checkpoint, folder), {})
    if config.hidden_act != "gelu_exact":
        return checkpoint
    note = (
        "Google's code knows no gelu_exact and will refuse the configuration; --hidden_act=gelu takes it as the other"
    )
    return dataclasses.replace(checkpoint, notes=(*checkpoint.notes, note))


FORMAT = Format(name="tf1", title=NAME, detect=detect, read=read, write=write, holds_optimizer=True)
