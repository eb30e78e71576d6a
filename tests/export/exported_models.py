"""Small models of every kind whose answers differ between texts, for the export tests."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import pytest

from official_bert.checkpoints.formats import finetuned
from official_bert.export import formats, verification
from official_bert.export.options import SAVED_MODEL, ExportOptions
from official_bert.export.source import ExportSource
from official_bert.inference import exports, keras_model
from official_bert.kinds import names
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.fast.verification import run_functions_eagerly
from official_bert.modeling.head_input import HeadInput
from official_bert.modeling.pretraining_model import build_pretraining_model, get_encoder
from official_bert.tokenization.casing import UNCASED
from official_bert.tokenization.fast import FastTokenizer
from tests.make import VOCAB, build_task_model, tiny_config, write_rows, write_run, write_text, write_vocab

share_runner = functools.cache(keras_model.KerasRunner)
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
ROWS = [text for text in TEXTS if text]
# Texts for each kind of model, by input.
TEXTS_FOR: dict[str, Mapping[str, Sequence[Any]]] = {
    **{kind: {"text": TEXTS} for kind in (*names.KINDS, names.VECTORS, names.ENCODER)},
    names.REGRESSION: {"text": TEXTS, "text_pair": TEXTS[::-1]},
    names.QUESTION_ANSWERING: {"question": TEXTS[::-1], "context": TEXTS},
    names.MULTIPLE_CHOICE: {"prompt": TEXTS, "endings": [(TEXTS * 2)[row : row + CHOICES] for row in range(5)]},
    names.FILL_MASK: {"text": ["the [MASK] sat on the [MASK].", "[MASK]", "[mask] [SEP] a [MASK] b" * 2]},
}
# Settings of the model of each kind that tests share.
SETTINGS: dict[str, dict[str, Any]] = {
    names.CLASSIFICATION: {"temperature": 2.5, "thresholds": [0.1, 0.6, 0.3], "min_confidence": 0.4},
    names.MULTI_LABEL: {"doc_stride": 5, "thresholds": [0.1, 0.5, 0.9]},
    names.REGRESSION: {"pair": True, "doc_stride": 5},
    names.QUESTION_ANSWERING: {"version_2": True, "null_score_diff_threshold": 0.5},
    names.VECTORS: {"pooling": "mean", "layers": [1, -1], "normalize": True},
    names.FILL_MASK: {"max_seq_length": 64},
}


def scattered(model: keras.Model) -> keras.Model:
    """Scales the weights of the model up so that its outputs depend on its inputs."""
    for number, variable in enumerate(model.variables):
        variable.assign(variable + np.random.default_rng(number).normal(size=variable.shape) * 0.4)
    return model


def build_model(kind: str, config: BertConfig = CONFIG, head_input: HeadInput | None = None) -> keras.Model:
    """Returns the model of a kind or, without a head, of FILL_MASK or ENCODER. Tests share and do not change it."""
    return _build_model(kind, config, head_input or HeadInput())


@functools.cache
def _build_model(kind: str, config: BertConfig, head_input: HeadInput) -> keras.Model:
    if kind == names.ENCODER:
        return get_encoder(build_pretrained(config))
    if kind == names.FILL_MASK:
        model = build_pretrained(config)
        return keras.Model(model.input, model.output["masked_lm_logits"])
    encoder = build_encoder(config, seed=1)
    return scattered(build_task_model(kind, encoder, len(LABELS), CHOICES, seed=2, head_input=head_input))


@functools.cache
def build_pretrained(config: BertConfig) -> keras.Model:
    """Returns a pre-training model that tests share and do not change."""
    return scattered(build_pretraining_model(config, seed=1))


def make_task_spec(kind: str, **changes: Any) -> dict[str, Any]:
    task_spec = {
        "task": f"a {kind}",
        "kind": kind,
        "pair": False,
        "labels": LABELS if kind in (names.CLASSIFICATION, names.MULTI_LABEL, names.TAGGING) else None,
        "num_choices": CHOICES if kind == names.MULTIPLE_CHOICE else None,
        "max_seq_length": 20,
    }
    if kind == names.QUESTION_ANSWERING:
        task_spec |= {"doc_stride": 5, "max_query_length": 6, "max_answer_length": 4, "n_best_size": 6}
        task_spec |= {"version_2": False, "null_score_diff_threshold": 0.0}
    return task_spec | changes


def random_features(*shape: int) -> dict[str, np.ndarray]:
    """Returns ids in two segments, with padding at the end of all rows but the first."""
    rng = np.random.default_rng(shape[-1])
    lengths = rng.integers(2, shape[-1] + 1, shape[:-1])
    lengths.flat[0] = shape[-1]
    mask = (np.arange(shape[-1]) < lengths[..., None]).astype(np.int32)
    ids, segments = rng.integers(0, CONFIG.vocab_size, shape, np.int32), rng.integers(0, 2, shape, np.int32)
    return {"input_ids": ids * mask, "input_mask": mask, "segment_ids": segments * mask}


def relative_error(model: keras.Model, kind: str, run: Callable[[dict[str, Any]], dict[str, Any]]) -> float:
    """Returns how far a converted model's logits for rows of several lengths are from the model's.

    All logits count as one vector: the result is the norm of the difference, as a share of the model's norm.
    """
    rng = np.random.default_rng(0)
    differences, logits = [], []
    for length in (2, 7, 64, 3):
        shape = [1, CHOICES, length] if kind == names.MULTIPLE_CHOICE else [1, length]
        ids = rng.integers(5, 50, shape).astype(np.int32)
        features = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        outputs, converted = model(features, training=False), run(features)
        for name, values in (outputs if isinstance(outputs, dict) else {"logits": outputs}).items():
            assert converted[name].shape == values.shape
            logits.append(np.ravel(values))
            differences.append(np.ravel(converted[name]) - logits[-1])
    return float(np.linalg.norm(np.concatenate(differences)) / np.linalg.norm(np.concatenate(logits)))


def make_source(kind: str, config: Any = CONFIG, vocab: str = VOCAB, casing: Any = UNCASED, **changes: Any) -> Any:
    """Returns the shared model of a kind as an export reads it."""
    task_spec = make_task_spec(kind, **changes)
    model = build_model(kind, config, HeadInput.from_dict(task_spec))
    return ExportSource(model, config, FastTokenizer.from_vocab(vocab, **casing._asdict()), vocab, kind, task_spec)


def answer_in_python(source: ExportSource, texts: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Returns the answers of the Keras model, tokenized and decoded in Python, by output."""
    if source.kind != names.ENCODER:
        with pytest.MonkeyPatch.context() as patch, run_functions_eagerly():
            patch.setattr(verification, "KerasRunner", share_runner)
            return verification._make_predictor(source).run(exports.to_columns(texts))
    answers, _ = verification._encode(texts["text"], source)
    answers["input_mask"] = [[1] * len(vectors) for vectors in answers["sequence_output"]]
    rows = [dict(zip(answers, row, strict=True)) for row in zip(*answers.values(), strict=True)]
    return exports.join_rows([{name: np.array([value]) for name, value in row.items()} for row in rows])


def assert_answers(
    answers: Mapping[str, Any], expected: dict[str, Any], rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    """Compares the outputs for a batch, with their padding. The vectors of padding are never used."""
    for name, values in expected.items():
        column = np.asarray(answers[name])
        if values.dtype == object:
            texts = [each.decode() if isinstance(each, bytes) else each for each in column.flat]
            np.testing.assert_array_equal(np.array(texts, object).reshape(column.shape), values, name)
            continue
        if name == "sequence_output":
            column = column * np.asarray(answers["input_mask"])[..., None]
        np.testing.assert_allclose(column, values, rtol, atol, err_msg=name)


def save_finetuned(folder: pathlib.Path, kind: str, **changes: Any) -> str:
    model = build_model(kind, head_input=HeadInput.from_dict(changes))
    finetuned.save(str(folder), model, make_task_spec(kind, **changes), CONFIG, VOCAB)
    return str(folder)


def save_kind(folder: pathlib.Path, kind: str) -> str:
    """Writes the folder of the model of a kind that tests share."""
    if kind in (names.ENCODER, names.FILL_MASK):
        return write_run(folder, build_pretrained(CONFIG), CONFIG, write_vocab(folder.parent / "run_vocab.txt"))
    return save_finetuned(folder, kind, **SETTINGS.get(kind, {}))


def export(model: Any, export_dir: Any, format_name: str = SAVED_MODEL, **flags: Any) -> str:
    """Exports an ExportSource, or the model in a folder, in one format and returns the export's folder."""
    is_source = isinstance(model, ExportSource)
    options = ExportOptions("a model" if is_source else str(model), str(export_dir), [format_name], **flags)
    with pytest.MonkeyPatch.context() as patch, run_functions_eagerly():
        patch.setattr(verification, "KerasRunner", share_runner)
        return (formats.write(model, options) if is_source else formats.export(options))[format_name]


def write_examples(folder: pathlib.Path, kind: str) -> str:
    """Writes labelled examples for a model of that kind in the format that finetune reads."""
    if kind == names.QUESTION_ANSWERING:
        context = "the cat sat on the mat, and the dog ran in the sun"
        answers = {"who sat ?": "the cat", "who ran ?": "the dog", "where ?": "on the mat"}
        asked = [
            {"id": question, "question": question, "answers": [{"text": text, "answer_start": context.index(text)}]}
            for question, text in answers.items()
        ]
        data = [{"title": "t", "paragraphs": [{"context": context, "qas": asked}]}]
        return write_text(folder / "dev.json", json.dumps({"version": "1.1", "data": data}))
    if kind == names.MULTIPLE_CHOICE:
        lines = (f"i\tthe cat\tsat\tran\ta mat\tthe sun\t{label}\n" for label in range(4))
        return write_text(folder / "dev.tsv", "".join(lines))
    labels: dict[str, list[Any]] = {
        names.CLASSIFICATION: ["yes", "no", "perhaps", "yes"],
        names.MULTI_LABEL: ["yes; no", "no", "", "perhaps"],
        names.REGRESSION: [1, 2.5, 0, 3],
        names.TAGGING: [["yes"] * len(text.split()) for text in ROWS],
    }
    return write_labels(folder, labels[kind])


def write_labels(folder: pathlib.Path, labels: Sequence[Any]) -> str:
    rows = [{"text": text, "label": label} for text, label in zip(ROWS, labels, strict=True)]
    return write_rows(folder / "eval.jsonl", rows)
