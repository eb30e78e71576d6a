"""Makes the texts with the answers that predict gives to them, by which an export proves itself."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.export.graph_models import TOP_K
from official_bert.export.replay_texts import made_up_texts
from official_bert.export.source import Source
from official_bert.inference import exports
from official_bert.inference.fill_mask import fill_mask
from official_bert.inference.keras_model import KerasPredictor
from official_bert.inference.replays import Replay
from official_bert.kinds import text_spec
from official_bert.kinds.all_kinds import create_spec
from official_bert.kinds.model import model_for
from official_bert.kinds.names import ENCODER, FILL_MASK, IS_TRUNCATED
from official_bert.kinds.text_spec import TextExample
from official_bert.tasks.evaluation_files import read_evaluation_file
from official_bert.tokenization.fast import FastTokenizer

# How far numbers may lie apart by rounding: a + a share of their size. Of numbers of 8 or 16 bits little is exact.
_FLOAT32_TOLERANCE, _COARSE_TOLERANCE = 5e-4, 3e-2
_EVALUATION_TEXTS = 32
_BATCH_SIZE = 8


# The answers by output, which of these are decisions, and the margins of these.
Answers = tuple[dict[str, list[Any]], tuple[str, ...], list[float]]


def make(source: Source, eval_file: str | None = None) -> Replay:
    """Returns the answers that predict gives to made-up texts, and to some of an evaluation file.

    Args:
        source: the model.
        eval_file: labelled examples, as evaluation reads them; their labels are not used.

    Raises:
        UserError: the file cannot be read, or the model has no task.
    """
    texts = made_up_texts(source.tokenizer, source.kind, source.task_spec)
    if eval_file:
        if source.kind in (ENCODER, FILL_MASK):
            raise UserError(f"--eval_file={eval_file}: the model has no task to evaluate; leave it out")
        task, examples = read_evaluation_file(source.task_spec, eval_file)
        step = max(1, len(examples) // _EVALUATION_TEXTS)
        further = task.head.texts_of(examples[::step][:_EVALUATION_TEXTS])
        texts = {name: column + further[name] for name, column in texts.items()}
    answer = {ENCODER: _encoder_answers, FILL_MASK: _fill_mask_answers}.get(source.kind, _head_answers)
    answers, decisions, margins = answer(texts, source)
    exact = all(layer.compute_dtype == "float32" for layer in source.model.layers) and not any(
        getattr(layer, "quantization_mode", None) for layer in source.model._flatten_layers()
    )
    return Replay(texts, answers, decisions, margins, _FLOAT32_TOLERANCE if exact else _COARSE_TOLERANCE)


def _head_answers(texts: dict[str, list[Any]], source: Source) -> Answers:
    spec = create_spec({**source.task_spec, "kind": source.kind})
    model, tokenizer = model_for(spec).answering_model(source.model), FastTokenizer.of(source.tokenizer)
    predictor = KerasPredictor(spec, tokenizer, int(source.task_spec["max_seq_length"]), model)
    answers, margins = predictor.answer(exports.to_columns(texts), _BATCH_SIZE)
    return answers, spec.decisions, margins


def _encoder_answers(texts: dict[str, list[Any]], source: Source) -> Answers:
    examples = [TextExample(str(number), text) for number, text in enumerate(texts["text"])]
    features = text_spec.featurize(
        examples, FastTokenizer.of(source.tokenizer), int(source.task_spec["max_seq_length"])
    )
    answers: dict[str, list[Any]] = {name: [] for name in source.model.output}
    for start, end in zip(features.splits[:-1], features.splits[1:], strict=True):
        ids = features.input_ids[None, start:end]
        inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        outputs = source.model(inputs, training=False)
        for name, column in answers.items():
            column.append(np.asarray(outputs[name], np.float32)[0].tolist())
    answers[IS_TRUNCATED] = features.is_cut.tolist()
    return answers, (), [math.inf] * len(examples)


def _fill_mask_answers(texts: dict[str, list[Any]], source: Source) -> Answers:
    def pretraining_model(inputs: Any, training: bool) -> dict[str, Any]:
        return {"masked_lm_logits": source.model(inputs, training=training)}

    top_k = min(TOP_K + 1, len(source.tokenizer.vocab))
    of_texts = [fill_mask(pretraining_model, source.tokenizer, source.config, text, top_k) for text in texts["text"]]
    of_masks = [[candidates[:TOP_K] for candidates in masks] for masks in of_texts]
    answers: dict[str, list[Any]] = {
        "tokens": [[[each.token for each in candidates] for candidates in masks] for masks in of_masks],
        "probabilities": [[[each.probability for each in candidates] for candidates in masks] for masks in of_masks],
        IS_TRUNCATED: [False] * len(of_texts),
    }
    return answers, ("tokens",), [
        min(
            best.probability - next_best.probability
            for candidates in masks
            for best, next_best in itertools.pairwise(candidates)
        )
        for masks in of_texts
    ]  # fmt: skip


def prove(replay: Replay, alone: Sequence[Mapping[str, Any]], together: Sequence[Mapping[str, Any]] = ()) -> None:
    """Compares what an export answers with what predict does.

    Args:
        replay: the texts, and what predict answers.
        alone: the export's answers to the texts, each asked alone.
        together: to the first of them, asked at once.

    Raises:
        UserError: an answer differs by more than rounding.
    """
    different = [
        *replay.differences(alone, "the export"),
        *replay.differences(together, "the export, of several texts"),
    ]
    if different:
        more = f" ({len(different) - 1} more answers differ)" if len(different) > 1 else ""
        raise UserError(
            f"the export would answer otherwise than predict, so it is not written: {different[0]}{more}; this is an "
            "error of official-bert or of a package that it uses: please report it"
        )
