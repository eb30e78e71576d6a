"""Our fine-tuned models as checkpoints: what `finetune` and `save_checkpoint` write, and what a head becomes here.

A model of questions keeps the original's limits, and a model of choices has four, where the other format does not say.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import keras

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.checkpoint import (
    ENCODER,
    MULTIPLE_CHOICE,
    POOLER,
    QUESTION_ANSWERING,
    SEQUENCE_CLASSIFIER,
    TASK_HEADS,
    TOKEN_CLASSIFIER,
    Checkpoint,
    Inventory,
    LoadOverrides,
    only,
)
from official_bert.checkpoints.finetuned import LABELLED
from official_bert.checkpoints.model_files import read_model_files
from official_bert.errors import UserError
from official_bert.modeling import task_models
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.head_input import HeadInput

_KINDS = {
    TOKEN_CLASSIFIER: task_models.TAGGING,
    MULTIPLE_CHOICE: task_models.MULTIPLE_CHOICE,
    QUESTION_ANSWERING: task_models.QUESTION_ANSWERING,
}
# What task.json says of models that were not fine-tuned here; as the models that take text have it by default.
_LENGTH, _LENGTH_OF_QUESTIONS = 128, 384
_NUM_CHOICES = 4
_QUESTION_SETTINGS = {
    "doc_stride": 128, "max_query_length": 64, "max_answer_length": 30, "n_best_size": 20, "version_2": False,
    "null_score_diff_threshold": 0.0,
}  # fmt: skip
_TASK = "converted"


def read(folder: str, overrides: LoadOverrides) -> Checkpoint:
    """Reads the folder of a fine-tuned model.

    Raises:
        UserError: something is missing or damaged, or the head is of a kind that no checkpoint has.
    """
    if overrides.optimizer:
        raise UserError(f"{folder} holds a fine-tuned model without the optimizer's state; leave out --optimizer")
    if overrides.bert_config_file:
        raise UserError(f"--bert_config_file is for checkpoints without a configuration; {folder} has its own")
    spec = finetuned.load_task_spec(folder)
    head_input = HeadInput.from_dict(spec)
    if not head_input.is_encoder:
        raise UserError(
            f"{folder} was trained with --head={head_input.head}, which checkpoint formats cannot store; use "
            "from_checkpoint of the models that take text, or official-bert export"
        )
    described = read_model_files(folder, overrides)
    model = finetuned.load(folder).model
    weights = {variable.path: variable.numpy() for variable in model.variables}
    labels = None if spec["labels"] is None else tuple(spec["labels"])
    is_of_texts = f"{SEQUENCE_CLASSIFIER.replace(' ', '_')}/bias" in weights
    return dataclasses.replace(
        described, weights=weights, labels=labels, kind=spec["kind"] if is_of_texts else None, task_spec=spec,
        inventory=Inventory({path: path for path in weights}, {}),
    )  # fmt: skip


def head_of(checkpoint: Checkpoint) -> str | None:
    """Returns the head by which a checkpoint can be a fine-tuned model that answers, or None.

    It has no other head, a vocabulary, and names for its classes unless it is for a number.
    """
    heads = [part for part in checkpoint.parts if part not in (ENCODER, POOLER)]
    if len(heads) != 1 or heads[0] not in TASK_HEADS or checkpoint.vocab is None:
        return None
    has_names = checkpoint.labels is not None or _kind_of(checkpoint, heads[0]) not in LABELLED
    return heads[0] if has_names else None


def _kind_of(checkpoint: Checkpoint, head: str) -> str:
    """The kind of task that a head is for; one class is a number where the checkpoint does not say it."""
    is_number = len(checkpoint.weights.get("sequence_classifier/bias", ())) == 1
    default = task_models.REGRESSION if is_number else task_models.CLASSIFICATION
    return _KINDS.get(head) or checkpoint.kind or default


def write(checkpoint: Checkpoint, folder: str) -> Checkpoint:
    """Writes a checkpoint with the head of a task as a fine-tuned model's folder; returns what was written.

    Raises:
        UserError: a weight that the head needs is missing.
    """
    model, kept = build(checkpoint)
    assert kept.vocab is not None
    assert kept.task_spec is not None
    finetuned.save(folder, model, kept.task_spec, kept.config, kept.vocab, kept.casing)
    return kept


def build(checkpoint: Checkpoint) -> tuple[keras.Model, Checkpoint]:
    """Returns the model of a checkpoint that `head_of` finds a head in, and what of the checkpoint it has.

    The latter has a task_spec, and notes of what was taken to be so.

    Raises:
        UserError: a weight that the head needs is missing.
    """
    head = head_of(checkpoint)
    assert head is not None
    spec, notes = _task_spec(checkpoint, head)
    if head in (TOKEN_CLASSIFIER, QUESTION_ANSWERING):  # which do not look at it
        kept = only(checkpoint, {ENCODER, head}, "official_bert")
    elif POOLER in checkpoint.parts:
        kept = checkpoint
    else:
        raise UserError(f"the checkpoint has a {head} but no {POOLER}, whose output it reads; take one that has")
    encoder = build_encoder(kept.config)
    model = task_models.build(spec["kind"], encoder, len(spec["labels"] or ()), spec["num_choices"] or 0)
    for variable in model.variables:
        variable.assign(kept.weights[variable.path])
    return model, dataclasses.replace(kept, task_spec=spec, notes=(*kept.notes, *notes))


def _task_spec(checkpoint: Checkpoint, head: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What task.json says of a checkpoint, and what the user should know of it."""
    kind = _kind_of(checkpoint, head)
    labels = list(checkpoint.labels or ()) if kind in LABELLED else None
    if checkpoint.task_spec is not None:
        return {**checkpoint.task_spec, "labels": labels}, ()
    is_questions, is_choice = head == QUESTION_ANSWERING, head == MULTIPLE_CHOICE
    length = min(_LENGTH_OF_QUESTIONS if is_questions else _LENGTH, checkpoint.config.max_position_embeddings)
    settings = {
        "pair": is_questions or is_choice, "num_choices": _NUM_CHOICES if is_choice else None,
        "max_seq_length": length, **(_QUESTION_SETTINGS if is_questions else {}),
    }  # fmt: skip
    spec = {"task": _TASK, "kind": kind, "labels": labels, **settings}
    return spec, (f"the checkpoint does not say how its model is asked; taken is: {settings_of(spec)}",)


def settings_of(task_spec: Mapping[str, Any]) -> str:
    """Returns a line of what a task.json says of how the model is asked."""
    settings = {name: value for name, value in task_spec.items() if name not in ("task", "kind", "labels", "table")}
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in settings.items() if value is not None)
