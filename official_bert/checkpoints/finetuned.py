"""A fine-tuned model in a folder: the weights, the encoder's model files, and task.json, which says what it answers."""

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from official_bert.checkpoints import checksums, hdf5, named_models
from official_bert.checkpoints.checkpoint import CONFIG_FILE, VOCAB_FILE, Checkpoint, LoadOverrides
from official_bert.checkpoints.model_files import read_model_files, write_model_files
from official_bert.errors import UserError
from official_bert.modeling import task_models
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.head_input import HeadInput
from official_bert.tokenization.casing import UNCASED, Casing
from official_bert.tokenization.exact import FullTokenizer
from official_bert.utils import files

WEIGHTS_FILE, TASK_FILE = "model.weights.h5", "task.json"
_KINDS = (*task_models.KINDS, task_models.VECTORS)
_KEYS = ("task", "kind", "pair", "labels", "num_choices", "max_seq_length")
LABELLED = (task_models.CLASSIFICATION, task_models.MULTI_LABEL, task_models.TAGGING)
_MOST_CHOICES = 1000


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_labels(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(label, str) for label in value)


# What each value must be, and that in words.
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "task": (lambda value: isinstance(value, str), "the task's name"),
    "kind": (lambda value: value in _KINDS, f"one of {', '.join(_KINDS)}"),
    "pair": (lambda value: isinstance(value, bool), "true or false"),
    "labels": (lambda value: value is None or _are_labels(value), "a list of the classes' names, or null"),
    "num_choices": (lambda value: value is None or _is_count(value, _MOST_CHOICES), "a number of choices, or null"),
    "max_seq_length": (lambda value: _is_count(value, 1_000_000), "a number of tokens"),
    # Of models whose decisions were chosen after training only.
    "temperature": (lambda value: _is_number(value) and 0 < value < math.inf, "a positive number"),
    "min_confidence": (lambda value: _is_number(value) and 0 <= value < 1, "a probability"),
    "thresholds": (
        lambda value: isinstance(value, list) and all(_is_number(each) and 0 <= each <= 1 for each in value),
        "a list of probabilities",
    ),
}


def setting_problem(name: str, value: Any) -> str | None:
    """Returns what is wrong with a setting of a fine-tuned model, or None."""
    is_valid, expected = _VALUES[name]
    return None if is_valid(value) else f"{name} is {value!r}; expected {expected}"


class FineTuned(NamedTuple):
    """A fine-tuned model with what belongs to it; `task_spec` is what task.json holds (see `save`)."""

    model: keras.Model
    config: BertConfig
    tokenizer: FullTokenizer
    task_spec: dict[str, Any]


def save(
    folder: str,
    model: keras.Model,
    task_spec: Mapping[str, Any],
    config: BertConfig,
    vocab: str,
    casing: Casing = UNCASED,
) -> None:
    """Writes a model's folder, with checksums; each file appears whole, over that of an earlier save.

    Args:
        folder: where to.
        model: as a function of task_models returns it.
        task_spec: for task.json: task (its name), kind (one of task_models.KINDS, or VECTORS), pair (whether inputs are
            pairs), labels (the classes' names in order, or None), num_choices (or None) and max_seq_length; for
            question_answering also doc_stride, max_query_length, max_answer_length, n_best_size, version_2 and
            null_score_diff_threshold.
        config: the encoder's.
        vocab: the text of the vocab.txt.
        casing: of the vocabulary.

    Raises:
        UserError: a weight is not a finite number.
    """
    absent = [key for key in _KEYS if key not in task_spec]
    if absent:
        raise ValueError(f"the task specification lacks {', '.join(absent)}")
    _check_finite(model, "the model")
    files.make_folder(folder)
    with tempfile.TemporaryDirectory() as local:  # HDF5 files are not written to remote file systems
        whole = keras.Model(model.input, model.output)  # without the optimizer's moments
        with hdf5.written_whole(os.path.join(local, WEIGHTS_FILE), whole.variables) as path:
            whole.save_weights(path)
        names = write_model_files(Checkpoint(config, {}, vocab, casing), local)
        content = json.dumps(task_spec, indent=1, ensure_ascii=False) + "\n"
        files.write_text(os.path.join(local, TASK_FILE), content)
        checksums.replace_files(local, folder, [WEIGHTS_FILE, *names, TASK_FILE])


def replace_task_spec(folder: str, task_spec: Mapping[str, Any]) -> None:
    """Writes another task.json, with checksums, into the folder of a fine-tuned model."""
    with tempfile.TemporaryDirectory() as local:
        files.write_text(os.path.join(local, TASK_FILE), json.dumps(task_spec, indent=1, ensure_ascii=False) + "\n")
        checksums.replace_files(local, folder, [TASK_FILE])


def is_finetuned(folder: str) -> bool:
    """Whether the folder holds a fine-tuned model of ours; keras-hub's presets have a task.json too."""
    folder = named_models.local_folder(folder)
    return all(files.exists(os.path.join(folder, name)) for name in (TASK_FILE, CONFIG_FILE))


def load_task_spec(folder: str) -> dict[str, Any]:
    """Returns what the task.json of a fine-tuned model's folder holds.

    Raises:
        UserError: there is none, or something is missing in it.
    """
    folder = named_models.local_folder(folder)
    if not files.exists(os.path.join(folder, TASK_FILE)):
        raise UserError(f"{folder} has no {TASK_FILE}; give the folder of a fine-tuned model")
    checksums.check_files(folder, only=TASK_FILE)
    path = os.path.join(folder, TASK_FILE)
    task_spec = files.read_json_object(path)
    absent = [key for key in _KEYS if key not in task_spec]
    if absent:
        raise UserError(f"{path} lacks {', '.join(absent)}; restore it from a copy")
    for key, (is_valid, expected) in _VALUES.items():
        if key in task_spec and not is_valid(task_spec[key]):
            raise UserError(f"{path} has {key} {task_spec[key]!r}; expected {expected}; restore it from a copy")
    try:
        HeadInput.from_dict(task_spec)
    except UserError as error:
        raise UserError(f"{path}: {error}; restore it from a copy") from error
    kind = task_spec["kind"]
    needed = "labels" if kind in LABELLED else "num_choices" if kind == task_models.MULTIPLE_CHOICE else None
    if needed and task_spec[needed] is None:
        raise UserError(f"{path} has no {needed}, which a model of kind {kind} needs; restore it from a copy")
    return task_spec


def load(folder: str, dtype: Any = "float32") -> FineTuned:
    """Returns the fine-tuned model of a folder that `save` wrote; `dtype` is a Keras dtype policy for its layers.

    Raises:
        UserError: a file is missing or damaged, or they do not fit together.
    """
    folder = named_models.local_folder(folder)
    task_spec = load_task_spec(folder)
    described = read_model_files(folder, LoadOverrides())  # compares checksums, also of the weights
    if described.vocab is None:
        raise UserError(f"{folder} has no {VOCAB_FILE}; copy the vocabulary there")
    encoder = build_encoder(described.config, dtype=dtype)
    labels, num_choices = task_spec["labels"] or (), task_spec["num_choices"] or 0
    head_input = HeadInput.from_dict(task_spec)
    model = task_models.build(task_spec["kind"], encoder, len(labels), num_choices, head_input=head_input)
    _load_weights(model, os.path.join(folder, WEIGHTS_FILE))
    tokenizer = described.tokenizer(os.path.join(folder, VOCAB_FILE))
    return FineTuned(model, described.config, tokenizer, task_spec)


def _load_weights(model: keras.Model, path: str) -> None:
    if not files.exists(path):
        raise UserError(f"there is no file {path}; give the folder of a fine-tuned model")
    with tempfile.TemporaryDirectory() as local:
        copy = os.path.join(local, WEIGHTS_FILE)
        files.copy(path, copy)
        hdf5.check_self_contained(copy, path)
        try:
            model.load_weights(copy)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{path} is damaged or of another model: {str(error).splitlines()[0]}") from error
    _check_finite(model, path)


def _check_finite(model: keras.Model, where: str) -> None:
    for variable in model.variables:
        if not np.isfinite(variable.numpy()).all():
            raise UserError(f"{variable.path} of {where} has numbers that are not finite; train again at a lower rate")
