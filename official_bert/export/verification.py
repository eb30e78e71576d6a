"""Checks an export while it is written: compares its answers, and a quantized model's score, with the original model's.

The texts and the model's answers are stored with the export as a reference (see inference/reference_answers.py).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.checkpoints.loading import ModelAndTokenizer
from official_bert.errors import UserError
from official_bert.export.graph_models import TOP_K
from official_bert.export.options import ExportOptions
from official_bert.export.source import ExportSource
from official_bert.inference import exports, fill_mask
from official_bert.inference.keras_model import KerasPredictor, KerasRunner
from official_bert.inference.reference_answers import ReferenceAnswers
from official_bert.kinds import text_spec
from official_bert.kinds.features import Features, Outputs
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.names import FILL_MASK, IS_TRUNCATED
from official_bert.kinds.synthetic_texts import ODD_TEXTS, SHORT, SyntheticTexts
from official_bert.kinds.text_spec import TextExample
from official_bert.tasks.evaluation_files import read_evaluation_file
from official_bert.tokenization.exact import MASK, FullTokenizer
from official_bert.utils.counting import pluralize

# The largest difference that counts as rounding, for values of 32 bits, and of 16 or 8 bits (see reference_answers).
_FLOAT32_TOLERANCE, _COARSE_TOLERANCE = 5e-4, 3e-2
_EVALUATION_TEXTS = 32
_BATCH_SIZE = 8
_SCORING_BATCH_SIZE = 32

# The answers by output, and the margin of the decision for each text.
Answers = tuple[dict[str, list[Any]], list[float]]


def record_answers(source: ExportSource, eval_file: str | None = None) -> ReferenceAnswers:
    """Returns synthetic texts, and some texts of an evaluation file, with the model's answers to them.

    Args:
        source: The model.
        eval_file: A file with labeled examples, or None. The labels are not used.

    Raises:
        UserError: If the file cannot be read, or is given for a model that was not fine-tuned.
    """
    texts = synthetic_texts(source)
    if eval_file:
        if source.spec is None:
            raise UserError(f"--eval_file={eval_file}: the model has no task to evaluate; remove --eval_file.")
        task, examples = read_evaluation_file(source.task_spec, eval_file)
        step = max(1, len(examples) // _EVALUATION_TEXTS)
        further = task.spec.collect_texts(examples[::step][:_EVALUATION_TEXTS])
        texts = {name: column + further[name] for name, column in texts.items()}
    discrete_outputs: tuple[str, ...] = ()
    if source.spec is None and source.kind != FILL_MASK:
        answers, margins = _encode(texts["text"], source)
    else:
        predictor = _make_predictor(source)
        answers, margins = predictor.answer(exports.to_columns(texts), _BATCH_SIZE)
        discrete_outputs = predictor.spec.discrete_outputs
    is_exact = all(layer.compute_dtype == "float32" for layer in source.model.layers) and not any(
        getattr(layer, "quantization_mode", None) for layer in source.model._flatten_layers()
    )
    tolerance = _FLOAT32_TOLERANCE if is_exact else _COARSE_TOLERANCE
    return ReferenceAnswers(texts, answers, discrete_outputs, margins, tolerance)


def synthetic_texts(source: ExportSource) -> dict[str, list[Any]]:
    """Returns texts for each text input of the model, by name of the input. They are the same in every call."""
    synthetic, max_seq_length = SyntheticTexts(source.tokenizer), int(source.task_spec["max_seq_length"])
    if source.spec is not None:
        return source.spec.synthetic_texts(synthetic, max_seq_length)
    if source.kind == FILL_MASK:
        return {"text": _write_masked_texts(synthetic, source.tokenizer, max_seq_length - 2)}
    return {"text": synthetic.single(max_seq_length - 2)}


def _write_masked_texts(synthetic: SyntheticTexts, tokenizer: FullTokenizer, room: int) -> list[str]:
    """Returns texts that contain [MASK], of at most `room` tokens each."""
    texts = [MASK, f"{MASK}{MASK} , {MASK} .", *(f"{odd} {MASK}" for odd in ODD_TEXTS)]
    for tokens in (SHORT, room - 1, room):
        words = synthetic.text(tokens).split(" ")
        for position in synthetic.random.sample(range(tokens), 3):
            words[position] = MASK
        texts.append(" ".join(words))
    return [text for text in texts if len(tokenizer.tokenize(text, special_tokens=True)) <= room]


def _encode(texts: Sequence[str], source: ExportSource) -> Answers:
    examples = [TextExample(str(number), text) for number, text in enumerate(texts)]
    max_seq_length = int(source.task_spec["max_seq_length"])
    features = text_spec.featurize(examples, source.tokenizer, max_seq_length)
    answers: dict[str, list[Any]] = {name: [] for name in source.model.output}
    for start, end in itertools.pairwise(features.splits):
        ids = features.input_ids[None, start:end]
        inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        outputs = source.model(inputs, training=False)
        for name, column in answers.items():
            column.append(np.asarray(outputs[name], np.float32)[0].tolist())
    answers[IS_TRUNCATED] = features.is_truncated.tolist()
    return answers, [math.inf] * len(examples)


def _make_predictor(source: ExportSource) -> KerasPredictor:
    if source.spec is None:
        loaded = ModelAndTokenizer(source.model, source.config, source.tokenizer)
        return fill_mask.make_predictor(loaded, min(TOP_K, len(source.tokenizer.vocab)))
    model = create_kind_model(source.spec).answering_model(source.model)
    max_seq_length = source.task_spec["max_seq_length"]
    runner = KerasRunner(model, None, max_seq_length)
    return KerasPredictor(source.spec, source.tokenizer, max_seq_length, runner.compute_outputs)


def check_answers(
    reference: ReferenceAnswers, alone: Sequence[Mapping[str, Any]], together: Sequence[Mapping[str, Any]]
) -> None:
    """Checks that the answers of an export equal the model's.

    Args:
        reference: The texts and the model's answers to them.
        alone: The export's answers to each text, in batches of size one.
        together: The export's answers to the first texts in one batch.

    Raises:
        UserError: If an answer differs by more than rounding errors.
    """
    different = reference.compare(alone, together, "the export")
    if different:
        more = f" ({len(different) - 1} more answers differ)" if len(different) > 1 else ""
        raise UserError(
            f"The export answers differently from predict and is not written: {different[0]}{more}. If you "
            "changed the code of the model, make the same change in official_bert/export. Otherwise this is an error "
            "of official-bert or of a package that it uses: please report it."
        )


def compare_scores(
    source: ExportSource, options: ExportOptions, compute_outputs: Callable[[Features], Outputs], format_name: str
) -> dict[str, Any]:
    """Scores a model and its converted form on the evaluation file, and prints both scores.

    Args:
        source: The model before the conversion.
        options: The options of the export, which name the evaluation file and how much worse the score may become.
        compute_outputs: Function from features to outputs that runs the converted model.
        format_name: The format of the converted model, for messages.

    Returns:
        The name of the metric, its values "before" and "after" the conversion, and the number of examples.

    Raises:
        UserError: If the evaluation file cannot be read, or the score becomes worse than allowed.
    """
    assert options.eval_file
    assert source.spec
    task, examples = read_evaluation_file(source.task_spec, options.eval_file)
    decided: dict[str, Any] = {name: getattr(source.spec, name) for name in source.spec.decision_settings}
    task.spec = dataclasses.replace(task.spec, **decided)
    length = source.task_spec["max_seq_length"]
    features = task.spec.featurize(examples, source.tokenizer, length)
    before, after = (
        task.metrics(task.spec.decode(outputs, features, examples), examples)[task.best_metric]
        for outputs in (
            KerasRunner(source.model, None, length).compute_outputs(features, _SCORING_BATCH_SIZE),
            compute_outputs(features),
        )
    )
    name = f"{options.quantization} {format_name} model"
    if (before - after) / task.spec.best_possible_score > options.max_loss:
        raise UserError(
            f"The {name} loses {before - after:.4f} (from {before:.4f} to {after:.4f}) on {options.eval_file}, more "
            f"than --max_loss={options.max_loss}. Nothing was written."
        )
    print(
        f"{name}: {task.best_metric} {before:.4f} before, {after:.4f} after, on {pluralize(len(examples), 'example')}"
    )
    return {"metric": task.best_metric, "before": before, "after": after, "examples": len(examples)}
