"""Reads and writes the folders of fine-tuned models, as `finetune` and `save_checkpoint` write them.

A model that is converted from a format without task settings gets defaults: the original's length limits for question
answering, and four choices for multiple choice.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.checkpoint import (
    ENCODER,
    MULTIPLE_CHOICE,
    POOLED_HEADS,
    POOLER,
    QUESTION_ANSWERING,
    TASK_HEADS,
    TOKEN_CLASSIFIER,
    Inventory,
    LoadedModel,
    LoadOverrides,
    keep_parts,
)
from official_bert.checkpoints.model_files import read_model_files
from official_bert.errors import UserError
from official_bert.kinds import names
from official_bert.kinds.all_kinds import SPECS, create_spec
from official_bert.modeling.head_input import HeadInput

_KINDS = {
    TOKEN_CLASSIFIER: names.TAGGING,
    MULTIPLE_CHOICE: names.MULTIPLE_CHOICE,
    QUESTION_ANSWERING: names.QUESTION_ANSWERING,
}
_TASK = "converted"  # in task.json of models that were not fine-tuned here


def read(folder: str, overrides: LoadOverrides) -> LoadedModel:
    """Reads the folder of a fine-tuned model.

    Raises:
        UserError: If a file is missing or damaged, or `overrides` asks for something that a fine-tuned model does not
            have.
    """
    if overrides.optimizer:
        raise UserError(f"{folder} holds a fine-tuned model, which contains no optimizer state; remove --optimizer")
    if overrides.bert_config_file:
        raise UserError(f"--bert_config_file is for checkpoints without a configuration; {folder} has its own")
    task = finetuned.read_task(folder)
    assert task is not None
    described = read_model_files(folder, overrides)  # compares checksums, also of the weights
    weights = finetuned.read_weights(folder, described.config, task)
    return dataclasses.replace(
        described,
        weights=weights,
        labels=None if task["labels"] is None else tuple(task["labels"]),
        kind=task["kind"] if "sequence_classifier/bias" in weights else None,
        task=task,
        inventory=Inventory({path: path for path in weights}, {}),
    )


def check_is_portable(path_or_name: str) -> None:
    """Checks that a fine-tuned model can be written in other checkpoint formats. Any other checkpoint passes.

    Args:
        path_or_name: The path or name of a checkpoint.

    Raises:
        UserError: If the model's head has additional layers between the encoder and the output layer.
    """
    task = finetuned.read_task(path_or_name)
    if task is not None and not (head_input := HeadInput.from_dict(task)).is_encoder:
        raise UserError(
            f"{path_or_name} was trained with --head={head_input.head}, which checkpoint formats cannot store; use "
            "from_checkpoint of the models that take text, or official-bert export"
        )


def find_task_head(checkpoint: LoadedModel) -> str | None:
    """Returns the task head of a checkpoint that can be written as a fine-tuned model, or None if it cannot.

    The checkpoint must have exactly one head, a task head, and a vocabulary. Kinds of tasks with classes also need
    their names.
    """
    heads = [part for part in checkpoint.parts if part not in (ENCODER, POOLER)]
    if len(heads) != 1 or heads[0] not in TASK_HEADS or checkpoint.vocab is None:
        return None
    has_names = checkpoint.labels is not None or not _needs_labels(_get_kind(checkpoint, heads[0]))
    return heads[0] if has_names else None


def _needs_labels(kind: str) -> bool:
    return "labels" in SPECS[kind].required_settings


def _get_kind(checkpoint: LoadedModel, head: str) -> str:
    """Returns the kind of task of a head. A sequence classifier of unknown kind with one output is a regression."""
    is_number = len(checkpoint.weights.get("sequence_classifier/bias", ())) == 1
    default = names.REGRESSION if is_number else names.CLASSIFICATION
    return _KINDS.get(head) or checkpoint.kind or default


def write(checkpoint: LoadedModel, folder: str) -> LoadedModel:
    """Writes a model with a task head as the folder of a fine-tuned model. Returns the model that was written.

    Raises:
        UserError: If the checkpoint lacks a weight that the head needs.
    """
    model = add_task(checkpoint)
    assert model.task is not None
    finetuned.save(folder, finetuned.build_model(model), model.task, model.config, model.require_vocab(), model.casing)
    return model


def add_task(checkpoint: LoadedModel) -> LoadedModel:
    """Adds the contents of a task.json to a model, and notes about values that had to be assumed.

    Args:
        checkpoint: A model for which `find_task_head` returns a head.

    Raises:
        UserError: If a weight that the head needs is missing.
    """
    head = find_task_head(checkpoint)
    assert head is not None
    task, notes = _make_task(checkpoint, head)
    if head not in POOLED_HEADS:
        checkpoint = keep_parts(checkpoint, {ENCODER, head}, "official_bert")
    elif POOLER not in checkpoint.parts:
        raise UserError(
            f"the checkpoint has a {head} but no {POOLER}, whose output the head reads; pass a checkpoint with both"
        )
    return dataclasses.replace(checkpoint, task=task, notes=(*checkpoint.notes, *notes))


def _make_task(checkpoint: LoadedModel, head: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the contents of a task.json for a model with the task head `head`, and notes about assumed values."""
    kind = _get_kind(checkpoint, head)
    labels = list(checkpoint.labels or ()) if _needs_labels(kind) else None
    if checkpoint.task is not None:
        return {**checkpoint.task, "labels": labels}, ()
    length = min(SPECS[kind].default_max_seq_length, checkpoint.config.max_position_embeddings)
    task = create_spec({"kind": kind, "labels": labels}).task_spec(_TASK, length)
    return task, (f"the checkpoint does not state the settings of its task; assumed: {format_settings(task)}",)


def format_settings(task: Mapping[str, Any]) -> str:
    """Returns the settings of a task.json as one line for messages, such as "max_seq_length 128, num_choices 4"."""
    settings = {name: value for name, value in task.items() if name not in ("task", "kind", "labels", "table")}
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in settings.items() if value is not None)
