"""Writes a fine-tuned model for LiteRT (phones), with a report of what the conversion costs.

Only the part from token ids to logits is converted, because LiteRT has no tokenizer. The export fails if the converted
model loses more of the task's score than allowed or, in float32, if its answers differ from the answers of
predict.

N choices, S sequence
"""

import json
import os
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.export import verification
from official_bert.export.options import DYNAMIC_INT8, FLOAT32, LITERT, ONNX, ExportOptions
from official_bert.export.source import ExportSource
from official_bert.inference import exports, reference_answers
from official_bert.inference.keras_model import KerasPredictor, compute_outputs
from official_bert.kinds.features import Features, Outputs
from official_bert.modeling.head_input import HeadInput
from official_bert.utils import extras, files

MODEL_FILE, REPORT_FILE = exports.LITERT_FILE, "report.json"

_INPUTS, _LOGITS = ("input_ids", "input_mask", "segment_ids"), "logits"

Run = Callable[[dict[str, npt.NDArray[Any]]], dict[str, npt.NDArray[Any]]]


def check(source: ExportSource, options: ExportOptions) -> None:
    """Checks that the model can be converted to LiteRT, and that there are examples to score it on.

    Raises:
        UserError: If the model has no head or one that LiteRT does not support, or --eval_file is missing.
    """
    if source.spec is None or not source.spec.has_head:
        raise UserError(
            f"--format={LITERT} needs a model that was fine-tuned on labels, but the kind of {options.model_dir} is "
            f"{source.kind}; export it as saved_model{f' or {ONNX}' if source.spec else ''}"
        )
    if not HeadInput.from_dict(source.task_spec).is_encoder:
        raise UserError(
            f"{options.model_dir} has a recurrent head, which LiteRT's converter rejects; pass --format={ONNX}"
        )
    if options.eval_file is None:
        raise UserError(f"--format={LITERT} is scored on labelled examples; pass --eval_file")


def write(source: ExportSource, folder: str, options: ExportOptions) -> None:
    """Converts a model to LiteRT, checks it, and writes it with a report to a folder.

    Raises:
        UserError: If a package is missing, the converted model's score is worse than allowed, or its answers differ
            from the answers of predict.
    """
    path = os.path.join(folder, MODEL_FILE)
    files.write_bytes(path, convert(source, options.quantization == DYNAMIC_INT8))
    predictor = _make_predictor(source, load(path))
    score = verification.compare_scores(source, options, predictor.compute_outputs, LITERT)
    if options.quantization == FLOAT32:
        reference = verification.record_answers(source, options.eval_file)
        verification.check_answers(reference, *reference_answers.compute_answers(predictor.run, reference.rows()))
    choices = source.task_spec["num_choices"]
    shape = "[1, S]" if choices is None else f"[1, {choices}, S]"
    source.write_tokenizer(folder)
    report = {
        **source.metadata(()),
        **score,
        "bytes": files.size(path),
        "quantization": options.quantization,
        "inputs": dict.fromkeys(_INPUTS, f"int32 {shape}"),
        **predictor.spec.select_decision_settings(source.task_spec),
        "decoding": predictor.spec.decoding,
        "reads_windows": predictor.spec.reads_windows,
    }
    files.write_text(os.path.join(folder, REPORT_FILE), json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def _make_predictor(source: ExportSource, run: Run) -> KerasPredictor:
    """Returns a predictor that runs the converted LiteRT model on one text at a time. `run` calls that model."""
    assert source.spec
    max_seq_length = source.task_spec["max_seq_length"]

    def forward(inputs: dict[str, tf.Tensor]) -> Any:
        outputs = run({name: each.numpy() for name, each in inputs.items()})
        return outputs.get(_LOGITS, outputs)

    def compute(features: Features, _: int) -> Outputs:
        return compute_outputs(forward, features, 1, max_seq_length)

    return KerasPredictor(source.spec, source.tokenizer, max_seq_length, compute)


def convert(source: ExportSource, quantized: bool) -> bytes:
    """Converts a model to LiteRT and returns the content of the file.

    Its inputs are input_ids, input_mask and segment_ids, and its output is named logits.

    Args:
        source: The model.
        quantized: Whether matrices are quantized to 8 bits.
    """

    def call(input_ids: Any, input_mask: Any, segment_ids: Any) -> dict[str, Any]:
        features = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
        outputs = source.model(features, training=False)
        return outputs if isinstance(outputs, dict) else {_LOGITS: outputs}

    choices = source.task_spec["num_choices"]
    shape = [1, None] if choices is None else [1, choices, None]
    function = tf.function(call, input_signature=[tf.TensorSpec(shape, tf.int32, name=name) for name in _INPUTS])
    module = tf.Module()
    module.model_variables = [variable.value for variable in source.model.variables]
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], module)
    if quantized:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return bytes(converter.convert())


def load(path: str) -> Run:
    """Loads a LiteRT file. Returns a function from the features of one example to the model's outputs, both by name.

    The features are int32 [1, S], or [1, N, S] in multiple choice.

    Raises:
        UserError: If LiteRT is not installed.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ModuleNotFoundError as error:
        raise extras.explain_missing_package(error) or error from error
    runner = Interpreter(model_path=path).get_signature_runner()
    return lambda features: runner(**features)
