"""A fine-tuned model in a folder: the weights, the encoder's small files, and task.json, which says what it answers."""

import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras

from official_bert import files, task_models
from official_bert.checkpoint_formats.checkpoint import VOCAB_FILE, Checkpoint, Given
from official_bert.checkpoint_formats.google_files import read_small_files, write_small_files
from official_bert.config import BertConfig
from official_bert.encoder import build_encoder
from official_bert.errors import UserError
from official_bert.tokenization import FullTokenizer

WEIGHTS_FILE, TASK_FILE = "model.weights.h5", "task.json"
_KEYS = ("task", "kind", "pair", "labels", "num_choices", "max_seq_length")


class FineTuned(NamedTuple):
    """A fine-tuned model with what belongs to it; `description` is what task.json holds (see `save`)."""

    model: keras.Model
    config: BertConfig
    tokenizer: FullTokenizer
    description: dict[str, Any]


def save(
    folder: str,
    model: keras.Model,
    description: Mapping[str, Any],
    config: BertConfig,
    vocab: str,
    do_lower_case: bool,
) -> None:
    """Writes a model's folder; each file appears whole, over that of an earlier save.

    Args:
        folder: where to.
        model: as a function of task_models returns it.
        description: for task.json: task (its name), kind (one of task_models.KINDS), pair (whether inputs are pairs),
            labels (the classes' names in order, or None), num_choices (or None) and max_seq_length; for
            question_answering also doc_stride, max_query_length, max_answer_length, n_best_size, version_2 and
            null_score_diff_threshold.
        config: the encoder's.
        vocab: the text of the vocab.txt.
        do_lower_case: whether the vocabulary is uncased.
    """
    absent = [key for key in _KEYS if key not in description]
    if absent:
        raise ValueError(f"the description lacks {', '.join(absent)}")
    with tempfile.TemporaryDirectory() as local:  # HDF5 files are not written to remote places
        path = os.path.join(local, WEIGHTS_FILE)
        model.save_weights(path)
        files.copy(path, os.path.join(folder, WEIGHTS_FILE))
    write_small_files(Checkpoint(config, {}, vocab, do_lower_case), folder)
    files.write_text(os.path.join(folder, TASK_FILE), json.dumps(description, indent=1, ensure_ascii=False) + "\n")


def is_finetuned(folder: str) -> bool:
    """Whether the folder holds a fine-tuned model."""
    return files.exists(os.path.join(folder, TASK_FILE))


def load(folder: str, dtype: Any = "float32") -> FineTuned:
    """Returns the fine-tuned model of a folder.

    Args:
        folder: as `save` writes it.
        dtype: a Keras dtype policy for the layers.

    Raises:
        UserError: a file is missing or damaged, or they do not fit together.
    """
    if not is_finetuned(folder):
        raise UserError(f"{folder} has no {TASK_FILE}; give the folder of a fine-tuned model")
    path = os.path.join(folder, TASK_FILE)
    description = files.read_json_object(path)
    absent = [key for key in _KEYS if key not in description]
    if absent:
        raise UserError(f"{path} lacks {', '.join(absent)}; restore it from a copy")
    small = read_small_files(folder, Given())
    if small.vocab is None:
        raise UserError(f"{folder} has no {VOCAB_FILE}; copy the vocabulary there")
    encoder = build_encoder(small.config, dtype=dtype)
    labels, num_choices = description["labels"] or (), description["num_choices"] or 0
    model = task_models.build(description["kind"], encoder, len(labels), num_choices)
    _load_weights(model, os.path.join(folder, WEIGHTS_FILE))
    tokenizer = FullTokenizer(os.path.join(folder, VOCAB_FILE), small.do_lower_case)
    return FineTuned(model, small.config, tokenizer, description)


def _load_weights(model: keras.Model, path: str) -> None:
    if not files.exists(path):
        raise UserError(f"there is no file {path}; give the folder of a fine-tuned model")
    with tempfile.TemporaryDirectory() as local:
        copy = os.path.join(local, WEIGHTS_FILE)
        files.copy(path, copy)
        try:
            model.load_weights(copy)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{path} is damaged or of another model: {str(error).splitlines()[0]}") from error
