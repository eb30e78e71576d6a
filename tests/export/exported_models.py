"""Small models of every kind whose answers differ between texts, for the export tests."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from official_bert.checkpoints import finetuned
from official_bert.export import formats
from official_bert.export.options import SAVED_MODEL, ExportOptions
from official_bert.kinds.names import CLASSIFICATION, MULTI_LABEL, MULTIPLE_CHOICE, QUESTION_ANSWERING, TAGGING
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.head_input import ENCODER_ITSELF, HeadInput
from official_bert.modeling.pretraining_model import build_pretraining_model
from tests.make import VOCAB, build_task_model, tiny_config, write_run, write_vocab

BILSTM = HeadInput("sum_all", 3)
CHOICES = 4
LABELS = ["no", "perhaps", "yes"]
CONFIG = tiny_config(max_position_embeddings=64)
# The converters do not quantize matrices of fewer than 1,024 elements.
LARGER = dataclasses.replace(CONFIG, hidden_size=32, intermediate_size=128)
TEXTS = [
    "The cat sat on the mat.",
    "",
    "un\u00e4ffable, d\u00f3g! 中文 \U0001f642 na\u00efve",
    "the dog ran in the sun, playing and walking on a mat; " * 3,
    "a",
]


def scattered(model: keras.Model) -> keras.Model:
    """Scales the weights of the model up so that its outputs depend on its inputs."""
    for number, variable in enumerate(model.variables):
        variable.assign(variable + np.random.default_rng(number).normal(size=variable.shape) * 0.4)
    return model


@functools.cache
def build_model(kind: str, config: BertConfig = CONFIG, head_input: HeadInput = ENCODER_ITSELF) -> keras.Model:
    """Returns a model that tests share and do not change."""
    encoder = build_encoder(config, seed=1)
    return scattered(build_task_model(kind, encoder, len(LABELS), CHOICES, seed=2, head_input=head_input))


@functools.cache
def pretraining_model(config: BertConfig = CONFIG) -> keras.Model:
    """Returns a model that tests share and do not change."""
    return scattered(build_pretraining_model(config, seed=1))


def make_task_spec(kind: str, **changes: Any) -> dict[str, Any]:
    task_spec = {
        "task": f"a {kind}",
        "kind": kind,
        "pair": False,
        "labels": LABELS if kind in (CLASSIFICATION, MULTI_LABEL, TAGGING) else None,
        "num_choices": CHOICES if kind == MULTIPLE_CHOICE else None,
        "max_seq_length": 20,
    }
    if kind == QUESTION_ANSWERING:
        task_spec |= {"doc_stride": 5, "max_query_length": 6, "max_answer_length": 4, "n_best_size": 6}
        task_spec |= {"version_2": False, "null_score_diff_threshold": 0.0}
    return task_spec | changes


def random_features(*shape: int) -> dict[str, np.ndarray]:
    """Returns ids in two segments, with padding at the end of all rows but the first."""
    rng = np.random.default_rng(shape[-1])
    lengths = rng.integers(2, shape[-1] + 1, shape[:-1])
    lengths.flat[0] = shape[-1]
    mask = (np.arange(shape[-1]) < lengths[..., None]).astype(np.int32)
    ids, segments = rng.integers(0, CONFIG.vocab_size, shape), rng.integers(0, 2, shape)
    return {
        "input_ids": ids.astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": segments.astype(np.int32) * mask,
    }


def relative_error(model: keras.Model, kind: str, run: Callable[[dict[str, Any]], dict[str, Any]]) -> float:
    """Returns how far a converted model's logits for rows of several lengths are from the model's.

    All logits count as one vector: the result is the norm of the difference, as a share of the model's norm.
    """
    rng = np.random.default_rng(0)
    differences, logits = [], []
    for length in (2, 7, 64, 3):
        shape = [1, CHOICES, length] if kind == MULTIPLE_CHOICE else [1, length]
        ids = rng.integers(5, 50, shape).astype(np.int32)
        features = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        outputs = model(features, training=False)
        converted = run(features)
        for name, values in (outputs if isinstance(outputs, dict) else {"logits": outputs}).items():
            assert converted[name].shape == values.shape
            logits.append(np.ravel(values))
            differences.append(np.ravel(converted[name]) - logits[-1])
    return float(np.linalg.norm(np.concatenate(differences)) / np.linalg.norm(np.concatenate(logits)))


def save_finetuned(folder: pathlib.Path, kind: str, config: BertConfig = CONFIG, **changes: Any) -> str:
    model = build_model(kind, config, HeadInput.from_dict(changes))
    finetuned.save(str(folder), model, make_task_spec(kind, **changes), config, VOCAB)
    return str(folder)


def save_run(folder: pathlib.Path) -> str:
    """Writes the folder of a pre-training run."""
    return write_run(folder, pretraining_model(), CONFIG, write_vocab(folder.parent / "run_vocab.txt"))


def export(model_dir: Any, export_dir: Any, format_name: str = SAVED_MODEL, **flags: Any) -> str:
    """Exports a model in one format and returns the export's folder."""
    options = ExportOptions(str(model_dir), str(export_dir), [format_name], **flags)
    return formats.export(options)[format_name]
