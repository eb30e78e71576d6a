"""The folder of a fine-tuned model: the weights, the encoder's model files, and task.json, which describes the task.

`finetune` and `save_checkpoint` write such folders. A model that is converted from a format without task settings gets
defaults: the original's length limits for question answering, and four choices for multiple choice.
"""

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from official_bert.checkpoints import checksums, hdf5, named_models
from official_bert.checkpoints.checkpoint import (
    CONFIG_FILE,
    ENCODER,
    MULTIPLE_CHOICE,
    POOLED_HEADS,
    POOLER,
    QUESTION_ANSWERING,
    TASK_HEADS,
    TOKEN_CLASSIFIER,
    Array,
    Inventory,
    LoadedModel,
    LoadOverrides,
)
from official_bert.checkpoints.model_files import format_model_files, read_model_files, write_model_files
from official_bert.checkpoints.tensors import assign_weights, call_without_initial_values, keep_parts
from official_bert.errors import UserError
from official_bert.kinds import names
from official_bert.kinds.all_kinds import SPECS, create_spec
from official_bert.kinds.model import create_kind_model
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.head_input import HeadInput
from official_bert.tokenization.casing import UNCASED, Casing
from official_bert.utils import files

WEIGHTS_FILE, TASK_FILE = "model.weights.h5", "task.json"
_KINDS = {
    TOKEN_CLASSIFIER: names.TAGGING,
    MULTIPLE_CHOICE: names.MULTIPLE_CHOICE,
    QUESTION_ANSWERING: names.QUESTION_ANSWERING,
}
_CONVERTED = "converted"  # the name of the task in task.json of models that were not fine-tuned here
_KEYS = ("task", "kind", "pair", "labels", "num_choices", "max_seq_length")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_labels(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(label, str) for label in value)


# A check of each value, and its description.
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "task": (lambda value: isinstance(value, str), "the task's name"),
    "kind": (lambda value: value in [*SPECS], f"one of {', '.join(SPECS)}"),
    "pair": (lambda value: isinstance(value, bool), "true or false"),
    "labels": (lambda value: value is None or _are_labels(value), "a list of the classes' names, or null"),
    "num_choices": (
        lambda value: value is None or (type(value) is int and 1 <= value <= 1_000),
        "a number of choices, or null",
    ),
    "max_seq_length": (lambda value: type(value) is int and 1 <= value <= 1_000_000, "a number of tokens"),
    # Only in models whose decision settings, such as thresholds, were chosen after training.
    "temperature": (lambda value: _is_number(value) and 0 < value < math.inf, "a positive number"),
    "min_confidence": (lambda value: _is_number(value) and 0 <= value < 1, "a probability"),
    "thresholds": (
        lambda value: isinstance(value, list) and all(_is_number(each) and 0 <= each <= 1 for each in value),
        "a list of probabilities",
    ),
}


def check_setting(name: str, value: Any) -> None:
    """Raises a UserError if `value` is invalid for the key `name` of task.json."""
    is_valid, expected = _VALUES[name]
    if not is_valid(value):
        raise UserError(f"{name} is {value!r}; expected {expected}")


def save(
    folder: str,
    model: keras.Model,
    task_spec: Mapping[str, Any],
    config: BertConfig,
    vocab: str,
    casing: Casing = UNCASED,
) -> None:
    """Writes the folder of a fine-tuned model: weights, configuration, vocabulary, task.json and checksums.

    An existing file is replaced only when the new one is complete.

    Args:
        folder: Folder to write to.
        model: The fine-tuned Keras model, as `KindModel.build` returns it.
        task_spec: The contents of task.json: task (its name), kind (a key of kinds.all_kinds.SPECS), pair (whether
            inputs are pairs), labels (the classes' names in order, or None), num_choices (or None) and max_seq_length;
            for question_answering also doc_stride, max_query_length, max_answer_length, n_best_size, version_2 and
            null_score_diff_threshold.
        config: The encoder's configuration.
        vocab: The text of the vocab.txt.
        casing: The tokenizer's settings for lower-casing, accents and added tokens.

    Raises:
        UserError: If a weight is not a finite number.
    """
    check_finite({variable.path: variable for variable in model.weights}, "the model")
    files.make_folder(folder)
    with tempfile.TemporaryDirectory() as local:  # HDF5 files are not written to remote file systems
        without_optimizer = keras.Model(model.input, model.output)
        with hdf5.write_atomically(os.path.join(local, WEIGHTS_FILE), without_optimizer.variables) as path:
            without_optimizer.save_weights(path)
        contents = format_model_files(LoadedModel(config, {}, vocab, casing))
        write_model_files(local, contents)
        _write_task_spec(local, task_spec)
        checksums.replace_files(local, folder, [WEIGHTS_FILE, *contents, TASK_FILE])


def replace_task_spec(folder: str, task_spec: Mapping[str, Any]) -> None:
    """Replaces the task.json in the folder of a fine-tuned model, and updates its checksum."""
    with tempfile.TemporaryDirectory() as local:
        _write_task_spec(local, task_spec)
        checksums.replace_files(local, folder, [TASK_FILE])


def _write_task_spec(folder: str, task_spec: Mapping[str, Any]) -> None:
    files.write_text(os.path.join(folder, TASK_FILE), json.dumps(task_spec, indent=1, ensure_ascii=False) + "\n")


def is_finetuned(folder: str) -> bool:
    """Returns whether a local folder holds a model that this library fine-tuned.

    A task.json is not sufficient evidence, because keras-hub presets contain a file of this name, too.
    """
    has_task, has_config, is_preset = (
        files.exists(os.path.join(folder, name)) for name in (TASK_FILE, CONFIG_FILE, "config.json")
    )
    return has_task and (has_config or not is_preset)


def read_task_spec(path_or_name: str) -> dict[str, Any] | None:
    """Returns the contents of a fine-tuned model's task.json, or None if the checkpoint is not a fine-tuned model.

    Raises:
        UserError: If the file is damaged, lacks a key, or has an invalid value.
    """
    folder = named_models.get_local_folder(path_or_name)
    if not is_finetuned(folder):
        return None
    checksums.check_files(folder, only=TASK_FILE)
    path = os.path.join(folder, TASK_FILE)
    task_spec = files.read_json_object(path)
    try:
        absent = [key for key in _KEYS if key not in task_spec]
        if absent:
            raise UserError(f"the file has no value for {', '.join(absent)}")
        for key in (key for key in _VALUES if key in task_spec):
            check_setting(key, task_spec[key])
        HeadInput.from_dict(task_spec)
        for key in SPECS[task_spec["kind"]].required_settings:
            if task_spec[key] is None:
                raise UserError(f"{key} is null, but a model of kind {task_spec['kind']} needs it")
    except UserError as error:
        raise UserError(f"{path}: {error}; restore it from a copy") from error
    return task_spec


def build_model(loaded: LoadedModel, dtype: Any = "float32") -> keras.Model:
    """Builds the Keras model, encoder and head, of a fine-tuned model, and assigns its weights.

    Args:
        loaded: The fine-tuned model, as `open_model` returns it.
        dtype: The dtype policy of the layers.

    Raises:
        UserError: If `loaded` has no task.json, or its weights do not fit the model.
    """
    if loaded.task_spec is None:
        raise UserError(f"{loaded.source.name} has no {TASK_FILE}; pass the folder of a fine-tuned model")
    encoder = build_encoder(loaded.config, dtype=dtype)
    model: keras.Model = create_kind_model(create_spec(loaded.task_spec)).build(encoder)
    assign_weights(model, loaded.weights)
    return model


def _read_weights(folder: str, config: BertConfig, task_spec: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the weights in the folder of a fine-tuned model, by the paths of the Keras variables.

    Raises:
        UserError: If the weight file is missing or damaged, or does not fit `config` and `task_spec`.
    """
    path = os.path.join(folder, WEIGHTS_FILE)
    if not files.exists(path):
        raise UserError(f"{path} is missing; pass the folder of a fine-tuned model")

    def load(scope: keras.StatelessScope) -> dict[str, Array]:
        # The file only numbers the layers. The model has their names.
        model: keras.Model = create_kind_model(create_spec(task_spec)).build(build_encoder(config))
        model.load_weights(copy)
        return {variable.path: np.array(scope.get_current_value(variable)) for variable in model.weights}

    with tempfile.TemporaryDirectory() as local:
        copy = os.path.join(local, WEIGHTS_FILE)
        files.copy(path, copy)
        hdf5.check_self_contained(copy, path)
        try:
            # Initial values, which the file replaces, would take longer to draw than the file to read.
            weights: dict[str, Array] = call_without_initial_values(load)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{path} is damaged or belongs to another model: {str(error).splitlines()[0]}") from error
    check_finite(weights, path)
    return weights


def check_finite(weights: Mapping[str, Any], where: str) -> None:
    """Raises a UserError if a weight has values that are not finite.

    Args:
        weights: Arrays or Keras variables, by variable path.
        where: The model or the file, for error messages.
    """
    for path, value in weights.items():
        if not np.isfinite(np.asarray(value)).all():
            raise UserError(f"{path} of {where} has values that are not finite; train again with a lower learning rate")


def read(folder: str, overrides: LoadOverrides) -> LoadedModel:
    """Reads the folder of a fine-tuned model.

    Raises:
        UserError: If a file is missing or damaged, or `overrides` asks for something that a fine-tuned model does not
            have.
    """
    if overrides.optimizer:
        raise UserError(f"{folder} holds a fine-tuned model, which contains no optimizer state; remove --optimizer")
    own, given = os.path.join(folder, CONFIG_FILE), overrides.bert_config_file
    if given and BertConfig.from_json_file(given) != BertConfig.from_json_file(own):
        raise UserError(f"--bert_config_file={given} differs from {own}, which the model was trained with; remove it")
    task_spec = read_task_spec(folder)
    assert task_spec is not None
    described = read_model_files(folder, overrides)  # compares checksums, also of the weights
    weights = _read_weights(folder, described.config, task_spec)
    return dataclasses.replace(
        described,
        weights=weights,
        labels=None if task_spec["labels"] is None else tuple(task_spec["labels"]),
        kind=task_spec["kind"] if "sequence_classifier/bias" in weights else None,
        task_spec=task_spec,
        inventory=Inventory({path: path for path in weights}, {}),
    )


def check_is_portable(path_or_name: str) -> None:
    """Checks that a fine-tuned model can be written in other checkpoint formats. Any other checkpoint passes.

    Args:
        path_or_name: The path or name of a checkpoint.

    Raises:
        UserError: If the model's head has additional layers between the encoder and the output layer.
    """
    task_spec = read_task_spec(path_or_name)
    if task_spec is not None and not (head_input := HeadInput.from_dict(task_spec)).is_encoder:
        raise UserError(
            f"{path_or_name} was trained with --head={head_input.head}, which checkpoint formats cannot store; use "
            "from_checkpoint of the models that take text, or official-bert export"
        )


def write(checkpoint: LoadedModel, folder: str) -> LoadedModel | None:
    """Writes a model with a task head as the folder of a fine-tuned model.

    Returns:
        The model that was written, or None if the model has no task head.

    Raises:
        UserError: If the checkpoint lacks a weight that the head needs.
    """
    model = add_task_spec(checkpoint)
    if model is not None and model.task_spec is not None:
        save(folder, build_model(model), model.task_spec, model.config, model.require_vocab(), model.casing)
    return model


def add_task_spec(checkpoint: LoadedModel) -> LoadedModel | None:
    """Adds the contents of a task.json to a model, and notes about values that had to be assumed.

    Args:
        checkpoint: A model with exactly one head, a task head, and a vocabulary. Kinds of tasks with classes also need
            their names.

    Returns:
        The model with its task_spec, or None if the model has no task.

    Raises:
        UserError: If a weight that the head needs is missing, or a regression has several outputs.
    """
    heads = [part for part in checkpoint.parts if part not in (ENCODER, POOLER)]
    if len(heads) != 1 or heads[0] not in TASK_HEADS or checkpoint.vocab is None:
        return None
    head, kind = heads[0], get_head_kind(checkpoint, heads[0])
    if kind == names.REGRESSION and (count := len(checkpoint.weights["sequence_classifier/bias"])) != 1:
        raise UserError(f"the checkpoint is a regression with {count} outputs; only one output is supported")
    needs_labels = "labels" in SPECS[kind].required_settings
    if needs_labels and checkpoint.labels is None:
        return None
    if head not in POOLED_HEADS:
        checkpoint = keep_parts(checkpoint, {ENCODER, head}, "official_bert")
    elif POOLER not in checkpoint.parts:
        raise UserError(
            f"the checkpoint has a {head} but no {POOLER}, whose output the head reads; pass a checkpoint with both"
        )
    labels = list(checkpoint.labels or ()) if needs_labels else None
    if checkpoint.task_spec is not None:
        return dataclasses.replace(checkpoint, task_spec={**checkpoint.task_spec, "labels": labels})
    length = min(SPECS[kind].default_max_seq_length, checkpoint.config.max_position_embeddings)
    task_spec = create_spec({"kind": kind, "labels": labels}).task_spec(_CONVERTED, length)
    assumed = format_settings(task_spec)
    if head not in _KINDS and checkpoint.kind is None:
        assumed = f'kind "{kind}", {assumed}'
    note = f"the checkpoint does not state the settings of its task; assumed: {assumed}"
    return dataclasses.replace(checkpoint, task_spec=task_spec).add_notes(note)


def get_head_kind(checkpoint: LoadedModel, head: str) -> str:
    """Returns the kind of task of a head. A sequence classifier of unknown kind with one output is a regression."""
    is_number = len(checkpoint.weights.get("sequence_classifier/bias", ())) == 1
    default = names.REGRESSION if is_number else names.CLASSIFICATION
    return _KINDS.get(head) or checkpoint.kind or default


def format_settings(task_spec: Mapping[str, Any]) -> str:
    """Returns the settings of a task.json as one line for messages, such as "max_seq_length 128, num_choices 4"."""
    settings = {name: value for name, value in task_spec.items() if name not in ("task", "kind", "labels", "table")}
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in settings.items() if value is not None)
